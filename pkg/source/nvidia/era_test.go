// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestEra: what the counters of a GPU say of a reset. One wrong value, as drivers report it as a success, says nothing.
func TestEra(t *testing.T) {
	const no = -1 // the value is not known
	begun := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		energy, errors []float64 // one each second
		told           int       // the reading before which an operator has reset the GPU; 0 if none has
		reset          int       // the reading from which on the counters belong to the next era; 0 if there is none
	}{
		"it goes on":                         {energy: []float64{40, 50, 60, 60}, errors: []float64{1, 1, 1, 1}},
		"energy starts again":                {energy: []float64{40, 50, 2, 3, 60}, errors: []float64{1, 1, 1, 1, 1}, reset: 2},
		"energy starts again, idle":          {energy: []float64{40, 50, 2, 2, 2}, reset: 2},
		"energy starts again, and is used":   {energy: []float64{40, 50, 2, 39, 60}, reset: 2},
		"errors start again":                 {energy: []float64{no, no, no, no}, errors: []float64{1, 1, 0, 0}, reset: 2},
		"errors start again, idle":           {energy: []float64{50, 50, 50, 50}, errors: []float64{1, 1, 0, 0}, reset: 2},
		"errors start again, rarely read":    {errors: []float64{1, no, 1, no, 0, no, 0}, reset: 4},
		"both start again":                   {energy: []float64{40, 50, 2, 3, 4}, errors: []float64{1, 1, no, 0, 0}, reset: 2},
		"an administrator sets errors to 0":  {energy: []float64{40, 50, 60, 70, 80}, errors: []float64{1, 1, 0, 0, 0}},
		"nothing is known":                   {energy: []float64{no, no}},
		"no longer known":                    {energy: []float64{40, 50, no, no, 60}, errors: []float64{1, 1, no, no, 1}},
		"energy is 0 once":                   {energy: []float64{40, 50, 0, 60, 70}},
		"energy is low once":                 {energy: []float64{40, 50, 7, 60, 70}},
		"energy is high once":                {energy: []float64{40, 50, 9e12, 60, 70, 80}},
		"energy starts again after one":      {energy: []float64{50, 2, 3, 4}, reset: 1},
		"energy is high, then low":           {energy: []float64{40, 50, 9e12, 7, 60, 70}},
		"energy is low twice, between":       {energy: []float64{40, 50, 7, 60, 7, 70}},
		"energy is low, then not known":      {energy: []float64{40, 50, 7, no, 60}},
		"errors are 0 once":                  {errors: []float64{5, 5, 0, 5, 5}},
		"errors are many once":               {errors: []float64{5, 5, 9e14, 5, 5}},
		"told":                               {energy: []float64{no, no, no}, told: 2, reset: 2},
		"told, and no errors before":         {errors: []float64{0, 0, 0}, told: 2, reset: 2},
		"told, and the energy goes on":       {energy: []float64{40, 50, 60, 70}, told: 2},
		"told at once, and it goes on":       {energy: []float64{50, 60, 70}, told: 1},
		"told, and the energy starts again":  {energy: []float64{40, 50, 2, 3, 4}, told: 2, reset: 2},
		"told, and there are more errors":    {errors: []float64{1, 1, 2, 2}, told: 2},
		"told, and errors were not known":    {errors: []float64{no, no, 2, 2}, told: 2, reset: 2},
		"told, after a high value of energy": {energy: []float64{40, 50, 9e12, 60, 70}, told: 3},
	} {
		at := func(values []float64, i int) model.Optional {
			if i >= len(values) || values[i] == no {
				return model.Optional{}
			}
			return model.Some(values[i])
		}
		e := era{Since: begun}
		for i := range max(len(c.energy), len(c.errors)) {
			e = e.next(at(c.energy, i), at(c.errors, i), c.told > 0 && i == c.told, begun.Add(time.Duration(i)*time.Second))
		}
		since := begun.Add(time.Duration(c.reset) * time.Second)
		if !e.Since.Equal(since) || e.Reset.IsZero() != (c.reset == 0) || c.reset > 0 && !e.Reset.Equal(since) {
			t.Errorf("%s: it began after %v, reset at %v: %+v", name, e.Since.Sub(begun), e.Reset, e)
		}
	}
}

// TestXIDAfterReset: a reset ends the problem of a critical XID: one that the counters show, during a release or without one, and one
// that only an operator knows of. A release without a reset does not, and no other GPU that vanishes meanwhile.
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
	s.xids.listen("GPU-1")
	s.xids.add("GPU-1", 95, time.Now())
	until(t, s, func(s model.Snapshot) bool { return has(s.GPUs[1].Problems, model.ProblemXID) })
	d.unplug(other)
	got := until(t, s, ready(1))
	if g := got.GPUs[0]; g.UUID != "GPU-1" || !has(g.Problems, model.ProblemXID) || !g.Reset.IsZero() {
		t.Errorf("%+v", g)
	}
}
