// SPDX-License-Identifier: Apache-2.0

// Command generate writes the dashboards: one JSON file for each, to be imported into Grafana 10 or newer as it is.
//
//	go run ./tests/tools/dashboards/generate
//
// The tables of panels (hca.go, links.go, workloads.go, jobs.go, gpus.go, fabric.go, node.go, sensor.go) are edited by hand.
// panel.go sets the style of all panels, and their positions are computed, row by row, from left to right.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// all are the dashboards, by file.
func all() map[string]dashboard {
	return map[string]dashboard{
		"hca.json": hca(), "workloads.json": workloads(), "jobs.json": jobs(), "gpus.json": gpus(), "fabric.json": fabric(),
		"sensor.json": sensor(), "links.json": links(), "node.json": nodes(),
	}
}

func main() {
	dir := "deploy/grafana"
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	for name, d := range all() {
		text, err := d.encode()
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), text, 0o644)
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "generate:", err)
			os.Exit(1)
		}
	}
}

// encode writes a dashboard as JSON, without escaping the characters of PromQL.
func (d dashboard) encode() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(d.build()); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}
