// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the table of docs/verdicts.md")

const docsPage = "../../docs/verdicts.md"

// TestPage: the table of docs/verdicts.md is that of the conditions.
func TestPage(t *testing.T) {
	text, err := os.ReadFile(docsPage)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- conditions -->\n", "<!-- end -->\n"
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table", docsPage)
	}
	want := before + begin + "\n" + conditionTable() + "\n" + end + after
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

func conditionTable() string {
	var b strings.Builder
	b.WriteString("| condition | severity | means | limits | from |\n|---|---|---|---|---|\n")
	for _, c := range Conditions {
		name := "`" + c.Name + "`"
		if c.NoAlert == "" {
			name = fmt.Sprintf("[`%s`](../deploy/prometheus/runbooks/%s.md)", c.Name, c.Name)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", name, c.Severity, c.Summary, limitsText(c), c.Source)
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
	if c.Window > 0 {
		parts = append(parts, "window "+span(c.Window))
	}
	if c.Severity == Info && c.For > 0 {
		parts = append(parts, "shown after "+span(c.For))
	}
	return strings.Join(parts, "; ")
}
