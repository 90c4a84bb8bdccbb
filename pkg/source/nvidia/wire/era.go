// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// Era is the time since the driver was loaded, or since the GPU was reset. What is kept since then, such as XIDs, ends with it. A reset
// shows in the counters that it starts again: no driver before 570 reports one.
type Era struct {
	Since time.Time // when it began, as far as is known
	Reset time.Time // when a reset, or the load of the driver, was noticed; zero if none was
	// Energy is in joules, Errors the volatile ECC errors.
	Energy, Errors Counter
}

// Counter is a counter that a reset sets to 0. One low or high value shows no reset, because drivers report a wrong value as a success
// now and then: a value counts once the next one is not below it.
type Counter struct {
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
func (c Counter) next(v model.Optional, now time.Time) (Counter, course) {
	if !v.Known {
		return c, unclear
	}
	if !c.Value.Known {
		return Counter{v, v, now}, unclear
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

// Next returns the era with the counters of now. operator: an operator has reset the GPU, which counts unless the counters went on. Energy
// decides before errors do, because an administrator can set these to 0 without a reset.
func (e Era) Next(energy, errors model.Optional, operator bool, now time.Time) Era {
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
	e = Era{Since: low, Reset: low}
	e.Energy, _ = e.Energy.next(energy, now)
	e.Errors, _ = e.Errors.next(errors, now)
	return e
}
