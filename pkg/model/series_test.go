// SPDX-License-Identifier: Apache-2.0

package model

import (
	"math"
	"testing"
)

// TestCumulative checks Add and Subtract, and that Fell is true if any part fell.
func TestCumulative(t *testing.T) {
	t.Run("Count", func(t *testing.T) { testCumulative(t, Count(5), 7, 0, 4) })
	t.Run("Count, large", func(t *testing.T) { testCumulative(t, Count(math.MaxUint64-9), 9, 0, math.MaxUint64-10) })
	t.Run("CPUTime", func(t *testing.T) { testCumulative(t, CPUTime(5e9), 1, 0, 5e9-1) })
	t.Run("Opens", func(t *testing.T) {
		testCumulative(t, Opens{Allowed: 5, Denied: 3}, Opens{Allowed: 1, Denied: 10},
			Opens{}, Opens{Allowed: 4, Denied: 3}, Opens{Allowed: 5, Denied: 2}, Opens{Allowed: 4, Denied: 90}, Opens{Allowed: 90, Denied: 2})
		testCumulative(t, Opens{Allowed: 5, Denied: 3}, Opens{Denied: 1})
	})
	t.Run("Requests", func(t *testing.T) {
		testCumulative(t, Requests{Count: 5, Bytes: 4096}, Requests{Count: 2, Bytes: 100},
			Requests{}, Requests{Count: 4, Bytes: 4096}, Requests{Count: 5, Bytes: 4095}, Requests{Count: 4, Bytes: 1 << 20},
			Requests{Count: 90, Bytes: 1})
		testCumulative(t, Requests{Count: 5}, Requests{Count: 1}) // receives have no bytes
	})
	t.Run("Allocations", func(t *testing.T) {
		testCumulative(t, Allocations{Count: 5, Bytes: 4096}, Allocations{Count: 2, Bytes: 100},
			Allocations{}, Allocations{Count: 4, Bytes: 4096}, Allocations{Count: 5, Bytes: 4095}, Allocations{Count: 4, Bytes: 1 << 20},
			Allocations{Count: 90, Bytes: 1})
	})
	t.Run("Histogram", func(t *testing.T) {
		const end = HistogramBuckets - 1
		testCumulative(t, Histogram{Count: 6, Sum: 1000, Buckets: [HistogramBuckets]uint64{0: 1, 7: 2, end: 3}},
			Histogram{Count: 3, Sum: 50, Buckets: [HistogramBuckets]uint64{7: 1, 8: 1, end: 1}},
			Histogram{},
			Histogram{Count: 5, Sum: 1000, Buckets: [HistogramBuckets]uint64{0: 1, 7: 2, end: 3}},
			Histogram{Count: 6, Sum: 999, Buckets: [HistogramBuckets]uint64{0: 1, 7: 2, end: 3}},
			Histogram{Count: 90, Sum: 9000, Buckets: [HistogramBuckets]uint64{7: 87, end: 3}},
			Histogram{Count: 90, Sum: 9000, Buckets: [HistogramBuckets]uint64{0: 88, 7: 2}},
			Histogram{Count: 90, Sum: 9000, Buckets: [HistogramBuckets]uint64{0: 86, 7: 2, end: 2}})
	})
	t.Run("FineHistogram", func(t *testing.T) {
		const end = FineBuckets - 1
		testCumulative(t, FineHistogram{Count: 6, Sum: 1000, Buckets: [FineBuckets]uint64{0: 1, 7: 2, end: 3}},
			FineHistogram{Count: 3, Sum: 50, Buckets: [FineBuckets]uint64{7: 1, 8: 1, end: 1}},
			FineHistogram{},
			FineHistogram{Count: 5, Sum: 1000, Buckets: [FineBuckets]uint64{0: 1, 7: 2, end: 3}},
			FineHistogram{Count: 6, Sum: 999, Buckets: [FineBuckets]uint64{0: 1, 7: 2, end: 3}},
			FineHistogram{Count: 90, Sum: 9000, Buckets: [FineBuckets]uint64{7: 87, end: 3}},
			FineHistogram{Count: 90, Sum: 9000, Buckets: [FineBuckets]uint64{0: 88, 7: 2}},
			FineHistogram{Count: 90, Sum: 9000, Buckets: [FineBuckets]uint64{0: 86, 7: 2, end: 2}})
	})
}

// testCumulative checks last plus growth, and each of restarted, which have a part smaller than in last.
func testCumulative[V comparable, P Cumulative[V]](t *testing.T, last, growth V, restarted ...V) {
	t.Helper()
	var zero V
	before, now := last, last
	P(&now).Add(&growth)
	after := now
	for _, earlier := range []V{zero, last, now} {
		if P(&now).Fell(&earlier) {
			t.Errorf("%+v fell after %+v", now, earlier)
		}
	}
	if !P(&last).Fell(&now) {
		t.Errorf("%+v did not fall after %+v", last, now)
	}
	for _, again := range restarted {
		if !P(&again).Fell(&last) {
			t.Errorf("%+v did not fall after %+v", again, last)
		}
	}
	if last != before || now != after {
		t.Errorf("changed: %+v to %+v, %+v to %+v", before, last, after, now)
	}
	P(&now).Subtract(&last)
	if now != growth {
		t.Errorf("%+v minus %+v is %+v, want %+v", after, last, now, growth)
	}
	// Values below zero wrap, and come back.
	P(&now).Subtract(&after)
	P(&now).Add(&last)
	if now != zero {
		t.Errorf("%+v is left of %+v", now, after)
	}
}
