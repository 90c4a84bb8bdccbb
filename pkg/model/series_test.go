// SPDX-License-Identifier: Apache-2.0

package model

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestSince checks the growth of a counter, and the whole value if any part of it fell.
func TestSince(t *testing.T) {
	t.Run("Count", func(t *testing.T) { testSince(t, Count(5), 7, 0, 4) })
	t.Run("Count, large", func(t *testing.T) { testSince(t, Count(math.MaxUint64-9), 9, 0, math.MaxUint64-10) })
	t.Run("CPUTime", func(t *testing.T) { testSince(t, CPUTime(5e9), 1, 0, 5e9-1) })
	t.Run("Opens", func(t *testing.T) {
		testSince(t, Opens{Allowed: 5, Denied: 3}, Opens{Allowed: 1, Denied: 10},
			Opens{}, Opens{Allowed: 4, Denied: 3}, Opens{Allowed: 5, Denied: 2}, Opens{Allowed: 4, Denied: 90}, Opens{Allowed: 90, Denied: 2})
		testSince(t, Opens{Allowed: 5, Denied: 3}, Opens{Denied: 1})
	})
	t.Run("Requests", func(t *testing.T) {
		testSince(t, Requests{Count: 5, Bytes: 4096}, Requests{Count: 2, Bytes: 100},
			Requests{}, Requests{Count: 4, Bytes: 4096}, Requests{Count: 5, Bytes: 4095}, Requests{Count: 4, Bytes: 1 << 20},
			Requests{Count: 90, Bytes: 1})
		testSince(t, Requests{Count: 5}, Requests{Count: 1}) // receives have no bytes
	})
	t.Run("Histogram", func(t *testing.T) {
		const end = HistogramBuckets - 1
		testSince(t, Histogram{Count: 6, Sum: 1000, Buckets: [HistogramBuckets]uint64{0: 1, 7: 2, end: 3}},
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
		testSince(t, FineHistogram{Count: 6, Sum: 1000, Buckets: [FineBuckets]uint64{0: 1, 7: 2, end: 3}},
			FineHistogram{Count: 3, Sum: 50, Buckets: [FineBuckets]uint64{7: 1, 8: 1, end: 1}},
			FineHistogram{},
			FineHistogram{Count: 5, Sum: 1000, Buckets: [FineBuckets]uint64{0: 1, 7: 2, end: 3}},
			FineHistogram{Count: 6, Sum: 999, Buckets: [FineBuckets]uint64{0: 1, 7: 2, end: 3}},
			FineHistogram{Count: 90, Sum: 9000, Buckets: [FineBuckets]uint64{7: 87, end: 3}},
			FineHistogram{Count: 90, Sum: 9000, Buckets: [FineBuckets]uint64{0: 88, 7: 2}},
			FineHistogram{Count: 90, Sum: 9000, Buckets: [FineBuckets]uint64{0: 86, 7: 2, end: 2}})
	})
}

// testSince checks last plus growth, and each of restarted, which have a part that is smaller
// than in last.
func testSince[V comparable, P Cumulative[V]](t *testing.T, last, growth V, restarted ...V) {
	t.Helper()
	var zero V
	before := last
	now := last
	P(&now).Add(&growth)
	after := now
	if got := P(&now).Since(&last); got != growth {
		t.Errorf("%+v since %+v is %+v, want %+v", now, last, got, growth)
	}
	if got := P(&now).Since(&now); got != zero {
		t.Errorf("%+v since the same is %+v", now, got)
	}
	if got := P(&now).Since(&zero); got != now {
		t.Errorf("%+v since nothing is %+v", now, got)
	}
	for _, again := range restarted {
		if got := P(&again).Since(&last); got != again {
			t.Errorf("%+v after %+v is %+v, want all of it", again, last, got)
		}
	}
	if last != before || now != after {
		t.Errorf("changed: %+v to %+v, %+v to %+v", before, last, after, now)
	}
}

// TestSinceAddsUp checks that the growths of many reads add up to the total count, however
// often the counter was reset.
func TestSinceAddsUp(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var counter, last, sum, want FineHistogram
	restarts := 0
	for range 2000 {
		if last.Count > 5 && random.IntN(20) == 0 {
			counter = FineHistogram{}
			restarts++
		}
		for range random.IntN(3) {
			took := random.Uint64N(1 << 30)
			one := FineHistogram{Count: 1, Sum: took}
			one.Buckets[took%FineBuckets] = 1
			counter.Add(&one)
			want.Add(&one)
		}
		grown := counter.Since(&last)
		sum.Add(&grown)
		last = counter
	}
	if sum != want || want.Count < 1000 || restarts < 10 {
		t.Errorf("adds up to %+v, want %+v; %d restarts", sum, want, restarts)
	}
}
