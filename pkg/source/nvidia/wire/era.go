// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// Era is the time since the driver was loaded, or since the GPU was reset. What is kept since then, such as XIDs, ends
// with the era. The counters show a reset by starting again: drivers before 570 do not report resets.
type Era struct {
	Since time.Time // when the era began, if known
	Reset time.Time // when a reset, or the load of the driver, was noticed; or zero
	// Energy is in joules, Errors the volatile ECC errors.
	Energy, Errors Counter
}

// Counter is a counter that a reset sets to 0. Now and then drivers return a wrong value without an error, so one low
// or high value does not show a reset: a value counts once the next value is not below it.
type Counter struct {
	Value  model.Optional // the last value that counts, or the first value
	Latest model.Optional // the last value that was read
	At     time.Time      // when Latest was read
}

type course int

const (
	unclear course = iota
	continued
	restarted
)

// next returns the counter after a reading, and its course. The counter started again if two successive values are
// below the value that counts.
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

// Next returns the era with the counters of now. operator: an operator has reset the GPU; this counts unless the
// counters went on. Energy has priority over errors, because an administrator can set the errors to 0 without a reset.
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
