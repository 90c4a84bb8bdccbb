// SPDX-License-Identifier: Apache-2.0

package drm

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestMeter: a GPU, and an accelerator with two partitions, in listings every 5 s.
func TestMeter(t *testing.T) {
	const s = time.Second
	gpus := []model.GPU{{UUID: "a", Utilization: model.Some(0)}, {UUID: "b", Utilization: model.Some(0)}, {UUID: "b:0", Parent: "b"}, {UUID: "b:1", Parent: "b"}}
	processes := []model.GPUProcess{
		{GPU: "a", PID: 1, Cgroup: 1},
		{GPU: "a", PID: 2, Cgroup: 1},
		{GPU: "a", PID: 3},
		{GPU: "b:1", PID: 4, Cgroup: 2},
		{GPU: "gone", PID: 5, Cgroup: 3},
	}
	ratios := map[int]model.Optional{1: model.Some(0.5), 2: model.Some(0.25), 4: model.Some(1)}
	var m Meter
	at := time.Unix(1000, 0)
	add := func(after time.Duration, gpus []model.GPU, err error) {
		at = at.Add(after)
		m.Add(at, 5*s, gpus, processes, err, func(p *model.GPUProcess) model.Optional { return ratios[p.PID] })
	}
	check := func(what string, want ...model.GPUUse) {
		t.Helper()
		if d := cmp.Diff(want, m.Facts()); d != "" {
			t.Errorf("%s: %s", what, d)
		}
	}
	add(0, nil, nil)
	m.awake = map[string]bool{"a": true, "b": true}
	add(5*s, gpus, nil)
	check("a listing",
		model.GPUUse{GPU: "a", Listed: 1, Active: 1, Rounds: 1, Unknown: 1}, model.GPUUse{GPU: "a", Cgroup: 1, Rounds: 1, Busy: 3750 * time.Millisecond},
		model.GPUUse{GPU: "b", Listed: 1, Active: 1}, model.GPUUse{GPU: "b", Cgroup: 2, Rounds: 1, Busy: 2500 * time.Millisecond},
	)
	processes = processes[3:4]
	add(5*s, gpus, errors.New("some are missing"))
	add(15*s, gpus, nil)    // others may have come and gone
	add(5*s, gpus[:1], nil) // the other one is suspended
	add(5*s, gpus, nil)
	add(5*s, gpus, nil)
	check("whole or not",
		model.GPUUse{GPU: "a", Listed: 6, Active: 3, Rounds: 3, Unknown: 3}, model.GPUUse{GPU: "a", Cgroup: 1, Rounds: 1, Busy: 3750 * time.Millisecond},
		model.GPUUse{GPU: "b", Listed: 5, Active: 5, Rounds: 3, Unknown: 3},
		model.GPUUse{GPU: "b", Cgroup: 2, Rounds: 5, Busy: (2500*4 + 7500) * time.Millisecond},
	)
}

// TestMeterBegins: the time before the first listing is unknown.
func TestMeterBegins(t *testing.T) {
	var m Meter
	m.Add(time.Unix(1000, 0), 5*time.Second, []model.GPU{{UUID: "a"}}, nil, nil, nil)
	if d := cmp.Diff([]model.GPUUse{{GPU: "a", Listed: 1, Active: 1, Rounds: 1, Unknown: 1}}, m.Facts()); d != "" {
		t.Error(d)
	}
}

// TestMeterActive: a GPU whose activity nobody reports may be active.
func TestMeterActive(t *testing.T) {
	some := model.Some
	for name, c := range map[string]struct {
		utilization model.Optional
		process     []model.Optional
		want        uint64
	}{
		"unknown":            {model.Optional{}, nil, 1},
		"idle":               {some(0), nil, 0},
		"active":             {some(0.01), nil, 1},
		"an idle process":    {some(0), []model.Optional{some(0)}, 0},
		"an active process":  {some(0), []model.Optional{some(0), some(0.001)}, 1},
		"an unknown process": {some(0), []model.Optional{{}}, 1},
	} {
		m := Meter{last: time.Unix(1000, 0), awake: map[string]bool{"a": true}}
		processes := make([]model.GPUProcess, len(c.process))
		for i := range processes {
			processes[i] = model.GPUProcess{GPU: "a", PID: i}
		}
		m.Add(time.Unix(1005, 0), 5*time.Second, []model.GPU{{UUID: "a", Utilization: c.utilization}}, processes, nil,
			func(p *model.GPUProcess) model.Optional { return c.process[p.PID] })
		if got := m.Facts()[0]; got.Active != c.want || got.Listed != 1 || got.Unknown != 0 && len(c.process) == 0 {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
