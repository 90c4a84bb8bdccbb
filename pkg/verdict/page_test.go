// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/format"
)

var update = flag.Bool("update", false, "rewrite the tables of docs/verdicts.md, and what alerts.yaml has from the conditions")

const docsPage = "../../docs/verdicts.md"

// TestPage: the tables of docs/verdicts.md match the conditions and the intermediate states.
func TestPage(t *testing.T) {
	text, err := os.ReadFile(docsPage)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for _, table := range []struct{ begin, text string }{
		{"<!-- conditions -->\n", conditionTable()}, {"<!-- intermediate states -->\n", stateList()},
	} {
		const end = "<!-- end -->\n"
		before, rest, ok := strings.Cut(want, table.begin)
		_, after, closed := strings.Cut(rest, end)
		if !ok || !closed {
			t.Fatalf("%s has no place for the table", docsPage)
		}
		want = before + table.begin + "\n" + table.text + "\n" + end + after
	}
	if *update {
		if err := os.WriteFile(docsPage, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(want, string(text)); d != "" {
		t.Errorf("go test ./pkg/verdict -run TestPage -update:\n%s", d)
	}
}

func stateList() string {
	var b strings.Builder
	for i := range IntermediateStates {
		s := &IntermediateStates[i]
		normal, found := "ever", ""
		if s.Found != nil {
			normal, found = format.Span(s.Normal), ". `"+s.Found.Name+"`"
		}
		fmt.Fprintf(&b, "- **%s** (%s), %s: %s%s\n", s.Values, s.From, normal, s.Means, found)
	}
	return b.String()
}

func conditionTable() string {
	var b strings.Builder
	severity := Severity("")
	for _, c := range Conditions {
		if c.Severity != severity {
			if severity != "" {
				b.WriteString("\n")
			}
			severity = c.Severity
			fmt.Fprintf(&b, "**%s**\n\n", severity)
		}
		name, limits, source := "`"+c.Name+"`", limitsText(c), ""
		if c.NoAlert == "" {
			name = fmt.Sprintf("[`%s`](../deploy/prometheus/runbooks/%s.md)", c.Name, c.Name)
		}
		if limits != "" {
			limits = " Limits: " + limits + "."
		}
		if c.Source != "driver state" && c.Source != "sensor state" {
			source = " Why: " + strings.ReplaceAll(c.Source, "docs/verdicts.md: ", "below, ") + "."
		}
		fmt.Fprintf(&b, "- %s: %s%s%s\n", name, c.Summary, limits, source)
	}
	return b.String()
}

func limitsText(c *Condition) string {
	var parts []string
	for _, l := range c.Thresholds {
		sign := ">"
		if l.Below {
			sign = "<"
		}
		if l.Equal {
			sign += "="
		}
		unit := l.Unit
		if unit != "" && !strings.HasPrefix(unit, "/") {
			unit = " " + unit
		}
		parts = append(parts, fmt.Sprintf("%s %s %g%s", l.Of, sign, l.Value, unit))
	}
	if c.Window > 0 && !strings.Contains(strings.Join(parts, ""), " in ") {
		parts = append(parts, "window "+format.Span(c.Window))
	}
	if c.Severity == Info && c.For > 0 {
		parts = append(parts, "shown after "+format.Span(c.For))
	}
	return strings.Join(parts, "; ")
}
