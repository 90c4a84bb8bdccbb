// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"fmt"
	"maps"
	"math"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/util/teststorage"
	"gopkg.in/yaml.v3"

	"github.com/accelscope/accelscope/tests/suites/rules/reference"
)

// known is a file in meaning/: series, and what each panel of the dashboard shows of them two hours after their first
// sample. The value of a series is a gauge (5), the rate of a counter (100/s), or promtool's notation, one sample a minute.
// The key of a panel is its type, title and unit; the key of a line is its legend, or "value" where the panel has no legend;
// the key of a cell of a table is the column with its unit, and the labels of the row.
type known struct {
	Series map[string]string
	Panels map[string]map[string]float64
}

// TestMeaning: each panel shows the numbers, names and units that were written down for it by hand.
func TestMeaning(t *testing.T) {
	all, r := read(t)
	for _, d := range all {
		t.Run(d.File, func(t *testing.T) {
			var k known
			text, err := os.ReadFile("meaning/" + strings.TrimSuffix(d.File, ".json") + ".yaml")
			if err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal(text, &k); err != nil {
				t.Fatal(err)
			}
			g := grafana{values: map[string]string{"$__rate_interval": "5m", "$__range_s": "3600", "$__range": "1h"}}
			g.engine = promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
			g.storage = promqltest.LoadedStorage(t, g.load(t, d, k.Series, r))
			for _, p := range d.Panels {
				if p.Type == "row" {
					continue
				}
				name := fmt.Sprintf("%s %s (%s)", p.Type, p.Title, p.FieldConfig.Defaults.Unit)
				want, ok := k.Panels[name]
				if !ok {
					t.Errorf("%s: meaning/ does not have what it shows", name)
					continue
				}
				delete(k.Panels, name)
				for _, difference := range compare(g.shows(t, p), want) {
					t.Errorf("%s: %s", name, difference)
				}
			}
			for name := range k.Panels {
				t.Errorf("%s: the dashboard has no such panel", name)
			}
		})
	}
}

// compare returns in words in which lines two panels differ.
func compare(got, want map[string]float64) (differences []string) {
	both := maps.Clone(want)
	maps.Copy(both, got)
	for _, line := range slices.Sorted(maps.Keys(both)) {
		g, shown := got[line]
		w, expected := want[line]
		switch {
		case !shown:
			differences = append(differences, fmt.Sprintf("lacks %q", line))
		case !expected:
			differences = append(differences, fmt.Sprintf("shows %q with %v, unexpectedly", line, g))
		case !(math.Abs(g-w) <= 1e-9*math.Abs(w)): // also NaN
			differences = append(differences, fmt.Sprintf("%q is %v, want %v", line, g, w))
		}
	}
	return differences
}

// grafana evaluates panels as Grafana does, with variables and names of lines and columns.
type grafana struct {
	engine  *promql.Engine
	storage *teststorage.TestStorage
	values  map[string]string
}

// load returns the series in promtool's notation, and selects all values of their labels in the variables of the dashboard.
// For each variable every series also exists with a value that is not selected, and with other samples.
func (g *grafana) load(t *testing.T, d dashboard, series map[string]string, r reference.Reference) string {
	t.Helper()
	text := "load 1m\n"
	selected := map[string][]string{}
	for i, s := range slices.Sorted(maps.Keys(series)) {
		if _, err := r.Check(s); err != nil {
			t.Error(err)
		}
		metric, err := parser.NewParser(parser.Options{}).ParseMetric(s)
		if err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		text += "  " + metric.String() + " " + samples(series[s], 1) + "\n"
		for _, v := range d.Templating.List {
			m := choice.FindStringSubmatch(v.Definition)
			if m == nil || metric.Get(m[2]) == "" {
				continue
			}
			selected[v.Name] = append(selected[v.Name], metric.Get(m[2]))
			other := labels.NewBuilder(metric)
			metric.Range(func(l labels.Label) {
				if strings.HasSuffix(l.Name, m[2]) { // also pf_device
					other.Set(l.Name, l.Value+"-unselected")
				}
			})
			factor := float64(i + 2)
			if strings.HasSuffix(metric.Get("__name__"), "_info") {
				factor = 1
			}
			text += "  " + other.Labels().String() + " " + samples(series[s], factor) + "\n"
		}
	}
	for _, v := range d.Templating.List {
		g.values["$"+v.Name] = strings.Join(slices.Compact(slices.Sorted(slices.Values(selected[v.Name]))), "|")
		if v.AllValue == ".*" { // also series without the label
			g.values["$"+v.Name] += "|"
		}
	}
	return text
}

// samples returns a multiple of the values of a series, in promtool's notation. Values in this notation stay.
func samples(value string, factor float64) string {
	if n, err := strconv.ParseFloat(strings.TrimSuffix(value, "/s"), 64); err == nil {
		if strings.HasSuffix(value, "/s") {
			return "0+" + strconv.FormatFloat(60*n*factor, 'f', -1, 64) + "x120"
		}
		return strconv.FormatFloat(n*factor, 'f', -1, 64) + "x120"
	}
	return value
}

// most matches how many workloads a panel shows beside "(all others)". The series have few workloads, and two are shown.
var most = regexp.MustCompile(`\btopk\(15,`)

// shows returns the lines of a panel or the cells of a table.
func (g *grafana) shows(t *testing.T, p panel) map[string]float64 {
	t.Helper()
	var replacements []string
	for _, name := range slices.Backward(slices.Sorted(maps.Keys(g.values))) { // $__range_s before $__range
		replacements = append(replacements, name, g.values[name])
	}
	values := strings.NewReplacer(replacements...)
	lines := map[string]float64{}
	rest := slices.ContainsFunc(p.Targets, func(q query) bool { return q.LegendFormat == "(all others)" })
	for _, q := range p.Targets {
		expr := values.Replace(q.Expr)
		if rest {
			expr = most.ReplaceAllString(expr, "topk(2,")
		}
		instant, err := g.engine.NewInstantQuery(t.Context(), g.storage, nil, expr, time.Unix(7200, 0))
		if err != nil {
			t.Fatal(err)
		}
		vector, err := instant.Exec(t.Context()).Vector()
		if err != nil || len(vector) == 0 {
			t.Errorf("%s: query %s: %d series, %v", p.Title, q.RefID, len(vector), err)
		}
		for _, s := range vector {
			name := p.line(q, s.Metric)
			if _, ok := lines[name]; ok {
				t.Errorf("%s: two series have the name %q", p.Title, name)
			}
			if lines[name] = s.F; s.H != nil {
				lines[name] = math.NaN()
			}
		}
		instant.Close()
	}
	return lines
}

// line returns the legend of a series with the unit of its query, or the column of a table with its unit, and the row.
func (p *panel) line(q query, of labels.Labels) string {
	if p.Type != "table" {
		name := placeholder.ReplaceAllStringFunc(q.LegendFormat, func(use string) string {
			return of.Get(placeholder.FindStringSubmatch(use)[1])
		})
		if unit := p.unit(q.RefID); unit != "" {
			name += " (" + unit + ")"
		}
		if name == "" {
			return "value"
		}
		return name
	}
	organize := p.Transformations[1].Options
	column := organize.RenameByName["Value #"+q.RefID]
	if len(p.Targets) == 1 {
		column = organize.RenameByName["Value"]
	}
	unit := p.unit(column)
	if unit == "" {
		unit = p.FieldConfig.Defaults.Unit
	}
	row := []string{column, "(" + unit + ")"}
	labels := slices.SortedFunc(maps.Keys(organize.IndexByName), func(a, b string) int {
		return organize.IndexByName[a] - organize.IndexByName[b]
	})
	for _, label := range labels {
		if value := of.Get(label); value != "" {
			row = append(row, value)
		}
	}
	return strings.Join(row, " ")
}

// unit returns the unit of a query or column that differs from the panel's, or "".
func (p *panel) unit(of string) string {
	for _, o := range p.FieldConfig.Overrides {
		for _, property := range o.Properties {
			if unit, ok := property.Value.(string); ok && property.ID == "unit" && o.Matcher.Options == of {
				return unit
			}
		}
	}
	return ""
}
