// SPDX-License-Identifier: Apache-2.0

package model

// A FineHistogram is a Histogram with four buckets for each power of two: those of a
// Prometheus native histogram of schema 2. RDMA operations take microseconds, so a finer
// resolution is needed.
type FineHistogram struct {
	Count uint64
	// Sum is the sum of all durations, in nanoseconds.
	Sum uint64
	// Buckets[i] counts the durations in (2^((i-1)/4), 2^(i/4)] · 2^FineMinExp
	// seconds; the first one also holds everything shorter, and one more bucket at
	// the end everything longer than 2^FineMaxExp.
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

// Since returns the counts after last.
func (h *FineHistogram) Since(last *FineHistogram) FineHistogram {
	d := *h
	if h.Count < last.Count || h.Sum < last.Sum || !subtractBuckets(d.Buckets[:], last.Buckets[:]) {
		return *h
	}
	d.Count, d.Sum = h.Count-last.Count, h.Sum-last.Sum
	return d
}
