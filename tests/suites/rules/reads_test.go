// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

var update = flag.Bool("update", false, "rewrite the series filters of deploy/prometheus/scale")

// filter is the expression of a series filter, one name per line.
var filter = regexp.MustCompile(`(?s)(- source_labels: \[__name__\]\n\s+regex: ")(.*?)(")`)

// TestReads: the series filters for many nodes have exactly the names that rules and dashboards read. The benchmark of
// many nodes (tests/suites/fleet) reads the same file.
func TestReads(t *testing.T) {
	var want strings.Builder
	for i, name := range readNames(t) {
		if i > 0 {
			want.WriteString("|")
		}
		want.WriteString("\\\n          " + name)
	}
	for _, file := range []string{"agent.yml", "shard.yml"} {
		path := filepath.Join(root, "scale", file)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		m := filter.FindSubmatchIndex(text)
		if m == nil {
			t.Fatalf("%s has no filter of series", file)
		}
		if got := string(text[m[4]:m[5]]); got != want.String() && *update {
			text = slices.Concat(text[:m[4]], []byte(want.String()), text[m[5]:])
			if err := os.WriteFile(path, text, 0o644); err != nil { //nolint:gosec // others read it
				t.Fatal(err)
			}
		} else if got != want.String() {
			t.Errorf("%s: the filter (go test -C tests/suites/rules -run TestReads -update . rewrites it) has\n%s\nwant\n%s", file, got, &want)
		}
	}
}

// inAnnotation matches the names of series that an annotation queries.
var inAnnotation = regexp.MustCompile(`printf "(\w+)\{`)

// readNames returns the names of all series that rules, dashboards and the page of all nodes read, except recorded
// series, sorted.
func readNames(t *testing.T) []string {
	t.Helper()
	return slices.Sorted(maps.Keys(selectors(t)))
}

// selectors returns the label matchers with which rules and dashboards read series, except recorded series, by name.
func selectors(t *testing.T) map[string][][]*labels.Matcher {
	t.Helper()
	all := map[string][][]*labels.Matcher{}
	read := func(expr string) {
		tree, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
		if err != nil {
			t.Fatalf("%v: %s", err, expr)
		}
		parser.Inspect(tree, func(node parser.Node, _ []parser.Node) error {
			if s, ok := node.(*parser.VectorSelector); ok {
				if s.Name == "" {
					t.Errorf("reads series without a name: %s", expr)
				}
				all[s.Name] = append(all[s.Name], s.LabelMatchers)
			}
			return nil
		})
	}
	for _, r := range rules(t) {
		read(r.Expr)
		for _, text := range r.Annotations {
			for _, m := range inAnnotation.FindAllStringSubmatch(text, -1) {
				all[m[1]] = append(all[m[1]], nil)
			}
		}
	}
	files, err := filepath.Glob("../../../deploy/grafana/*.json")
	if err != nil || len(files) < 5 {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		for _, expr := range queries(t, file) {
			read(expr)
		}
	}
	for _, expr := range fleetQueries(t) {
		read(expr)
	}
	for _, r := range rules(t) {
		delete(all, r.Record)
	}
	delete(all, "ALERTS")
	delete(all, "ALERTS_FOR_STATE")
	return all
}

// queries returns the queries of the panels and variables of a dashboard.
func queries(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Templating struct {
			List []struct{ Name, Type, Definition, AllValue string }
		}
		Panels []struct{ Targets []struct{ Expr string } }
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	replacements := []string{"$__rate_interval", "5m", "$__range_s", "3600", "$__range", "1h"}
	for _, v := range d.Templating.List {
		replacements = append(replacements, "$"+v.Name, v.AllValue)
	}
	values := strings.NewReplacer(replacements...)
	var all []string
	for _, v := range d.Templating.List {
		if i := strings.LastIndex(v.Definition, ", "); v.Type == "query" && i >= 0 {
			all = append(all, values.Replace(strings.TrimPrefix(v.Definition[:i], "label_values(")))
		}
	}
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			all = append(all, values.Replace(q.Expr))
		}
	}
	if len(all) == 0 {
		t.Errorf("%s has no queries", file)
	}
	return all
}
