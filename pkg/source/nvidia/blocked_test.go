// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/child"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
	fake "github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/fakes/nvml/nvmltest"
)

// states returns a condition: each device, in order, has its state.
func states(want ...model.State) func(model.Snapshot) bool {
	return func(s model.Snapshot) bool {
		if len(s.DeviceStates) != len(want) {
			return false
		}
		for i, d := range s.DeviceStates {
			if d.State != want[i] {
				return false
			}
		}
		return true
	}
}

const (
	isOK      = model.StateOK
	isStuck   = model.StateStuck
	isBlocked = model.StateBlocked
)

// TestBlockedBehindAnother: a GPU that hangs holds a lock of the driver for which the others wait.
func TestBlockedBehindAnother(t *testing.T) {
	var logged atomic.Pointer[string] // address of a GPU with XID 119 in the kernel log
	r := newRemoteNode(t, 3, func(o *Options) {
		o.FirstFault = func(driver model.FaultDriver, codes []string, since time.Time) (string, bool) {
			if driver != model.DriverNVIDIA || strings.Join(codes, " ") != "119 120" || time.Since(since) > 10*time.Minute {
				t.Errorf("asked for %s %v since %v", driver, codes, since)
			}
			if address := logged.Load(); address != nil {
				return *address, true
			}
			return "", false
		}
	})
	until(t, r.Source, ready(3))
	r.Block("1", "nvmlDeviceGetPowerUsage")
	r.write()
	until(t, r.Source, states(isOK, isStuck, isOK)) // it holds no lock
	r.Block(fake.System, "*")
	r.write()
	s := until(t, r.Source, states(isBlocked, isStuck, isBlocked))
	for i, g := range s.GPUs {
		blocked := i != 1
		if g.Blocked != blocked || (g.Problems == nil) != blocked || has(g.Problems, model.ProblemStuck) == blocked || g.Utilization.Known {
			t.Errorf("%+v", g)
		}
	}
	if why := s.DeviceStates[0].Reason; !strings.Contains(why, "waits for GPU 1:") {
		t.Errorf("the reason is %q", why)
	}
	address := fake.Address(2)
	logged.Store(&address)
	until(t, r.Source, states(isBlocked, isBlocked, isStuck))
	r.Heal(fake.System, "*")
	r.write()
	until(t, r.Source, states(isOK, isStuck, isOK))
	r.Heal("1", "nvmlDeviceGetPowerUsage")
	r.write()
	until(t, r.Source, ready(3))
}

// TestBlockedWithoutALibrary: the child is killed, and the lock of the driver is still held, so that no other child can open
// the library.
func TestBlockedWithoutALibrary(t *testing.T) {
	r := newRemoteNode(t, 2, func(o *Options) { o.hangLimit = 3 * time.Second })
	until(t, r.Source, ready(2))
	r.Block("1", "nvmlDeviceGetPowerUsage")
	r.write()
	until(t, r.Source, states(isOK, isStuck))
	r.Block(fake.System, "*")
	r.write()
	nvmltest.Eventually(t, "the child is killed", func() bool { return r.ends(endedByHang) > 0 })
	s := until(t, r.Source, states(isBlocked, isStuck))
	if len(s.GPUs) != 2 || !s.GPUs[0].Blocked || s.GPUs[0].Problems != nil || !has(s.GPUs[1].Problems, model.ProblemStuck) {
		t.Errorf("%+v", s.GPUs)
	}
	r.Heal(fake.System, "*")
	r.write()
	until(t, r.Source, states(isOK, isStuck)) // it is left alone for a minute
}

// TestBlock checks who is stuck and who is blocked.
func TestBlock(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	skipped := time.Time{} // not called any more
	xid := func(code uint64, at time.Time) []model.XID { return []model.XID{{Code: code, Count: 1, Last: at}} }
	for name, c := range map[string]struct {
		waiting   []time.Time // of each GPU
		others    []model.DeviceState
		suspended bool // GPU 0
		held      bool // a child that was killed has not ended
		answered  bool // a GPU has answered since
		xids      map[int][]model.XID
		want      []model.State
	}{
		"one GPU":         {waiting: []time.Time{ago(time.Minute)}, want: []model.State{isStuck}},
		"the first one":   {waiting: []time.Time{ago(10 * time.Second), ago(20 * time.Second)}, want: []model.State{isBlocked, isStuck}},
		"another answers": {waiting: []time.Time{ago(10 * time.Second), ago(20 * time.Second)}, others: []model.DeviceState{{State: isOK}}, want: []model.State{isStuck, isStuck, isOK}},
		"another fails": {
			waiting: []time.Time{ago(10 * time.Second), ago(20 * time.Second)}, others: []model.DeviceState{{State: model.StateFailed}},
			want: []model.State{isStuck, isStuck, model.StateFailed},
		},
		"another is late": {
			waiting: []time.Time{ago(10 * time.Second), ago(20 * time.Second)}, others: []model.DeviceState{{State: isOK, Waiting: ago(time.Second)}},
			want: []model.State{isBlocked, isStuck, isOK},
		},
		"another sleeps": {
			waiting: []time.Time{{}, ago(10 * time.Second), ago(20 * time.Second)}, suspended: true,
			want: []model.State{isOK, isBlocked, isStuck},
		},
		"one was left alone":                    {waiting: []time.Time{skipped, ago(20 * time.Second)}, want: []model.State{isStuck, isStuck}},
		"one was left alone and holds the lock": {waiting: []time.Time{skipped, ago(20 * time.Second)}, held: true, want: []model.State{isStuck, isBlocked}},
		"one was left alone, and others answered then": {
			waiting: []time.Time{skipped, ago(9 * time.Second), ago(20 * time.Second)}, held: true, answered: true,
			want: []model.State{isStuck, isBlocked, isStuck},
		},
		"both were left alone":                    {waiting: []time.Time{skipped, skipped}, held: true, want: []model.State{isStuck, isStuck}},
		"an XID of the firmware":                  {waiting: []time.Time{ago(9 * time.Second), ago(20 * time.Second)}, xids: map[int][]model.XID{0: xid(119, now)}, want: []model.State{isStuck, isBlocked}},
		"an XID of the firmware, left alone":      {waiting: []time.Time{ago(9 * time.Second), skipped}, held: true, xids: map[int][]model.XID{0: xid(120, now)}, want: []model.State{isStuck, isBlocked}},
		"the earlier of two XIDs":                 {waiting: []time.Time{ago(9 * time.Second), ago(8 * time.Second)}, xids: map[int][]model.XID{0: xid(119, now), 1: xid(120, ago(time.Second))}, want: []model.State{isBlocked, isStuck}},
		"an old XID of the firmware":              {waiting: []time.Time{ago(9 * time.Second), ago(20 * time.Second)}, xids: map[int][]model.XID{0: xid(119, ago(time.Hour))}, want: []model.State{isBlocked, isStuck}},
		"an XID of a program":                     {waiting: []time.Time{ago(9 * time.Second), ago(20 * time.Second)}, xids: map[int][]model.XID{0: xid(31, now)}, want: []model.State{isBlocked, isStuck}},
		"an XID of the firmware, another answers": {waiting: []time.Time{ago(9 * time.Second)}, others: []model.DeviceState{{State: isOK}}, xids: map[int][]model.XID{1: xid(119, now)}, want: []model.State{isStuck, isOK}},
	} {
		h, snap := &hangs{children: &children{}}, model.Snapshot{}
		if c.held {
			h.children.abandon(&child.Process{})
			h.suspect = suspect{key: "0", answered: c.answered}
		}
		for i, at := range c.waiting {
			d := model.DeviceState{State: isStuck, Waiting: at}
			if i == 0 && c.suspended {
				d.State = isOK
			}
			snap.DeviceStates = append(snap.DeviceStates, d)
		}
		snap.DeviceStates = append(snap.DeviceStates, c.others...)
		for i := range snap.DeviceStates {
			id := string(rune('0' + i))
			snap.DeviceStates[i].Device = id
			snap.GPUs = append(snap.GPUs,
				model.GPU{ID: id, UUID: "GPU-" + id, XIDs: c.xids[i], Suspended: i == 0 && c.suspended, Problems: []model.GPUCondition{}},
				model.GPU{ID: id + ":0", UUID: "MIG-" + id, Parent: "GPU-" + id, Problems: []model.GPUCondition{}})
		}
		before := model.Snapshot{DeviceStates: slices.Clone(snap.DeviceStates), GPUs: slices.Clone(snap.GPUs)}
		reading := snap
		if h.block(&snap); !states(c.want...)(snap) {
			t.Errorf("%s: %+v, want %v", name, snap.DeviceStates, c.want)
		}
		if !reflect.DeepEqual(reading, before) {
			t.Errorf("%s: the reading of the session was changed", name)
		}
		for i, d := range snap.DeviceStates {
			for _, g := range snap.GPUs[2*i : 2*i+2] {
				if blocked := d.State == isBlocked; g.Blocked != blocked || (g.Problems == nil) != blocked {
					t.Errorf("%s: %+v", name, g)
				}
			}
		}
	}
}

// TestHungFirst checks which GPU is left alone when a child was killed.
func TestHungFirst(t *testing.T) {
	key := func(n int) string { return fake.Address(n) + "#" + string(rune('0'+n)) }
	for name, c := range map[string]struct {
		all, held       bool
		logged, earlier int // -1: none
		want            int
	}{
		"the first call":                           {all: true, logged: -1, earlier: -1, want: 1},
		"others answer":                            {logged: 2, earlier: 0, held: true, want: 1},
		"it is in the log":                         {all: true, logged: 2, earlier: 0, held: true, want: 2},
		"an earlier one holds the lock":            {all: true, logged: -1, earlier: 0, held: true, want: 0},
		"the child of an earlier one has ended":    {all: true, logged: -1, earlier: 0, want: 1},
		"a GPU in the log that was removed before": {all: true, logged: 7, earlier: -1, want: 1},
	} {
		h, known := &hangs{children: &children{}}, map[string]wire.KnownDevice{}
		for n := range 3 {
			known[key(n)] = wire.KnownDevice{}
		}
		if c.earlier >= 0 {
			h.suspect = suspect{key: key(c.earlier)}
		}
		if c.held {
			h.children.abandon(&child.Process{})
		}
		h.firstFault = func(model.FaultDriver, []string, time.Time) (string, bool) {
			return fake.Address(max(c.logged, 0)), c.logged >= 0
		}
		if got := h.first(&hungError{[]string{key(1), key(0)}, c.all}, known); got != key(c.want) {
			t.Errorf("%s: %s, want %s", name, got, key(c.want))
		}
	}
}
