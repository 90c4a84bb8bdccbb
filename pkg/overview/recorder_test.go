// SPDX-License-Identifier: Apache-2.0

package overview

import (
	"testing"
	"time"
)

// TestClockSetBack: values of a later clock are not shown as values of an earlier time.
func TestClockSetBack(t *testing.T) {
	r := NewRecorder(true)
	step := func(slot int64, value *float64) {
		r.at = time.Unix(slot*int64(Step/time.Second), 0)
		r.advance(slot)
		if e, _ := r.entry(entryKey{Key{Device: "mlx5_0"}, true}, HCA, "", ""); e != nil {
			e.set(slot, value, nil)
		}
	}
	for slot := range int64(100) {
		step(1000+slot, new(1.0))
	}
	step(1050, new(2.0))
	values := r.History(nil).Series[0].Values
	for i, v := range values {
		if last := i == len(values)-1; (v != nil) != last || last && *v != 2 {
			t.Errorf("step %d of %d: %v", i, len(values), v)
		}
	}
}
