// SPDX-License-Identifier: Apache-2.0

package model

import (
	"testing"
	"time"
)

// TestObserve uses bounds in nanoseconds: 2^-20 s is 953.67 ns, from 2^-9 s on all bounds are whole.
func TestObserve(t *testing.T) {
	buckets := map[time.Duration]int{
		-1: 0, 0: 0, 953: 0, 954: 1, 1907: 1, 1908: 2, 33 * time.Second: 26, time.Hour: 26,
		1953125: 11, 1953126: 12, time.Second: 20, time.Second + 1: 21, 32 * time.Second: 25, 32*time.Second + 1: 26,
	}
	for d, bucket := range buckets {
		var h Histogram
		h.Observe(d)
		h.Observe(d)
		want := Histogram{Count: 2, Sum: 2 * uint64(d)}
		want.Buckets[bucket] = 2
		if h != want {
			t.Errorf("%v: %+v, want %+v", d, h, want)
		}
	}
}
