// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/parser"
	"gopkg.in/yaml.v3"
)

// same changes nothing: it shows that writing the rules back does not make a test fail.
const same = "nothing is changed"

// mutants are changes to an alert that one of its tests must detect. All alerts are changed together, because no alert
// depends on another: promtool reports which tests fail.
var mutants = map[string]func(*rule) bool{
	same: func(r *rule) bool {
		comparisons(r, func(*parser.BinaryExpr) {})
		return true
	},
	"fires never": func(r *rule) bool {
		r.Expr = "(" + r.Expr + ") unless (" + r.Expr + ")"
		return true
	},
	"limits are half as high":  func(r *rule) bool { return limits(r, 0.5) },
	"limits are twice as high": func(r *rule) bool { return limits(r, 2) },
	"comparisons are turned round": func(r *rule) bool {
		return comparisons(r, func(b *parser.BinaryExpr) {
			b.Op = map[parser.ItemType]parser.ItemType{
				parser.EQLC: parser.NEQ, parser.NEQ: parser.EQLC, parser.GTR: parser.LTE, parser.LSS: parser.GTE,
				parser.GTE: parser.LSS, parser.LTE: parser.GTR,
			}[b.Op]
		})
	},
	"lacks its last condition":        func(r *rule) bool { return unconditional(r, 0) },
	"lacks the condition before that": func(r *rule) bool { return unconditional(r, 1) },
	"lacks the third to last":         func(r *rule) bool { return unconditional(r, 2) },
	"fires at once": func(r *rule) bool {
		was := r.For
		r.For = ""
		return was != ""
	},
	"fires later": func(r *rule) bool {
		d, err := time.ParseDuration(r.For)
		r.For = (2*d + 6*time.Hour).String()
		return err == nil
	},
}

// comparisons changes the comparisons with a number, except "== 0", "== 1" and the like, which compare states.
func comparisons(r *rule, change func(*parser.BinaryExpr)) bool {
	tree, err := parser.NewParser(parser.Options{}).ParseExpr(r.Expr)
	if err != nil {
		return false
	}
	n := 0
	parser.Inspect(tree, func(node parser.Node, _ []parser.Node) error {
		if b, ok := node.(*parser.BinaryExpr); ok && b.Op.IsComparisonOperator() {
			if _, ok := b.RHS.(*parser.NumberLiteral); ok {
				n++
				change(b)
			}
		}
		return nil
	})
	r.Expr = tree.String()
	return n > 0
}

// limits multiplies the limits in comparisons, except the states 0 and 1.
func limits(r *rule, factor float64) bool {
	n := 0
	comparisons(r, func(b *parser.BinaryExpr) {
		if v := b.RHS.(*parser.NumberLiteral); v.Val != 0 && v.Val != 1 && b.Op != parser.EQLC {
			v.Val *= factor
			n++
		}
	})
	return n > 0
}

// unconditional replaces an "and" or "unless", counted from the end, by its left side.
func unconditional(r *rule, which int) bool {
	tree, err := parser.NewParser(parser.Options{}).ParseExpr(r.Expr)
	if err != nil {
		return false
	}
	n := 0
	parser.Inspect(tree, func(node parser.Node, _ []parser.Node) error {
		if b, ok := node.(*parser.BinaryExpr); ok && (b.Op == parser.LAND || b.Op == parser.LUNLESS) {
			if n == which {
				b.Op, b.RHS = parser.LAND, b.LHS
				b.VectorMatching.On, b.VectorMatching.MatchingLabels = false, nil
			}
			n++
		}
		return nil
	})
	r.Expr = tree.String()
	return n > which
}

// sample returns the names of the mutants to run: all, or same and ACCELSCOPE_MUTANTS others, which CI chooses at random
// while nobody changes rules and tests. ACCELSCOPE_SEED repeats a choice.
func sample(t *testing.T) []string {
	t.Helper()
	names := slices.Sorted(maps.Keys(mutants))
	most, err := strconv.Atoi(os.Getenv("ACCELSCOPE_MUTANTS"))
	if err != nil || most >= len(names) {
		return names
	}
	seed, err := strconv.ParseUint(os.Getenv("ACCELSCOPE_SEED"), 10, 32)
	if err != nil {
		seed = uint64(rand.Uint32())
	}
	rand.New(rand.NewPCG(seed, 0)).Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	names = slices.DeleteFunc(names, func(name string) bool { return name == same })[:most]
	fmt.Printf("stage: ACCELSCOPE_MUTANTS=%d ACCELSCOPE_SEED=%d: %s\n", most, seed, strings.Join(names, ", "))
	return append(names, same)
}

// TestMutants: a test of each alert fails when the alert is changed.
func TestMutants(t *testing.T) {
	for _, name := range sample(t) {
		mutate := mutants[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			var changed []string
			f := ruleFile{Groups: groups(t)}
			for i := range f.Groups {
				for j := range f.Groups[i].Rules {
					if r := &f.Groups[i].Rules[j]; r.Alert != "" && mutate(r) {
						changed = append(changed, r.Alert)
					}
				}
			}
			failed := map[string]bool{}
			for file, test := range tests(t) {
				out, _ := promtool(t, "test", "rules", small(t, dir, filepath.Base(file), f, test, changed))
				for line := range strings.SplitSeq(out, "\n") {
					if after, ok := strings.CutPrefix(strings.TrimSpace(line), "alertname: "); ok {
						alert, _, _ := strings.Cut(after, ",")
						failed[alert] = true
					}
				}
			}
			if len(changed) == 0 {
				t.Error("it changes nothing")
			}
			for _, alert := range changed {
				switch {
				case name == same && failed[alert]:
					t.Errorf("a test of %s fails, and it is as it was", alert)
				case name != same && !failed[alert]:
					t.Errorf("no test of %s notices", alert)
				}
			}
		})
	}
}

// small writes the tests of a file that cover one of the alerts, and the rules that they need.
func small(t *testing.T, dir, name string, rules ruleFile, test testFile, alerts []string) string {
	t.Helper()
	var used []string
	tested := test
	tested.Tests = nil
	for _, g := range test.Tests {
		n := len(used)
		for _, a := range g.Alerts {
			if slices.Contains(alerts, a.Name) {
				used = append(used, a.Name)
			}
		}
		if g.Exprs = nil; len(used) > n {
			tested.Tests = append(tested.Tests, g)
		}
	}
	return needed(t, dir, name, rules, tested, used)
}

// needed writes a file of tests with only the rules that it needs: rules with a name in used, and the rules that they use.
func needed(t *testing.T, dir, name string, rules ruleFile, test testFile, used []string) string {
	t.Helper()
	// Alerts use recording rules, which use earlier recording rules.
	var few ruleFile
	for _, g := range slices.Backward(rules.Groups) {
		all := g.Rules
		g.Rules = nil
		for _, r := range slices.Backward(all) {
			if slices.Contains(used, r.Alert+r.Record) {
				used = append(used, recorded.FindAllString(r.Expr+" "+r.Annotations["description"], -1)...)
				g.Rules = append(g.Rules, r)
			}
		}
		slices.Reverse(g.Rules)
		few.Groups = append(few.Groups, g)
	}
	slices.Reverse(few.Groups)
	test.RuleFiles = []string{"rules-" + name}
	write(t, filepath.Join(dir, test.RuleFiles[0]), few)
	path := filepath.Join(dir, name)
	write(t, path, test)
	return path
}

// recorded matches the name of a recording rule.
var recorded = regexp.MustCompile(`\w+:\w+:\w+`)

func write(t *testing.T, path string, what any) {
	t.Helper()
	text, err := yaml.Marshal(what)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}
