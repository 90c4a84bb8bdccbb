// SPDX-License-Identifier: Apache-2.0

package main

import "strconv"

// panel is the description of a panel from which its JSON is generated.
type panel struct {
	kind        string // timeseries, stat, table, heatmap, state-timeline
	title       string
	description string // what the panel shows, with its limits
	unit        string
	w, h        int
	queries     []query

	stack     bool
	maximum   float64 // of the axis; 0: automatic
	warn      float64 // yellow from this value on
	critical  float64 // red from this value on
	inverse   bool    // red below critical, green from critical on
	link      string  // link of a series, or of a row of a table
	linkTitle string
	sortBy    string   // the column by which a table is sorted, largest first
	labels    []string // the columns of a table, before the columns of its queries
	texts     map[string]string
}

// query is a query of a panel. In a table its legend is the name of its column.
type query struct {
	expr, legend string
	unit         string // of this query or column, if it is not the panel's
	below        bool   // drawn below zero
	dashed       bool   // a limit
}

// source is the selected data source.
var source = object{"type": "prometheus", "uid": "${datasource}"}

// workloadLink links to the workload of a series.
const workloadLink = "/d/accelscope-workloads?${datasource:queryparam}&${node:queryparam}&var-workload=${__field.labels.workload}"

func graph(title, description, unit string, queries ...query) panel {
	return panel{kind: "timeseries", title: title, description: description, unit: unit, w: 12, h: 8, queries: queries}
}

func stat(title, description, unit, expr string) panel {
	return panel{kind: "stat", title: title, description: description, unit: unit, w: 4, h: 4, queries: []query{{expr: expr}}}
}

func table(title, description, unit string, labels []string, queries ...query) panel {
	return panel{kind: "table", title: title, description: description, unit: unit, w: 12, h: 8, labels: labels, queries: queries}
}

func heatmap(title, description, unit, expr string) panel {
	return panel{
		kind: "heatmap", title: title, description: description, unit: unit, w: 12, h: 8,
		queries: []query{{expr: expr, legend: "{{le}}"}},
	}
}

func timeline(title, description string, texts map[string]string, queries ...query) panel {
	return panel{
		kind: "state-timeline", title: title, description: description, unit: "none", w: 12, h: 8, queries: queries, texts: texts,
	}
}

func (p panel) wide(w int) panel    { p.w = w; return p }
func (p panel) high(h int) panel    { p.h = h; return p }
func (p panel) stacked() panel      { p.stack = true; return p }
func (p panel) max(v float64) panel { p.maximum = v; return p }

// above returns thresholds that color high values.
func (p panel) above(warn, critical float64) panel { p.warn, p.critical = warn, critical; return p }

// below returns thresholds that color low values.
func (p panel) under(critical float64) panel { p.critical, p.inverse = critical, true; return p }

func (p panel) leads(to string) panel { return p.leadsTo("Show this workload", to) }

func (p panel) leadsTo(title, to string) panel { p.linkTitle, p.link = title, to; return p }

func (p panel) sorted(column string) panel { p.sortBy = column; return p }

func (p panel) build(id int, place object) any {
	return struct {
		ID              int      `json:"id"`
		Type            string   `json:"type"`
		Title           string   `json:"title"`
		Description     string   `json:"description"`
		Datasource      object   `json:"datasource"`
		GridPos         object   `json:"gridPos"`
		Targets         []object `json:"targets"`
		FieldConfig     object   `json:"fieldConfig"`
		Options         object   `json:"options"`
		Transformations []object `json:"transformations,omitempty"`
	}{
		id, p.kind, p.title, p.description, source, place, p.targets(),
		object{"defaults": p.defaults(), "overrides": p.overrides()},
		p.options(), p.transformations(),
	}
}

func refID(i int) string { return string(rune('A' + i)) }

func (p panel) targets() []object {
	var out []object
	for i, q := range p.queries {
		instant := p.kind == "stat" || p.kind == "table"
		format := map[string]string{"table": "table", "heatmap": "heatmap"}[p.kind]
		if format == "" {
			format = "time_series"
		}
		t := object{
			"refId": refID(i), "datasource": source, "editorMode": "code", "expr": q.expr,
			"format": format, "instant": instant, "range": !instant, "legendFormat": q.legend,
		}
		out = append(out, t)
	}
	return out
}

func (p panel) steps() []object {
	steps := []object{{"color": "green", "value": nil}}
	switch {
	case p.inverse:
		steps = []object{{"color": "red", "value": nil}, {"color": "green", "value": p.critical}}
	case p.critical != 0:
		if p.warn != 0 {
			steps = append(steps, object{"color": "yellow", "value": p.warn})
		}
		steps = append(steps, object{"color": "red", "value": p.critical})
	case p.kind == "stat":
		steps[0]["color"] = "blue"
	}
	return steps
}

func (p panel) defaults() object {
	d := object{
		"unit": p.unit, "thresholds": object{"mode": "absolute", "steps": p.steps()}, "mappings": []any{},
		"color": object{"mode": "palette-classic"},
	}
	if p.maximum != 0 {
		d["max"] = p.maximum
	}
	if p.link != "" {
		d["links"] = []object{{"title": p.linkTitle, "url": p.link}}
	}
	switch p.kind {
	case "timeseries":
		d["min"] = 0
		for _, q := range p.queries {
			if q.below {
				delete(d, "min")
			}
		}
		fill, mode := 10, "none"
		if p.stack {
			fill, mode = 60, "normal"
		}
		marks := "off"
		if p.critical != 0 {
			marks = "dashed"
		}
		d["custom"] = object{
			"drawStyle": "line", "lineWidth": 1, "fillOpacity": fill, "showPoints": "never", "spanNulls": false,
			"stacking": object{"mode": mode, "group": "A"}, "thresholdsStyle": object{"mode": marks},
		}
	case "stat":
		d["color"] = object{"mode": "thresholds"}
	case "table":
		d["custom"] = object{"align": "auto", "cellOptions": object{"type": "auto"}, "filterable": true}
	case "state-timeline":
		d["color"] = object{"mode": "thresholds"}
		d["custom"] = object{"fillOpacity": 70, "lineWidth": 0}
		options := object{}
		for value, text := range p.texts {
			options[value] = object{"text": text}
		}
		d["mappings"] = []object{{"type": "value", "options": options}}
	}
	return d
}

func (p panel) overrides() []object {
	out := []object{}
	for i, q := range p.queries {
		properties := []object{}
		if q.unit != "" {
			properties = append(properties, object{"id": "unit", "value": q.unit})
		}
		if q.below {
			properties = append(properties, object{"id": "custom.transform", "value": "negative-Y"})
		}
		if q.dashed {
			properties = append(properties,
				object{"id": "custom.lineStyle", "value": object{"fill": "dash", "dash": []int{10, 10}}},
				object{"id": "custom.fillOpacity", "value": 0},
				object{"id": "custom.stacking", "value": object{"mode": "none", "group": "B"}})
		}
		if len(properties) == 0 {
			continue
		}
		matcher := object{"id": "byFrameRefID", "options": refID(i)}
		if p.kind == "table" {
			matcher = object{"id": "byName", "options": q.legend}
		}
		out = append(out, object{"matcher": matcher, "properties": properties})
	}
	return out
}

func (p panel) options() object {
	switch p.kind {
	case "stat":
		return object{
			"reduceOptions": object{"calcs": []string{"lastNotNull"}, "fields": "", "values": false},
			"colorMode":     "value", "graphMode": "none", "justifyMode": "auto", "textMode": "auto", "orientation": "auto",
		}
	case "table":
		o := object{"showHeader": true, "cellHeight": "sm", "footer": object{"show": false, "reducer": []string{"sum"}, "fields": ""}}
		if p.sortBy != "" {
			o["sortBy"] = []object{{"displayName": p.sortBy, "desc": true}}
		}
		return o
	case "heatmap":
		return object{
			"calculate": false, "cellGap": 1, "yAxis": object{"unit": p.unit, "axisPlacement": "left"},
			"color": object{
				"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "fill": "dark-orange",
				"scale": "exponential",
			},
			"filterValues": object{"le": 1e-9}, "legend": object{"show": true}, "rowsFrame": object{"layout": "auto"},
			"tooltip": object{"mode": "single", "yHistogram": false}, "cellValues": object{"unit": "ops"}, "showValue": "never",
		}
	case "state-timeline":
		return object{
			"mergeValues": true, "showValue": "never", "rowHeight": 0.8, "alignValue": "left",
			"legend":  object{"showLegend": true, "displayMode": "list", "placement": "bottom"},
			"tooltip": object{"mode": "single", "sort": "none"},
		}
	}
	return object{
		"legend": object{
			"showLegend": true, "displayMode": "table", "placement": "bottom", "calcs": []string{"lastNotNull", "max"},
			"sortBy": "Last *", "sortDesc": true,
		},
		"tooltip": object{"mode": "multi", "sort": "desc"},
	}
}

// transformations merges the answers to one table: a row for each combination of labels, a column for each query.
func (p panel) transformations() []object {
	if p.kind != "table" {
		return nil
	}
	names, order := object{}, object{}
	for i, label := range p.labels {
		order[label] = i
	}
	for i, q := range p.queries {
		field := "Value"
		if len(p.queries) > 1 {
			field += " #" + refID(i)
		}
		names[field], order[field] = q.legend, len(p.labels)+i
	}
	return []object{
		{"id": "merge", "options": object{}},
		{"id": "organize", "options": object{"excludeByName": object{"Time": true}, "indexByName": order, "renameByName": names}},
	}
}

// top keeps the n largest series at each time.
func top(n int, expr string) string { return "topk(" + strconv.Itoa(n) + ", " + expr + ")" }

// owner names the unattributed share.
func owner(expr string) string {
	return `label_replace(` + expr + `, "workload", "(no owner)", "workload", "")`
}

// shares returns the n largest of the shares that add up, and one series for the rest, so that the stack shows the
// total.
func shares(n int, expr, legend string) []query {
	return []query{
		{expr: owner(top(n, expr)), legend: legend},
		{expr: "clamp_min(sum(" + expr + ") - sum(" + top(n, expr) + "), 0)", legend: "(all others)"},
	}
}

// rate returns the rate of a counter.
func rate(name, selector string) string { return "rate(" + name + selector + "[$__rate_interval])" }

// quantile returns a quantile of a histogram, classic or native: a server stores one kind, and the other query returns
// nothing.
func quantile(q, by, name, selector string) string {
	return "histogram_quantile(" + q + ", sum by (le, " + by + ") (" + rate(name+"_bucket", selector) + "))" +
		" or histogram_quantile(" + q + ", sum by (" + by + ") (" + rate(name, selector) + "))"
}

// Recorded series of the latency of verbs. With many nodes, the rates of all buckets are too much for a panel of all workloads.
const (
	verbsRate = "instance_workload:container_rdma_verbs_duration_seconds:rate5m"
	verbsP99  = "instance_workload:container_rdma_verbs_duration_seconds:p99_rate5m"
)

// verbsQuantile returns a quantile of the latency of verbs from its recorded rate, which is classic or native.
func verbsQuantile(q, by, selector string) string {
	return "histogram_quantile(" + q + ", sum by (le, " + by + ") (" + verbsRate + selector + "))"
}

// buckets returns the buckets of a histogram, classic or native.
func buckets(name, selector string) string {
	return "sum by (le) (" + rate(name+"_bucket", selector) + ") or on () sum(" + rate(name, selector) + ")"
}
