// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// TestReportUse: the uses of a round of 5 s.
func TestReportUse(t *testing.T) {
	sm := func(v float64) []model.Figure { return []model.Figure{{Name: "sm", Value: v}} }
	whole := func(u ...wire.Use) wire.Listing { return wire.Listing{UUID: "GPU-1", Whole: true, Processes: u} }
	processes := []model.GPUProcess{{PID: 1, Engines: sm(0.5)}, {PID: 2, Engines: []model.Figure{}}, {PID: 3, MPS: true}}
	unknown := []model.GPUProcess{{PID: 1}}
	for name, c := range map[string]struct {
		before    time.Duration
		processes []model.GPUProcess
		uses      map[int]use
		mig       bool
		bare      []model.GPU
		want      wire.Listing
	}{
		"first round": {0, processes, nil, false, nil, wire.Listing{UUID: "GPU-1", Processes: []wire.Use{
			{PID: 1, Listed: true}, {PID: 2, Listed: true}, {PID: 3, Listed: true},
		}}},
		"processes": {5 * time.Second, processes, map[int]use{1: {0.5}, 9: {0.25}}, false, nil, whole(
			wire.Use{PID: 1, Listed: true, Busy: 2500 * time.Millisecond}, wire.Use{PID: 2, Listed: true}, wire.Use{PID: 3, Listed: true},
			wire.Use{PID: 9, Busy: 1250 * time.Millisecond},
		)},
		"not sampled": {5 * time.Second, unknown, nil, false, nil, whole(wire.Use{PID: 1, Listed: true, Unknown: true})},
		"not listed":  {5 * time.Second, nil, nil, false, nil, wire.Listing{UUID: "GPU-1"}},
		"nobody":      {5 * time.Second, []model.GPUProcess{}, nil, false, nil, whole()},
		"a pause":     {15 * time.Second, []model.GPUProcess{}, nil, false, nil, wire.Listing{UUID: "GPU-1"}},
		"instances": {
			5 * time.Second, nil, nil, true,
			[]model.GPU{{Instance: "7", Engines: []model.Figure{{Name: "sm_active", Value: 0.5}}}, {Instance: "8"}},
			wire.Listing{UUID: "GPU-1", Whole: true, Split: true, Instances: []wire.Use{{Instance: "7", Busy: 2500 * time.Millisecond}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got wire.Listing
			r := &roundReader{
				attachment: &attachment{uuid: "GPU-1"}, o: wire.Options{Interval: 5 * time.Second}, sampler: &sampler{uses: c.uses},
				listed: func(l wire.Listing) { got = l }, valuesAt: time.Unix(1000, 0),
				draft: roundResult{processes: c.processes, bare: c.bare},
			}
			if c.before > 0 {
				r.listedAt = r.valuesAt.Add(-c.before)
			}
			r.mig.Store(c.mig)
			c.want.Active = true // no engine is known
			r.reportUse()
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("%+v\nwant %+v", got, c.want)
			}
		})
	}
}

// TestActive: rounds without activity measure the idle power.
func TestActive(t *testing.T) {
	for name, want := range map[string]bool{"": true, "memory 0": true, "sm 0": false, "gr_active 0.001": false, "sm 0,decoder 1": true, "sm 0,pcie 1": false, "sm 1": true} {
		r := &roundReader{sampler: &sampler{uses: map[int]use{1: {}}}}
		for e := range strings.FieldsFuncSeq(name, func(c rune) bool { return c == ',' }) {
			engine, value, _ := strings.Cut(e, " ")
			v := map[string]float64{"0": 0, "0.001": 0.001, "1": 1}[value]
			r.draft.facts.Engines = append(r.draft.facts.Engines, model.Figure{Name: engine, Value: v})
		}
		if got := r.active(); got != want {
			t.Errorf("%q: %v", name, got)
		}
		r.sampler.uses[2] = use{0, 0, 0.01}
		if !r.active() {
			t.Errorf("%q with a process: not active", name)
		}
	}
}
