// SPDX-License-Identifier: Apache-2.0

package overview

import (
	"cmp"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// Table is the rows of a refresh with rates.
type Table struct {
	// Time is the refresh's time. RatesUntil and RatesSeconds are the end and length of the interval of the rates, null
	// without rates.
	Time         time.Time  `json:"time"`
	RatesUntil   *time.Time `json:"rates_until"`
	RatesSeconds *float64   `json:"rates_seconds"`
	Rows         []Row      `json:"rows"`
	// Devices are the rates of whole HCAs.
	Devices []DeviceRate `json:"devices"`
}

// DeviceRate is what the ports of an HCA carried in the last interval.
type DeviceRate struct {
	Device   string `json:"device"`
	Transmit *Rate  `json:"transmit"`
	Receive  *Rate  `json:"receive"`
}

// Table returns the rows of a refresh. A nil Recorder adds no rates.
func (r *Recorder) Table(at time.Time, facts *model.Snapshot, shares *attribution.Attribution) Table {
	t := Table{Time: at.UTC(), Rows: Rows(facts, shares), Devices: []DeviceRate{}}
	if r == nil {
		return t
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.interval > 0 {
		until, seconds := r.at.UTC(), r.interval.Seconds()
		t.RatesUntil, t.RatesSeconds = &until, &seconds
	}
	for i := range t.Rows {
		row := &t.Rows[i]
		if e := r.entries[entryKey{row.Key(), false}]; e != nil && row.Kind == HCA {
			row.Transmit, row.Receive = e.rates.transmit, e.rates.receive
			row.VerbsP99, row.CompletionP99 = e.rates.verbsP99, e.rates.completionP99
			if shares.Verbs != nil {
				row.Verbs = e.rates.calls
			}
		}
	}
	for i := range facts.HCAs {
		name := facts.HCAs[i].Name
		if e := r.entries[entryKey{Key{Device: name}, true}]; e != nil && e.rates.transmit != nil {
			t.Devices = append(t.Devices, DeviceRate{name, e.rates.transmit, e.rates.receive})
		}
	}
	return t
}

// History is the last quarter of an hour.
type History struct {
	// Begin is the time of the first value of each series.
	Begin       time.Time `json:"begin"`
	StepSeconds float64   `json:"step_seconds"`
	Series      []Series  `json:"series"`
	// LeftOut is the number of workloads and devices without room.
	LeftOut int `json:"left_out"`
}

// Series is a figure of a device, or of a workload on a device. For a device itself Workload is empty and Whole is
// true. The unattributed share has an empty Workload, too.
type Series struct {
	Workload    string `json:"workload"`
	ContainerID string `json:"container_id"`
	Kind        Kind   `json:"kind"`
	Device      string `json:"device"`
	GPU         string `json:"gpu_id"`
	Vendor      string `json:"vendor"`
	Whole       bool   `json:"whole_device"`
	Figure      Figure `json:"figure"`
	// Values has a value for each step; null without a refresh.
	Values []*float64 `json:"values"`
}

// History returns a copy of the selected series, devices first. selected sees series without values; nil selects all. A
// Recorder that is nil or has no rings has no series.
func (r *Recorder) History(selected func(*Series) bool) History {
	h := History{StepSeconds: Step.Seconds(), Series: []Series{}}
	if r == nil || !r.rings {
		return h
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	first := r.slot - Steps + 1
	h.LeftOut = r.left
	if !r.at.IsZero() {
		h.Begin = time.Unix(first*int64(Step/time.Second), 0).UTC()
	}
	for k, e := range r.entries {
		figures := [2]Figure{Transmit, Receive}
		if e.kind == GPU {
			figures = [2]Figure{Utilization, Memory}
		}
		for i, figure := range figures {
			series := Series{
				Workload: k.Workload, ContainerID: k.ContainerID, Kind: e.kind, Device: k.Device, GPU: e.gpu, Vendor: e.vendor,
				Whole: k.whole, Figure: figure,
			}
			if selected != nil && !selected(&series) {
				continue
			}
			values, found := make([]*float64, Steps), false
			for s := range values {
				if v := float64(e.rings[i][(first+int64(s))%Steps]); v == v {
					values[s], found = &v, true
				}
			}
			if found {
				series.Values = values
				h.Series = append(h.Series, series)
			}
		}
	}
	slices.SortFunc(h.Series, func(a, b Series) int {
		whole := 0
		if a.Whole != b.Whole {
			if whole = 1; a.Whole {
				whole = -1
			}
		}
		return cmp.Or(
			whole, compareOwners(a.Workload, b.Workload), cmp.Compare(a.ContainerID, b.ContainerID), cmp.Compare(a.Kind, b.Kind),
			cmp.Compare(a.Vendor, b.Vendor), compareNumbers(a.GPU, b.GPU), cmp.Compare(a.Device, b.Device),
			-cmp.Compare(a.Figure, b.Figure),
		)
	})
	return h
}

// Enabled reports whether the Recorder has rings.
func (r *Recorder) Enabled() bool { return r != nil && r.rings }
