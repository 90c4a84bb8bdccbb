// SPDX-License-Identifier: Apache-2.0

package render

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/tests/tools/dashboards"
)

func TestFormat(t *testing.T) {
	for _, x := range []struct {
		v          float64
		unit, want string
	}{
		{1536, "bytes", "1.5 KiB"},
		{59.1e6, "Bps", "59.1 MB/s"},
		{0.00095, "s", "950 µs"},
		{0.5, "percentunit", "50 %"},
		{0, "Bps", "0 B/s"},
		{1980e6, "hertz", "1.98 GHz"},
		{12, "suffix:/s", "12/s"},
		{4500, "suffix: ticks/s", "4.5k ticks/s"},
		{1.5, "none", "1.5"},
		{1e12, "dateTimeAsIso", "2001-09-09 01:46:40"},
		{-3, "celsius", "-3 °C"},
		{0.004, "ops", "0.004/s"},
	} {
		if got := format(x.v, x.unit); got != x.want {
			t.Errorf("%v in %s: %q, want %q", x.v, x.unit, got, x.want)
		}
	}
}

// TestDashboard: every kind of panel is drawn as XML, with the values of the answers, and within its area.
func TestDashboard(t *testing.T) {
	var d dashboards.Dashboard
	if err := json.Unmarshal([]byte(`{"title": "T", "panels": [
		{"id": 1, "type": "row", "title": "Row", "gridPos": {"x": 0, "y": 0, "w": 24, "h": 1}},
		{"id": 2, "type": "timeseries", "title": "Lines", "gridPos": {"x": 0, "y": 1, "w": 12, "h": 8},
			"targets": [{"refId": "A", "legendFormat": "<{{workload}}>"}],
				"fieldConfig": {"defaults": {"unit": "Bps"}}},
		{"id": 3, "type": "table", "title": "Table", "gridPos": {"x": 12, "y": 1, "w": 12, "h": 8},
			"targets": [{"refId": "A", "legendFormat": "Bytes"}], "fieldConfig": {"defaults": {"unit": "bytes"}},
			"transformations": [{"options": {"indexByName": {"workload": 0, "Value": 1}}}]},
		{"id": 4, "type": "heatmap", "title": "Heat", "gridPos": {"x": 0, "y": 9, "w": 12, "h": 8},
			"targets": [{"refId": "A", "legendFormat": "{{le}}"}], "fieldConfig": {"defaults": {"unit": "s"}}},
		{"id": 5, "type": "stat", "title": "Stat", "gridPos": {"x": 12, "y": 9, "w": 4, "h": 4},
			"targets": [{"refId": "A"}],
			"fieldConfig": {"defaults": {"unit": "none",
				"thresholds": {"steps": [{"color": "green"}, {"color": "red", "value": 1}]}}}},
		{"id": 6, "type": "state-timeline", "title": "States", "gridPos": {"x": 0, "y": 17, "w": 12, "h": 8},
			"targets": [{"refId": "A", "legendFormat": "{{workload}}"}],
			"fieldConfig": {"defaults": {"mappings": [{"options": {"1": {"text": "up"}}}]}}},
		{"id": 7, "type": "stat", "title": "Nothing", "gridPos": {"x": 16, "y": 9, "w": 4, "h": 4},
			"targets": [{"refId": "A"}]}
	]}`), &d); err != nil {
		t.Fatal(err)
	}
	answer := func(text string) map[string]dashboards.Answer {
		var a dashboards.Answer
		if err := json.Unmarshal([]byte(text), &a); err != nil {
			t.Fatal(err)
		}
		return map[string]dashboards.Answer{"A": a}
	}
	const line = `{"resultType": "matrix", "result": [{"metric": {"workload": "a&b"}, "values": [[0, "1"], [30, "2e6"], [60, "NaN"]]}]}`
	const moment = `{"resultType": "vector", "result": [{"metric": {"workload": "w"}, "value": [60, "2048"]}]}`
	svg := Dashboard(d, dashboards.Answers{
		Begin: 0, End: 60,
		Panels: map[string]map[int]map[string]dashboards.Answer{"": {
			2: answer(line), 3: answer(moment), 5: answer(moment), 6: answer(line),
			4: answer(`{"result": [{"metric": {"le": "0.001"}, "values": [[0, "1"], [30, "4"]]}, {"metric": {"le": "+Inf"}, "values": [[0, "1"], [30, "5"]]}]}`),
		}},
	})
	for x := xml.NewDecoder(strings.NewReader(svg)); ; {
		if _, err := x.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v\n%s", err, svg)
		}
	}
	for _, want := range []string{"&lt;a&amp;b&gt;", "2 MB/s", "2 KiB", "1 ms", "2048", `fill="#c4302b"`, "No data " +
		"here", "▾ Row", ">up<"} {
		if !strings.Contains(svg, want) {
			t.Errorf("no %q in\n%s", want, svg)
		}
	}
	if strings.Contains(svg, "NaN") || strings.Contains(svg, "%!") {
		t.Errorf("bad numbers in\n%s", svg)
	}
}
