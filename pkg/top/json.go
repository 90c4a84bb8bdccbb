// SPDX-License-Identifier: Apache-2.0

package top

import (
	"encoding/json"
	"io"
	"math"
	"time"
)

// object is what --json prints for one interval.
type object struct {
	At        time.Time        `json:"at"`
	Verdicts  verdicts         `json:"verdicts"`
	Workloads []map[string]any `json:"workloads"`
	Devices   []map[string]any `json:"devices"`
}

// printJSON prints one interval as one line.
func printJSON(out io.Writer, at time.Time, v verdicts, workloads, devices *sheet) error {
	if v.Verdicts == nil {
		v.Verdicts = []verdict{}
	}
	return json.NewEncoder(out).Encode(object{at.UTC(), v, workloads.objects(), devices.objects()})
}

// objects returns the rows as JSON: numbers in the units of the metrics (bytes, seconds, parts), null without a figure, and names as
// they are.
func (s *sheet) objects() []map[string]any {
	out := make([]map[string]any, 0, len(s.rows))
	for _, r := range s.rows {
		o := map[string]any{"kind": r.kind}
		for _, c := range s.columns {
			if c.kind != "" && c.kind != r.kind {
				continue
			}
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
	return out
}
