// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestXIDAfterReset: a reset ends the problem of a critical XID: a reset that the counters show, with or without a release, and a reset
// that only an operator knows. A release without a reset does not, and no other GPU that vanishes meanwhile.
func TestXIDAfterReset(t *testing.T) {
	for name, c := range map[string]struct {
		reason string
		change func(*remoteNode)
		reset  bool
	}{
		"the counters show it": {"maintenance", func(r *remoteNode) { r.energy(7) }, true},
		"an operator says so":  {"reset", func(*remoteNode) {}, true},
		"there was none":       {"maintenance", func(*remoteNode) {}, false},
		"it was not done":      {"reset", func(r *remoteNode) { r.energy(123456999000) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRemoteNode(t, 2, nil)
			r.failed(t)
			r.Release(c.reason, time.Hour)
			c.change(r)
			r.Resume()
			r.after(t, c.reset)
		})
	}
	t.Run("without a release", func(t *testing.T) {
		r := newRemoteNode(t, 2, nil)
		r.failed(t)
		r.energy(7)
		r.after(t, true)
	})
}

// TestXIDAfterWrongEnergy: values of energy that cannot be, however often the driver reports them, end no critical XID.
func TestXIDAfterWrongEnergy(t *testing.T) {
	for name, mj := range map[string]int{"too high": 9e18, "zero": 0} {
		t.Run(name, func(t *testing.T) {
			r := newRemoteNode(t, 2, nil)
			r.failed(t)
			r.energy(mj)
			until(t, r.Source, func(s model.Snapshot) bool { return ready(2)(s) && s.GPUs[0].Energy.Value == 0 })
			time.Sleep(5 * r.o.Interval)
			r.energy(123456999000)
			r.after(t, false)
		})
	}
}

// energy sets the energy counter of the first GPU, in millijoules.
func (r *remoteNode) energy(mj int) {
	for _, key := range []string{"nvmlDeviceGetTotalEnergyConsumption", "field.83"} {
		r.Set("0", key, mj)
	}
	r.write()
}

// failed lets a driver that knows no recovery action report XID 95.
func (r *remoteNode) failed(t *testing.T) {
	t.Helper()
	r.Unset("0", "field.230")
	r.energy(123456789000)
	until(t, r.Source, func(s model.Snapshot) bool {
		return ready(2)(s) && s.GPUs[0].XIDs != nil && s.GPUs[0].RecoveryAction == "" && s.GPUs[0].Energy.Known
	})
	r.XID("0", 95)
	r.write()
	until(t, r.Source, func(s model.Snapshot) bool { return has(s.GPUs[0].Problems, model.ProblemXID) })
}

// after checks whether the problem has ended.
func (r *remoteNode) after(t *testing.T, reset bool) {
	t.Helper()
	if !reset {
		time.Sleep(10 * r.o.Interval)
	}
	s := until(t, r.Source, func(s model.Snapshot) bool {
		return ready(2)(s) && s.GPUs[0].Energy.Known && has(s.GPUs[0].Problems, model.ProblemXID) != reset
	})
	if g := s.GPUs[0]; g.Reset.IsZero() == reset || r.xid(s, 95) != 1 {
		t.Errorf("%v, %+v", g.Reset, g.XIDs)
	}
}

// TestXIDStaysWithoutReset: another GPU that vanishes makes the sensor open the library again, and ends nothing.
func TestXIDStaysWithoutReset(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	const other = "0000:01:00.0" // before the other one, whose index changes
	d.plug(other, "GPU-0", 0)
	d.plug(address, "GPU-1", 1)
	s := d.source()
	until(t, s, ready(2))
	s.xids.Listen("GPU-1")
	s.xids.Add("GPU-1", 95, time.Now())
	until(t, s, func(s model.Snapshot) bool { return has(s.GPUs[1].Problems, model.ProblemXID) })
	d.unplug(other)
	got := until(t, s, ready(1))
	if g := got.GPUs[0]; g.UUID != "GPU-1" || !has(g.Problems, model.ProblemXID) || !g.Reset.IsZero() {
		t.Errorf("%+v", g)
	}
}
