// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/client"
	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/program"
)

const (
	ofSource   = "source"        // the kind of the subject of a verdict on the sensor
	maxAge     = 2 * time.Minute // of a sensor's verdicts, from which on they say nothing about the node now
	maxMessage = 1024            // bytes: node-problem-detector cuts longer output, maybe within a character, which the API server rejects
)

// checkNode prints the verdicts of a sensor that count, worst first, one per line, as a custom plugin of node-problem-detector does, and
// returns program.ErrReported. Without such a verdict it returns program.ErrUnknown unless the sensor can exclude one.
func checkNode(ctx context.Context, c *config.CheckNodeCommand, stdout io.Writer) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, fmt.Errorf("no answer within %v", c.Timeout))
	defer cancel()
	list, err := readVerdicts(ctx, c.URL)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		fmt.Fprintln(stdout, fitting([]string{"unknown: " + format.Line(err.Error())}))
		return program.ErrUnknown
	}
	found := slices.DeleteFunc(slices.Clone(list.Verdicts), func(v api.Verdict) bool { return !counts(c, &v) })
	if len(found) > 0 {
		lines := make([]string, len(found))
		for i := range found {
			lines[i] = verdictLine(&found[i])
		}
		fmt.Fprintln(stdout, fitting(lines))
		return program.ErrReported
	}
	if reason := unjudged(c, &list); reason != "" {
		fmt.Fprintln(stdout, fitting([]string{"unknown: " + reason}))
		return program.ErrUnknown
	}
	fmt.Fprintf(stdout, "no verdict of severity %s: %s\n", c.Severity, strings.Join(list.Judged.Texts(), ", "))
	return nil
}

func verdictLine(v *api.Verdict) string {
	return fmt.Sprintf("%s %s: %s", v.Name, format.Line(v.Subject.Name), format.Line(strings.Join(v.Evidence, "; ")))
}

// fitting returns the first lines that fit in a message, and the number of the others. A first line that is too long is cut.
func fitting(lines []string) string {
	const room = maxMessage - len("\n4294967295 more\n")
	text := lines[0]
	if len(text) > room {
		text = strings.ToValidUTF8(text[:room-len("…")], "") + "…"
	}
	for i, line := range lines[1:] {
		if len(text)+len(line) >= room {
			return fmt.Sprintf("%s\n%d more", text, len(lines)-1-i)
		}
		text += "\n" + line
	}
	return text
}

// readVerdicts returns verdicts that hold now.
func readVerdicts(ctx context.Context, url string) (list api.VerdictList, err error) {
	sensor, err := client.New(url)
	if err != nil {
		return list, err
	}
	defer sensor.Close()
	missing, err := sensor.Data(ctx, api.VerdictsPath, &list)
	if err != nil {
		return list, err
	}
	if missing != "" {
		return list, errors.New(missing)
	}
	if age := time.Since(list.At); age > maxAge || age < -maxAge {
		return list, fmt.Errorf("the verdicts are from %s", list.At.Format(time.RFC3339))
	}
	return list, nil
}

// counts reports whether a verdict is on one of the subjects, and severe enough. Verdicts on sources are on the sensor, not on the node.
func counts(c *config.CheckNodeCommand, v *api.Verdict) bool {
	wanted := len(c.Subjects) == 0 || slices.Contains(c.Subjects, string(v.Subject.Kind))
	return v.AtLeast(c.Severity) && wanted && v.Subject.Kind != ofSource
}

// unjudged returns why the sensor cannot exclude a verdict that it does not list: a source or a device is not read, there was no room, or
// the sensor reads no device of the subjects.
func unjudged(c *config.CheckNodeCommand, list *api.VerdictList) string {
	for i := range list.Verdicts {
		v := &list.Verdicts[i]
		if v.Subject.Kind == ofSource && v.Subject.Source != "events" { // events that were lost had been judged
			return verdictLine(v)
		}
	}
	if list.Omitted > 0 {
		return fmt.Sprintf("%d verdicts or counters without room", list.Omitted)
	}
	if list.Judged == nil {
		return "the sensor does not say what it reads"
	}
	judged := map[string]int{"port": list.Judged.Ports, "hca": list.Judged.Ports, "gpu": list.Judged.GPUs, "switch": list.Judged.GPUs}
	for _, kind := range c.Subjects {
		if n, device := judged[kind]; device && n == 0 {
			return "the sensor reads no " + kind
		}
	}
	return ""
}
