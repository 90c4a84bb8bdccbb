// SPDX-License-Identifier: Apache-2.0

package model

import (
	"math"
	"math/bits"
	"time"
)

// A Histogram counts durations in buckets with powers of two of a second as upper bounds, like the BPF programs and
// Prometheus native histograms of schema 0: no conversion rounds them.
type Histogram struct {
	Count uint64
	// Sum is the sum of all durations, in nanoseconds.
	Sum uint64
	// Buckets[i] counts durations in (2^(i-1), 2^i] · 2^HistogramMinExp seconds. The first bucket also has everything
	// shorter, the last bucket everything longer than 2^HistogramMaxExp.
	Buckets [HistogramBuckets]uint64
}

// The range of the buckets: about 1 µs to 32 s, and the overflow.
const (
	HistogramMinExp  = -20
	HistogramMaxExp  = 5
	HistogramBuckets = HistogramMaxExp - HistogramMinExp + 2
)

// Observe counts a duration.
func (h *Histogram) Observe(d time.Duration) {
	h.Count++
	h.Sum += uint64(d)
	bounds := math.Ceil(d.Seconds() * (1 << -HistogramMinExp)) // in units of the first bucket's bound
	h.Buckets[min(bits.Len64(uint64(max(bounds-1, 0))), HistogramBuckets-1)]++
}

// Add adds the counts of v.
func (h *Histogram) Add(v *Histogram) {
	h.Count, h.Sum = h.Count+v.Count, h.Sum+v.Sum
	addBuckets(h.Buckets[:], v.Buckets[:])
}

// Subtract subtracts the counts of v.
func (h *Histogram) Subtract(v *Histogram) {
	h.Count, h.Sum = h.Count-v.Count, h.Sum-v.Sum
	subtractBuckets(h.Buckets[:], v.Buckets[:])
}

// Fell reports whether a count is smaller than in last.
func (h *Histogram) Fell(last *Histogram) bool {
	return h.Count < last.Count || h.Sum < last.Sum || bucketsFell(h.Buckets[:], last.Buckets[:])
}

func addBuckets(to, from []uint64) {
	for i, n := range from {
		to[i] += n
	}
}

func subtractBuckets(from, what []uint64) {
	for i, n := range what {
		from[i] -= n
	}
}

func bucketsFell(now, last []uint64) bool {
	for i, n := range last {
		if now[i] < n {
			return true
		}
	}
	return false
}
