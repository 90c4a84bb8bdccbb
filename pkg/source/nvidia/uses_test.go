// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/gpuuse"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
	fake "github.com/accelscope/accelscope/tests/fakes/nvml"
)

// TestRound: a split GPU has the uses of its instances, other GPUs have the uses of processes.
func TestRound(t *testing.T) {
	s := remoteSession{cgroups: map[int]cgroupOfProcess{11: {id: 1}}}
	l := wire.Listing{
		UUID: "GPU-1", Whole: true, Instances: []wire.Use{{Instance: "7", Unknown: true}},
		Processes: []wire.Use{{PID: 11, Busy: time.Second}, {PID: 99, Unknown: true}},
	}
	instance := gpuuse.Use{Instance: "7", Unknown: true}
	want := gpuuse.Round{GPU: "GPU-1", Whole: true, Uses: []gpuuse.Use{instance, {Cgroup: 1, Busy: time.Second}, {Unknown: true}}}
	if d := cmp.Diff(&want, s.round(&l)); d != "" {
		t.Error(d)
	}
	l.Split, want.Uses = true, []gpuuse.Use{instance}
	if d := cmp.Diff(&want, s.round(&l)); d != "" {
		t.Error(d)
	}
}

// TestUsesThroughTheChild: a GPU at 300 W with a process, and another one without a cgroup, and then at 70 W without.
func TestUsesThroughTheChild(t *testing.T) {
	r := newRemoteNode(t, 1, func(o *Options) {
		o.Interval = time.Second
		o.CgroupOf = func(pid int) (model.CgroupID, error) {
			if pid == os.Getpid() {
				return 7, nil
			}
			return 0, os.ErrNotExist
		}
	})
	r.Processes = []fake.Process{{Device: "0", PID: os.Getpid(), SM: 60, Kinds: "C"}, {Device: "0", PID: 1, SM: 20, Kinds: "C"}}
	r.Balance()
	r.Set("0", "field.83", "r", 300_000)
	r.write()
	use := func(s model.Snapshot, id model.CgroupID) (found model.GPUUse) {
		if i := slices.IndexFunc(s.GPUUses, func(u model.GPUUse) bool { return u.GPU == fake.UUID(0) && u.Cgroup == id }); i >= 0 {
			found = s.GPUUses[i]
		}
		return found
	}
	first := until(t, r.Source, func(s model.Snapshot) bool { u := use(s, 7); return u.Rounds > u.Unknown && len(s.GPUs) == 1 })
	last := until(t, r.Source, func(s model.Snapshot) bool { return use(s, 7).Rounds >= use(first, 7).Rounds+4 })
	mine, other := use(last, 7).Busy-use(first, 7).Busy, use(last, 0).Busy-use(first, 0).Busy
	if ratio := mine.Seconds() / other.Seconds(); math.Abs(ratio-3) > 0.01 {
		t.Errorf("%v and %v, want 3 to 1", mine, other)
	}
	a, b := first.GPUs[0], last.GPUs[0]
	took := b.EnergyRead.Sub(a.EnergyRead).Seconds()
	if watts := (b.Energy.Value - a.Energy.Value) / took; math.Abs(watts-300) > 3 {
		t.Errorf("%v W", watts)
	}

	r.Processes = nil
	r.Balance()
	r.Set("0", "field.83", "r", 70_000) // falls
	r.Set("0", "gpm.1", 0)
	r.Set("0", "nvmlDeviceGetDecoderUtilization", 0, 167000)
	r.Set("0", "nvmlDeviceGetOfaUtilization", 0, 167000)
	r.write()
	idle, last := last, model.Snapshot{}
	until(t, r.Source, func(s model.Snapshot) bool { // two rounds without activity
		last = s
		if use(s, 0).Active > use(idle, 0).Active || s.GPUs[0].Energy.Value < idle.GPUs[0].Energy.Value {
			idle = s
		}
		return use(s, 0).Listed >= use(idle, 0).Listed+2
	})
	a, b = idle.GPUs[0], last.GPUs[0]
	if watts := (b.Energy.Value - a.Energy.Value) / b.EnergyRead.Sub(a.EnergyRead).Seconds(); math.Abs(watts-70) > 1 {
		t.Errorf("%v W without processes", watts)
	}
}
