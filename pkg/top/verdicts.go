// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/accelscope/accelscope/pkg/format"
)

// A verdict is a condition that holds, as /api/v1/verdicts lists it.
type verdict struct {
	Name     string `json:"name"`
	Severity string `json:"severity"`
	Subject  struct {
		Kind        string `json:"kind"`
		Name        string `json:"name"`
		Workload    string `json:"workload"`
		Namespace   string `json:"namespace"`
		ContainerID string `json:"container_id"`
		Device      string `json:"device"`
		Port        int    `json:"port"`
		GPU         string `json:"gpu_id"`
		UUID        string `json:"uuid"`
	} `json:"subject"`
	Summary  string    `json:"summary"`
	Evidence []string  `json:"evidence"`
	Since    time.Time `json:"since"`
	Runbook  string    `json:"runbook"`
}

// verdicts are the conditions that hold on a node, the worst first.
type verdicts struct {
	At       time.Time `json:"at"`
	Verdicts []verdict `json:"verdicts"`
	Omitted  int       `json:"omitted"`
}

// readVerdicts requests the verdicts from the sensor with these metrics. Without an answer there are none: an older sensor judges
// nothing.
func readVerdicts(ctx context.Context, client *http.Client, metrics string) verdicts {
	var answer struct{ Data verdicts }
	if !readAPI(ctx, client, metrics, verdictsPath, "", &answer) {
		return verdicts{}
	}
	return answer.Data
}

const verdictsPath = "/api/v1/verdicts"

// maxVerdicts is the number of verdicts above the tables.
const maxVerdicts = 10

// lines renders the verdicts above the tables: severity, name, subject, evidence, and since when. The rest says where all of them are.
func (v verdicts) lines(rest string) []line {
	shown := v.Verdicts[:min(len(v.Verdicts), maxVerdicts)]
	var width [3]int
	cells := make([][3]string, len(shown))
	for i := range shown {
		cells[i] = [3]string{format.Escape(shown[i].Severity), format.Escape(shown[i].Name), format.Escape(shown[i].Subject.Name)}
		for c, text := range cells[i] {
			width[c] = max(width[c], utf8.RuneCountInString(text))
		}
	}
	out := make([]line, 0, len(shown)+1)
	for i := range shown {
		text := fmt.Sprintf("%-*s  %-*s  %-*s  %s",
			width[0], cells[i][0], width[1], cells[i][1], width[2], cells[i][2], shown[i].text(v.At))
		out = append(out, line{strings.TrimRight(text, " "), colors[shown[i].Severity]})
	}
	if more := len(v.Verdicts) - len(shown) + v.Omitted; more > 0 {
		out = append(out, line{fmt.Sprintf("… %d more: %s", more, rest), ""})
	}
	return out
}

// text renders the evidence and how long the condition has held.
func (v *verdict) text(now time.Time) string {
	parts := make([]string, len(v.Evidence))
	for i, e := range v.Evidence {
		parts[i] = format.Escape(e)
	}
	text := strings.Join(parts, "; ")
	if held := now.Sub(v.Since); held >= time.Second {
		text += fmt.Sprintf("  (for %s)", held.Round(time.Second))
	}
	return text
}

// colors are the escape sequences (SGR) of severities.
var colors = map[string]string{"critical": "1;31", "warning": "33", "info": "36", "ok": "32"}
