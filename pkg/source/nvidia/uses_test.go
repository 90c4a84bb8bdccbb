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

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
	fake "github.com/accelscope/accelscope/tests/fakes/nvml"
)

func TestUses(t *testing.T) {
	const s = time.Second
	var u uses
	cgroups := map[int]model.CgroupID{11: 1, 12: 1, 13: 2}
	add := func(l wire.Listing) {
		l.UUID = "GPU-1"
		u.add(&l, func(pid int) model.CgroupID { return cgroups[pid] })
	}
	add(wire.Listing{}) // the first round
	add(wire.Listing{Whole: true, Processes: []wire.Use{{PID: 11, Busy: 2 * s}, {PID: 12, Busy: s}, {PID: 13, Busy: s}}})
	add(wire.Listing{Whole: true, Processes: []wire.Use{{PID: 11, Busy: s}, {PID: 12, Unknown: true}, {PID: 99, Busy: s}}})
	add(wire.Listing{Whole: true, Processes: []wire.Use{{PID: 13, Busy: -s}}})
	add(wire.Listing{Whole: true})
	add(wire.Listing{Whole: true, Split: true, Processes: []wire.Use{{PID: 11}}, Instances: []wire.Use{{Instance: "7", Busy: s}}})
	want := []model.GPUUse{
		{GPU: "GPU-1", Rounds: 2, Unknown: 1, Busy: s},
		{GPU: "GPU-1", Cgroup: 1, Rounds: 2, Unknown: 1, Busy: 4 * s},
		{GPU: "GPU-1", Cgroup: 2, Rounds: 2, Busy: s},
		{GPU: "GPU-1", Instance: "7", Rounds: 1, Busy: s},
	}
	if d := cmp.Diff(want, u.facts()); d != "" {
		t.Error(d)
	}

	source := &Source{uses: uses{rows: u.rows}}
	source.Forget([]model.CgroupID{0, 2})
	if rows := source.uses.facts(); len(rows) != 3 {
		t.Errorf("after Forget: %+v", rows)
	}
	for pid := range 2 * maxUses {
		cgroups[pid] = model.CgroupID(pid + 1)
	}
	for pid := range 2 * maxUses {
		add(wire.Listing{Whole: true, Processes: []wire.Use{{PID: pid, Busy: 1}}})
	}
	var busy time.Duration
	rows := u.facts()
	for _, r := range rows {
		busy += r.Busy
	}
	if want := 6*s + 2*maxUses; len(rows) > maxUses+1 || busy != want {
		t.Errorf("%d rows with %v, want %v", len(rows), busy, want)
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
	if watts := (b.Energy.Value - a.Energy.Value) / took; math.Abs(watts-300) > 3 || b.IdlePower.Known {
		t.Errorf("%v W, idle %v", watts, b.IdlePower)
	}

	r.Processes = nil
	r.Balance()
	r.Set("0", "field.83", "r", 70_000) // falls
	r.Set("0", "gpm.1", 0)
	r.Set("0", "nvmlDeviceGetDecoderUtilization", 0, 167000)
	r.Set("0", "nvmlDeviceGetOfaUtilization", 0, 167000)
	r.write()
	idle := until(t, r.Source, func(s model.Snapshot) bool { return s.GPUs[0].IdlePower.Known })
	if watts := idle.GPUs[0].IdlePower.Value; math.Abs(watts-70) > 1 {
		t.Errorf("%v W without processes", watts)
	}
}
