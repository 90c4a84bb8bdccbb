// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"testing"
	"time"
	"unsafe"
)

// setClock moves the wall clock of a time with a monotonic reading, whose seconds are above 30 bits of nanoseconds.
func setClock(at time.Time, by time.Duration) time.Time {
	*(*uint64)(unsafe.Pointer(&at)) += uint64(int64(by/time.Second)) << 30
	return at
}

// TestClockSet: growth leaves the window after the time of the window, also if the clock is set meanwhile.
func TestClockSet(t *testing.T) {
	now, key := time.Now(), counterKey{condition: &Condition{Window: 10 * time.Minute}, device: "mlx5_0"}
	if moved := setClock(now, time.Hour); moved.Sub(now) != 0 || !moved.Round(0).Equal(now.Round(0).Add(time.Hour)) {
		t.Fatalf("%v and %v are %v apart", now, moved, moved.Sub(now))
	}
	for _, by := range []time.Duration{-time.Hour, time.Hour} {
		var g growth
		at := func(after time.Duration, set time.Duration, value uint64) uint64 {
			g.begin(setClock(now.Add(after), set))
			defer g.end()
			return g.grown(key, value)
		}
		at(0, 0, 100)
		if n := at(time.Minute, 0, 107); n != 7 {
			t.Errorf("growth of %d, want 7", n)
		}
		if n := at(2*time.Minute, by, 109); n != 9 {
			t.Errorf("clock set by %v: growth of %d, want 9", by, n)
		}
		if n := at(13*time.Minute, by, 109); n != 0 {
			t.Errorf("clock set by %v: growth of %d after the window", by, n)
		}
	}
}
