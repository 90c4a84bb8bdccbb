// SPDX-License-Identifier: Apache-2.0

package top

import (
	"encoding/json"
	"io"
	"math"
	"time"

	"github.com/accelscope/accelscope/pkg/api"
)

// object is what --json prints for one interval.
type object struct {
	At time.Time `json:"at"`
	// RatesUntil and RatesSeconds are the end and length of the interval of the rates, null without rates.
	RatesUntil   *time.Time `json:"rates_until"`
	RatesSeconds *float64   `json:"rates_seconds"`
	// Incomplete are the reasons why something is missing.
	Incomplete []string         `json:"incomplete"`
	Verdicts   api.VerdictList  `json:"verdicts"`
	Workloads  []map[string]any `json:"workloads"`
	Devices    []map[string]any `json:"devices"`
}

// printJSON prints one interval as one line.
func printJSON(out io.Writer, r *reading, workloads, devices []*sheet) error {
	verdicts := r.verdicts
	verdicts.Verdicts = append([]api.Verdict{}, verdicts.Verdicts...)
	return json.NewEncoder(out).Encode(object{
		r.at.UTC(), r.workloads.RatesUntil, r.workloads.RatesSeconds, append([]string{}, r.missing...), verdicts,
		objects(workloads), objects(devices),
	})
}

// objects returns the rows as JSON: numbers in the units of the metrics (bytes, seconds, parts), null without a figure, and names as
// they are.
func objects(sheets []*sheet) []map[string]any {
	out := []map[string]any{}
	for _, s := range sheets {
		for _, r := range s.rows {
			o := map[string]any{"kind": s.kind}
			for _, c := range s.columns {
				switch one := r.cells[c.key]; {
				case !one.known || math.IsNaN(one.value) || math.IsInf(one.value, 0):
					o[c.key] = nil
				case c.text:
					o[c.key] = one.text
				default:
					o[c.key] = one.value
				}
			}
			o["device"] = r.device
			if r.workload != "" || r.containerID != "" {
				o["workload"], o["container_id"] = r.workload, r.containerID
			}
			delete(o, defaultSort)
			out = append(out, o)
		}
	}
	return out
}
