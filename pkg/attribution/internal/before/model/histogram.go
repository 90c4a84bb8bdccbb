// SPDX-License-Identifier: Apache-2.0

package model

// A Histogram counts durations in buckets whose upper bounds are powers of two
// of a second, as the kernel programs keep them. They are the buckets of a
// Prometheus native histogram of schema 0, so nothing is rounded on the way.
type Histogram struct {
	Count uint64
	// SumSeconds is the sum of all durations.
	SumSeconds float64
	// Buckets[i] counts the durations in (2^(i-1), 2^i] · 2^HistogramMinExp
	// seconds; the first one also holds everything shorter, and one more
	// bucket at the end everything longer than 2^HistogramMaxExp.
	Buckets [HistogramBuckets]uint64
}

// The range of the buckets: about 1 µs to 32 s, and the overflow.
const (
	HistogramMinExp  = -20
	HistogramMaxExp  = 5
	HistogramBuckets = HistogramMaxExp - HistogramMinExp + 2
)

// Add adds the counts of o.
func (h *Histogram) Add(o Histogram) {
	h.Count += o.Count
	h.SumSeconds += o.SumSeconds
	for i, n := range o.Buckets {
		h.Buckets[i] += n
	}
}
