// SPDX-License-Identifier: Apache-2.0

// Package dashboards checks the queries of deploy/grafana, and what their panels show of known series (meaning/).
// tests/tools/dashboards checks the layout, tests/suites/e2e that there are results.
package dashboards

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/tests/suites/rules/reference"
)

type dashboard struct {
	File       string `json:"-"`
	Templating struct {
		List []variable
	}
	Panels []panel
}

type variable struct{ Name, Type, Definition, AllValue string }

type panel struct {
	Title, Type     string
	Targets         []query
	Transformations []struct {
		Options struct {
			IndexByName  map[string]int
			RenameByName map[string]string
		}
	}
	FieldConfig struct {
		Defaults  struct{ Unit string }
		Overrides []struct {
			Matcher    struct{ Options string }
			Properties []struct {
				ID    string
				Value any
			}
		}
	}
}

type query struct{ RefID, Expr, LegendFormat string }

const root = "../../../../"

// read returns the dashboards, and what their queries may select.
func read(t *testing.T) ([]dashboard, reference.Reference) {
	t.Helper()
	r, err := reference.Read(root + "gen/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Record(root + "deploy/prometheus/rules/recording.yaml"); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(root + "deploy/grafana/*.json")
	if err != nil || len(files) < 5 {
		t.Fatalf("%v, %v", files, err)
	}
	all := make([]dashboard, len(files))
	for i, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &all[i]); err != nil {
			t.Fatal(err)
		}
		all[i].File = filepath.Base(file)
	}
	return all, r
}

var (
	placeholder = regexp.MustCompile(`{{\s*(\w+)\s*}}`)
	choice      = regexp.MustCompile(`^label_values\((.*), (\w+)\)$`)
)

// TestExpressions: queried metrics and labels are in the metric reference or belong to a recording rule, and results
// have the labels in legends and tables.
func TestExpressions(t *testing.T) {
	all, r := read(t)
	checked := 0
	for _, d := range all {
		replacements := []string{"$__rate_interval", "5m", "$__range_s", "3600", "$__range", "1h"}
		for _, v := range d.Templating.List {
			replacements = append(replacements, "$"+v.Name, v.AllValue)
		}
		values := strings.NewReplacer(replacements...)
		for _, v := range d.Templating.List {
			if v.Type != "query" {
				continue
			}
			m := choice.FindStringSubmatch(v.Definition)
			if m == nil {
				t.Errorf("%s: $%s: %s", d.File, v.Name, v.Definition)
				continue
			}
			labels, err := r.Check(values.Replace(m[1]))
			if err != nil || !slices.Contains(labels, m[2]) {
				t.Errorf("%s: $%s: no label %s in %v: %v", d.File, v.Name, m[2], labels, err)
			}
		}
		for _, p := range d.Panels {
			for _, q := range p.Targets {
				checked++
				labels, err := r.Check(values.Replace(q.Expr))
				if err != nil {
					t.Errorf("%s: %s: %v", d.File, p.Title, err)
					continue
				}
				for _, m := range placeholder.FindAllStringSubmatch(q.LegendFormat, -1) {
					if !slices.Contains(labels, m[1]) {
						t.Errorf("%s: %s: the legend shows %s, the answer has %v", d.File, p.Title, m[1], labels)
					}
				}
				if p.Type != "table" {
					continue
				}
				for _, l := range labels {
					if _, shown := p.Transformations[1].Options.IndexByName[l]; !shown {
						t.Errorf("%s: %s: an unexpected column %s", d.File, p.Title, l)
					}
				}
			}
		}
	}
	t.Logf("%d expressions", checked)
}
