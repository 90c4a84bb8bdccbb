// SPDX-License-Identifier: Apache-2.0

package dashboards

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	root    = "../../.."
	columns = 24 // of Grafana's grid
)

func load(t *testing.T) []Dashboard {
	t.Helper()
	all, err := Load(filepath.Join(root, "deploy/grafana"))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 5 {
		t.Fatalf("%d dashboards", len(all))
	}
	return all
}

// builtin are Grafana's built-in variables.
var builtin = []string{"__rate_interval", "__range", "__range_s", "__interval", "__field"}

// units are the ids of Grafana's units that the dashboards use. Grafana shows an unknown id as it is.
var units = regexp.MustCompile(`^(none|short|bytes|Bps|ops|pps|percent|percentunit|s|watt|kwatth|celsius|hertz|dateTimeAsIso|suffix: ?[^ ]+)$`)

// core are the panels that every Grafana has.
var core = []string{"row", "timeseries", "stat", "table", "heatmap", "state-timeline"}

// TestDashboards checks for errors that Grafana does not report, or reports only in the dashboard.
func TestDashboards(t *testing.T) {
	uids, titles := map[string]string{}, map[string]string{}
	for _, d := range load(t) {
		t.Run(d.File, func(t *testing.T) {
			for what, seen := range map[string]map[string]string{d.UID: uids, d.Title: titles} {
				if other := seen[what]; other != "" || what == "" {
					t.Errorf("%q is that of %q, too", what, other)
				}
				seen[what] = d.File
			}
			if !regexp.MustCompile(`^accelscope-[a-z]+$`).MatchString(d.UID) {
				t.Errorf("uid %q", d.UID)
			}
			if !slices.Equal(d.Tags, []string{"accelscope"}) || len(d.Links) != 1 || !slices.Equal(d.Links[0].Tags,
				d.Tags) {
				t.Errorf("tags %v, links %v: want the tag, and links to what has it", d.Tags, d.Links)
			}
			if d.Schema != 39 || d.Description == "" {
				t.Errorf("schema %d, description %q", d.Schema, d.Description)
			}
			variables(t, d)
			grid(t, d)
			for _, p := range d.Panels {
				t.Run(p.Title, func(t *testing.T) { panel(t, d, p) })
			}
		})
	}
	for _, d := range load(t) {
		for _, p := range d.Panels {
			for _, l := range p.FieldConfig.Defaults.Links {
				if m := target.FindStringSubmatch(l.URL); m == nil || uids[m[1]] == "" {
					t.Errorf("%s: %s leads to %s, which is none of these dashboards", d.File, p.Title, l.URL)
				}
			}
		}
	}
}

// target returns the dashboard that a link leads to.
var target = regexp.MustCompile(`^/d/([a-z-]+)\?`)

// variables checks that the data source is a variable, and that each variable is used and uses only earlier ones.
func variables(t *testing.T, d Dashboard) {
	t.Helper()
	if len(d.Templating.List) == 0 || d.Templating.List[0].Name != "datasource" || d.Templating.List[0].Text() != "prometheus" {
		t.Fatalf("variables %+v: want datasource first", d.Templating.List)
	}
	known := slices.Clone(builtin)
	for _, v := range d.Templating.List {
		for _, name := range Variables(v.Text()) {
			if !slices.Contains(known, name) {
				t.Errorf("$%s uses $%s, which is not known before it", v.Name, name)
			}
		}
		known = append(known, v.Name)
		used := slices.ContainsFunc(d.Panels, func(p Panel) bool {
			return slices.ContainsFunc(p.Targets, func(q Target) bool {
				return slices.Contains(Variables(q.Expr+q.Datasource.UID), v.Name)
			})
		})
		if !used {
			t.Errorf("no panel uses $%s", v.Name)
		}
		if v.Type == "query" && v.All == "" {
			t.Errorf("$%s: all of it would be a list of thousands", v.Name)
		}
	}
}

// grid checks that panels have unique ids, are within the grid and do not overlap.
func grid(t *testing.T, d Dashboard) {
	t.Helper()
	taken := map[[2]int]string{}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] || p.ID == 0 {
			t.Errorf("%s: id %d is taken", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.Place.W <= 0 || p.Place.H <= 0 || p.Place.X < 0 || p.Place.X+p.Place.W > columns {
			t.Errorf("%s: %+v", p.Title, p.Place)
		}
		for x := p.Place.X; x < p.Place.X+p.Place.W; x++ {
			for y := p.Place.Y; y < p.Place.Y+p.Place.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" {
					t.Fatalf("%s stands on %s", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
}

// panel checks that a panel has a description and a unit, and uses only known variables.
func panel(t *testing.T, d Dashboard, p Panel) {
	t.Helper()
	if !slices.Contains(core, p.Type) {
		t.Errorf("%s is no panel of Grafana's own", p.Type)
	}
	if p.Title == "" {
		t.Error("no title")
	}
	if p.Type == "row" {
		return
	}
	if len(p.Description) < 10 || !strings.HasSuffix(p.Description, ".") {
		t.Errorf("description %q", p.Description)
	}
	all := []string{p.FieldConfig.Defaults.Unit}
	for _, o := range p.FieldConfig.Overrides {
		for _, property := range o.Properties {
			var unit string
			if property.ID == "unit" && json.Unmarshal(property.Value, &unit) == nil {
				all = append(all, unit)
			}
		}
		if o.Matcher.ID == "byFrameRefID" && !slices.ContainsFunc(p.Targets,
			func(q Target) bool { return q.Ref == o.Matcher.Options }) {
			t.Errorf("an override for %s, which is no query", o.Matcher.Options)
		}
	}
	for _, unit := range all {
		if !units.MatchString(unit) {
			t.Errorf("unit %q", unit)
		}
	}
	if p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
		t.Errorf("data source %q, %d queries", p.Datasource.UID, len(p.Targets))
	}
	refs := map[string]bool{}
	for _, q := range p.Targets {
		if refs[q.Ref] || q.Datasource.UID != "${datasource}" || q.Instant == q.Range {
			t.Errorf("query %+v", q)
		}
		refs[q.Ref] = true
		for _, name := range Variables(q.Expr) {
			known := slices.Contains(builtin, name) ||
				slices.ContainsFunc(d.Templating.List, func(v Variable) bool { return v.Name == name })
			if !known {
				t.Errorf("$%s is no variable: %s", name, q.Expr)
			}
		}
		if !strings.Contains(q.Expr, `instance=~"$node"`) {
			t.Errorf("all nodes, whatever was chosen: %s", q.Expr)
		}
		// A graph needs a legend to distinguish its series. Otherwise Grafana shows all labels.
		if q.Legend == "" && p.Type != "stat" {
			t.Errorf("no legend: %s", q.Expr)
		}
	}
}

// TestReadme: the README lists each dashboard.
func TestReadme(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root, "deploy/grafana/README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range load(t) {
		if !strings.Contains(string(readme), "]("+d.File+")") {
			t.Errorf("README.md does not lead to %s", d.File)
		}
	}
}

// TestExpand: variables in all their forms.
func TestExpand(t *testing.T) {
	d := Dashboard{}
	d.Templating.List = []Variable{{Name: "node", All: ".+"}}
	got := d.Expand(`rate(a{b=~"$node",c="${node:regex}",d="$other"}[$__rate_interval])`,
		Values{"__rate_interval": "15s"})
	if want := `rate(a{b=~".+",c=".+",d="$other"}[15s])`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
