// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// era is the time since the driver was loaded, or since the GPU was reset. What is kept since then, such as XIDs, ends with it. A reset
// shows in the counters that it starts again: no driver before 570 reports one.
type era struct {
	Since time.Time // when it began, as far as is known
	Reset time.Time // when a reset, or the load of the driver, was noticed; zero if none was
	// Energy is in joules, Errors the volatile ECC errors.
	Energy, Errors counter
}

// counter is a counter that a reset sets to 0. One low or high value shows no reset, because drivers report a wrong value as a success
// now and then: a value counts once the next one is not below it.
type counter struct {
	Value  model.Optional // the last value that counts, or the first one
	Latest model.Optional // the last value that was read
	At     time.Time      // when Latest was read
}

// course is how a counter went on.
type course int

const (
	unclear course = iota
	continued
	restarted
)

// next returns the counter after a reading, and how it went on. It started again if two successive values are below the one that counts.
func (c counter) next(v model.Optional, now time.Time) (counter, course) {
	if !v.Known {
		return c, unclear
	}
	if !c.Value.Known {
		return counter{v, v, now}, unclear
	}
	agree, went := v.Value >= c.Latest.Value, unclear
	switch {
	case v.Value > c.Value.Value:
		went = continued
	case v.Value < c.Value.Value && agree:
		went = restarted
	}
	if agree && (went == restarted || c.Latest.Value > c.Value.Value) {
		c.Value = c.Latest
	}
	c.Latest, c.At = v, now
	return c, went
}

// next returns the era with the counters of now. operator: an operator has reset the GPU, which counts unless the counters went on. Energy
// decides before errors do, because an administrator can set these to 0 without a reset.
func (e era) next(energy, errors model.Optional, operator bool, now time.Time) era {
	low, errorsLow := e.Energy.At, e.Errors.At // a counter that started again had its first low value then
	var went, wentErrors course
	e.Energy, went = e.Energy.next(energy, now)
	e.Errors, wentErrors = e.Errors.next(errors, now)
	if went == unclear {
		went, low = wentErrors, errorsLow
	}
	switch {
	case went == restarted:
	case operator && went == unclear:
		low = now
	default:
		return e
	}
	e = era{Since: low, Reset: low}
	e.Energy, _ = e.Energy.next(energy, now)
	e.Errors, _ = e.Errors.next(errors, now)
	return e
}

// volatileErrors returns the number of ECC errors that a reset sets to 0, unknown if the driver reports none.
func volatileErrors(errors []model.GPUErrors) (sum model.Optional) {
	for _, e := range errors {
		if e.Scope == "volatile" {
			sum = model.Some(sum.Value + float64(e.Count))
		}
	}
	return sum
}

// current returns the era of the device.
func (d *device) current() era {
	if e := d.era.Load(); e != nil {
		return *e
	}
	return era{}
}

// noticeReset begins another era if the GPU was reset. It runs in rounds, after the counters were read: errors are read in slow rounds.
func (d *device) noticeReset() {
	before := d.current()
	read := model.GPU{Energy: d.draft.facts.Energy}
	if d.rarely.due {
		read.Errors = d.draft.facts.Errors
	}
	count := len(read.Errors)
	if read.Bound(); read.Energy.Value == 0 {
		read.Energy = model.Optional{} // a GPU that was reset has used some: this is the answer of a driver that cannot measure
	}
	var errors model.Optional
	if len(read.Errors) == count { // else the sum lacks some
		errors = volatileErrors(read.Errors)
	}
	after := before.next(read.Energy, errors, d.operator, time.Now())
	d.operator = false
	if d.era.Store(&after); !after.Reset.Equal(before.Reset) {
		d.health.inforom = false
	}
}

// earlier returns what is known of a device from the session before. A GPU keeps its address when another one vanishes, and not its index.
func (st *start) earlier(d *device) (knownDevice, bool) {
	if known, ok := st.Before[d.key()]; ok || d.address == "" {
		return known, ok
	}
	for key, known := range st.Before {
		if strings.HasPrefix(key, d.address+"#") {
			return known, true
		}
	}
	return knownDevice{}, false
}

// forReset reports whether the reason of a release that an operator has ended was a reset.
func (r *release) forReset() bool {
	return r.resumed && strings.Contains(strings.ToLower(r.reason), "reset")
}
