// SPDX-License-Identifier: Apache-2.0

package main

import "strings"

// dashboard is the description of a dashboard from which its JSON is generated.
type dashboard struct {
	uid, title, description string
	variables               []variable
	rows                    []row
	refresh, span           string // the refresh interval and the default time range
}

// row is a title, and the panels below it.
type row struct {
	title  string
	panels []panel
}

// variable is a selector above the panels. All values can be selected; all is the regular expression that labels must
// match then.
type variable struct {
	name, label, query, all string
}

// The variables. Every dashboard has the data source's variable. A series without a workload is unattributed; all values
// include it, so that the unattributed share is shown.
var (
	node      = variable{"node", "Node", `label_values(accelscope_build_info, instance)`, ".+"}
	namespace = variable{"namespace", "Namespace", `label_values(accelscope_workload_info{instance=~"$node"}, namespace)`, ".*"}
	workload  = variable{
		"workload", "Workload", `label_values(accelscope_workload_info{instance=~"$node",namespace=~"$namespace"}, workload)`, ".*",
	}
	device  = variable{"device", "HCA", `label_values(infiniband_device_info{instance=~"$node"}, device)`, ".*"}
	gpu     = variable{"gpu", "GPU", `label_values(gpu_info{instance=~"$node"}, uuid)`, ".*"}
	fswitch = variable{"switch", "Switch", `label_values(infiniband_switch_info{instance=~"$node"}, switch)`, ".*"}
)

type object = map[string]any

// tag is the tag of all dashboards, by which their links find each other.
const tag = "accelscope"

func (d dashboard) build() any {
	return struct {
		UID           string   `json:"uid"`
		Title         string   `json:"title"`
		Description   string   `json:"description"`
		Tags          []string `json:"tags"`
		Editable      bool     `json:"editable"`
		GraphTooltip  int      `json:"graphTooltip"`
		Links         []object `json:"links"`
		Annotations   object   `json:"annotations"`
		Refresh       string   `json:"refresh"`
		Time          object   `json:"time"`
		Timezone      string   `json:"timezone"`
		Templating    object   `json:"templating"`
		Panels        []any    `json:"panels"`
		SchemaVersion int      `json:"schemaVersion"`
		Version       int      `json:"version"`
	}{
		UID: d.uid, Title: d.title, Description: d.description, Tags: []string{tag}, Editable: true,
		GraphTooltip: 1, // the crosshair is shown in all panels
		Links: []object{{
			"type": "dashboards", "tags": []string{tag}, "title": tag, "asDropdown": false,
			"includeVars": true, "keepTime": true, "targetBlank": false,
		}},
		Annotations: object{"list": []any{}}, Refresh: d.refresh, Time: object{"from": "now-" + d.span, "to": "now"},
		Timezone: "browser", Templating: object{"list": d.choices()}, Panels: d.place(), SchemaVersion: 39, Version: 1,
	}
}

// choices returns the variables of a dashboard.
func (d dashboard) choices() []object {
	list := []object{{
		"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "regex": "",
		"current": object{}, "hide": 0, "includeAll": false, "multi": false, "refresh": 1,
	}}
	for _, v := range d.variables {
		list = append(list, object{
			"name": v.name, "label": v.label, "type": "query", "datasource": source,
			"query":      object{"query": v.query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
			"definition": v.query, "regex": "", "sort": 1, "refresh": 2, "hide": 0,
			"includeAll": true, "allValue": v.all, "multi": true,
			"current": object{"selected": true, "text": []string{"All"}, "value": []string{"$__all"}},
		})
	}
	return list
}

// place sets the number and the position of every panel.
func (d dashboard) place() []any {
	const width, title = 24, 1
	var out []any
	id, y := 0, 0
	for _, r := range d.rows {
		id++
		out = append(out, object{
			"id": id, "type": "row", "title": r.title, "collapsed": false, "panels": []any{},
			"gridPos": object{"h": title, "w": width, "x": 0, "y": y},
		})
		y += title
		x, high := 0, 0
		for _, p := range r.panels {
			if x+p.w > width {
				x, y, high = 0, y+high, 0
			}
			id++
			out = append(out, p.build(id, object{"h": p.h, "w": p.w, "x": x, "y": y}))
			x, high = x+p.w, max(high, p.h)
		}
		y += high
	}
	return out
}

// sel returns label matchers: the node's, and labels.
func sel(labels ...string) string {
	return "{" + strings.Join(append([]string{`instance=~"$node"`}, labels...), ",") + "}"
}
