// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// TestNonfatalXIDs: XIDs of NVLinks are no problem while the kernel log says of all of them that they are not fatal.
func TestNonfatalXIDs(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	var fatal atomic.Bool
	d.options.Nonfatal = func(driver model.FaultDriver, pciAddress, code string, _ time.Time) bool {
		return driver == model.DriverNVIDIA && pciAddress == address && code == "145" && !fatal.Load()
	}
	d.plug(address, "GPU-1", 0)
	s := d.source()
	until(t, s, ready(1))
	s.xids.Listen("GPU-1")
	s.xids.Add("GPU-1", 145, time.Now())
	got := until(t, s, func(s model.Snapshot) bool { return len(s.GPUs[0].XIDs) == 1 })
	if has(got.GPUs[0].Problems, model.ProblemXID) {
		t.Errorf("nonfatal: %+v", got.GPUs[0].Problems)
	}
	fatal.Store(true)
	until(t, s, func(s model.Snapshot) bool { return has(s.GPUs[0].Problems, model.ProblemXID) })
	fatal.Store(false)
	until(t, s, func(s model.Snapshot) bool { return !has(s.GPUs[0].Problems, model.ProblemXID) })
	s.xids.Add("GPU-1", 95, time.Now())
	until(t, s, func(s model.Snapshot) bool { return has(s.GPUs[0].Problems, model.ProblemXID) })
}

// TestNonfatalAfterReset: what was fatal before a reset makes no XID after it critical.
func TestNonfatalAfterReset(t *testing.T) {
	reset := time.Unix(1000, 0)
	s := &Source{xids: wire.NewXIDs()}
	for name, c := range map[string]struct {
		reset time.Time
		want  bool
	}{"it was reset": {reset, false}, "it was not": {time.Time{}, true}} {
		s.o.Nonfatal = func(_ model.FaultDriver, _, code string, since time.Time) bool {
			return code == "149" && since.Equal(c.reset)
		}
		snap := model.Snapshot{GPUs: []model.GPU{{
			UUID: "GPU-1", Reset: c.reset, Problems: []model.GPUCondition{{Name: model.ProblemXID, Active: true}},
			XIDs: []model.XID{{Code: 95, Count: 1, Last: reset.Add(-time.Second)}, {Code: 149, Count: 2, Last: reset.Add(time.Second)}},
		}}}
		if s.excuse(&snap); has(snap.GPUs[0].Problems, model.ProblemXID) != c.want {
			t.Errorf("%s: %+v", name, snap.GPUs[0].Problems)
		}
	}
}
