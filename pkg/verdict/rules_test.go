// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	promodel "github.com/prometheus/common/model"
)

// TestRules: an alert has the severity, the time, the runbook, the limits and the words of its condition. -update
// writes them into the rules. If an expression needs more or fewer numbers than before, edit it by hand.
func TestRules(t *testing.T) {
	text, err := os.ReadFile(rulesDir + "alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for _, c := range Conditions {
		if c.NoAlert == "" {
			want = writeRule(t, want, c)
		}
	}
	if *update && !t.Failed() {
		if err := os.WriteFile(rulesDir+"alerts.yaml", []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(want, string(text)); d != "" {
		t.Errorf("make generate-deploy:\n%s", d)
	}
}

var (
	ruleBegin    = regexp.MustCompile(`(?m)^      - alert: `)
	ruleFor      = regexp.MustCompile(`(?m)^        for: (\S+)( #.*)?\n`)
	ruleSeverity = regexp.MustCompile(`(?m)^          severity: .*$`)
	ruleRunbook  = regexp.MustCompile(`(?m)^          runbook_url: .*$`)
)

// writeRule writes the fields of a condition into its alert in the text of the rules.
func writeRule(t *testing.T, rules string, c *Condition) string {
	t.Helper()
	name := "      - alert: " + c.Name + "\n"
	before, rest, ok := strings.Cut(rules, name)
	if !ok {
		t.Errorf("there is no alert %s", c.Name)
		return rules
	}
	after := ""
	if next := ruleBegin.FindStringIndex(rest); next != nil {
		rest, after = rest[:next[0]], rest[next[0]:]
	}
	head, body, ok := strings.Cut(rest, "        expr: ")
	expr, labels, closed := strings.Cut(body, "        labels:\n")
	if !ok || !closed {
		t.Fatalf("%s: no expression, or no labels", c.Name)
	}
	held, comment := "", ""
	if m := ruleFor.FindStringSubmatch(expr); m != nil {
		expr, held, comment = strings.TrimSuffix(expr, m[0]), m[1], m[2]
	}
	if c.For != duration(t, held) {
		held = promodel.Duration(c.For).String()
	}
	expr = writeWords(t, writeLimits(t, expr, c), c)
	if c.For != 0 {
		expr += "        for: " + held + comment + "\n"
	}
	labels = ruleSeverity.ReplaceAllLiteralString(labels, "          severity: "+string(c.Severity))
	labels = ruleRunbook.ReplaceAllLiteralString(labels, "          runbook_url: "+c.Runbook())
	return before + name + head + "        expr: " + expr + "        labels:\n" + labels + after
}

// writeLimits replaces numbers of an expression that are not limits of the condition by the missing limits, in their
// order.
func writeLimits(t *testing.T, expr string, c *Condition) string {
	t.Helper()
	var want, lacks []float64
	for _, l := range limited(c) {
		if l.Value != 0 {
			want = append(want, l.Value)
		}
	}
	stale := limits(t, expr)
	for _, n := range want {
		if !slices.Contains(stale, n) && !slices.Contains(lacks, n) {
			lacks = append(lacks, n)
		}
	}
	stale = slices.DeleteFunc(stale, func(n float64) bool { return slices.Contains(want, n) })
	if len(stale) != len(lacks) {
		t.Errorf("%s: the alert has the limits %v that the table lacks, and lacks %v", c.Name, stale, lacks)
		return expr
	}
	found := compared.FindAllStringSubmatchIndex(expr, -1)
	for _, at := range slices.Backward(found) {
		n, _ := strconv.ParseFloat(expr[at[2]:at[3]], 64) // limits has parsed the number
		if i := slices.Index(stale, n); i >= 0 {
			expr = expr[:at[2]] + strconv.FormatFloat(lacks[i], 'g', -1, 64) + expr[at[3]:]
		}
	}
	return expr
}

// writeWords writes the words of a condition into the matchers of their labels. It adds missing words to the longest
// list of their label.
func writeWords(t *testing.T, expr string, c *Condition) string {
	t.Helper()
	got := words(expr)
	for label, want := range c.Words {
		sorted := slices.Compact(slices.Sorted(slices.Values(want)))
		lacks := slices.DeleteFunc(sorted, func(word string) bool { return slices.Contains(got[label], word) })
		longest := ""
		for _, m := range matcher.FindAllStringSubmatch(expr, -1) {
			if m[1] == label && len(m[2]) > len(longest) {
				longest = m[2]
			}
		}
		if len(lacks) > 0 && longest == "" {
			t.Errorf("%s: the alert does not decide by %s", c.Name, label)
			continue
		}
		for _, at := range slices.Backward(matcher.FindAllStringSubmatchIndex(expr, -1)) {
			list := expr[at[4]:at[5]]
			if expr[at[2]:at[3]] != label {
				continue
			}
			kept := slices.DeleteFunc(strings.Split(list, "|"), func(word string) bool {
				return word != "other" && !slices.Contains(want, word) // verdicts do not read summed series
			})
			if list == longest {
				kept = append(kept, lacks...)
			}
			expr = expr[:at[4]] + strings.Join(kept, "|") + expr[at[5]:]
		}
	}
	return expr
}
