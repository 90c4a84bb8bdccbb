// SPDX-License-Identifier: Apache-2.0

package model

// A FineHistogram is a Histogram with four buckets for each power of two, as in a Prometheus native histogram of schema
// 2. RDMA operations take microseconds and need this resolution.
type FineHistogram struct {
	Count uint64
	// Sum is the sum of all durations, in nanoseconds.
	Sum uint64
	// Buckets[i] counts durations in (2^((i-1)/4), 2^(i/4)] · 2^FineMinExp seconds. The first bucket also has
	// everything shorter, the last bucket everything longer than 2^FineMaxExp.
	Buckets [FineBuckets]uint64
}

// The range of the fine buckets: about 0.5 µs to 8 s, and the overflow.
const (
	FineMinExp  = -21
	FineMaxExp  = 3
	FineOctave  = 4 // buckets for each power of two
	FineBuckets = (FineMaxExp-FineMinExp)*FineOctave + 2
)

// Add adds the counts of v.
func (h *FineHistogram) Add(v *FineHistogram) {
	h.Count, h.Sum = h.Count+v.Count, h.Sum+v.Sum
	addBuckets(h.Buckets[:], v.Buckets[:])
}

// Subtract subtracts the counts of v.
func (h *FineHistogram) Subtract(v *FineHistogram) {
	h.Count, h.Sum = h.Count-v.Count, h.Sum-v.Sum
	subtractBuckets(h.Buckets[:], v.Buckets[:])
}

// Fell reports whether a count is smaller than in last.
func (h *FineHistogram) Fell(last *FineHistogram) bool {
	return h.Count < last.Count || h.Sum < last.Sum || bucketsFell(h.Buckets[:], last.Buckets[:])
}
