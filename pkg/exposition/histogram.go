// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"math"
	"slices"

	"github.com/accelscope/accelscope/pkg/model"
)

// durations is a histogram of either resolution. Rows refer to it without copying.
type durations interface {
	// in returns the shape, the sum in seconds, and the counts, which must not be changed.
	in() (shape *shape, sum float64, buckets []uint64)
}

type (
	coarse model.Histogram
	fine   model.FineHistogram
)

func (h *coarse) in() (*shape, float64, []uint64) {
	return coarseShape, float64(h.Sum) / 1e9, h.Buckets[:]
}

func (h *fine) in() (*shape, float64, []uint64) { return fineShape, float64(h.Sum) / 1e9, h.Buckets[:] }

// shape describes how a histogram is exposed: as a native one with the same buckets (the
// overflow is in one more bucket), and as fewer classic buckets.
type shape struct {
	schema int32 // 2^schema native buckets end within each power of two
	first  int   // native index of the first bucket
	step   int   // buckets that make up a classic one
	bounds []float64
	le     [2][]string // bounds and infinity as labels, for each dialect
}

var (
	// From 2^-20 s (1 µs) to 16 s, every second power of two.
	coarseShape = newShape(0, model.HistogramMinExp, model.HistogramBuckets, 2)
	// From 2^-21 s (0.5 µs) to 8 s, every power of two: completions take microseconds.
	fineShape = newShape(2, model.FineMinExp, model.FineBuckets, 1)
)

// newShape returns the shape of a histogram: its first bucket ends at 2^exp and its last
// bucket holds the overflow.
func newShape(schema int32, exp, buckets, octaves int) *shape {
	s := &shape{schema: schema, first: exp << schema, step: octaves << schema}
	for i := 0; i < buckets-1; i += s.step {
		s.bounds = append(s.bounds, math.Ldexp(1, exp+len(s.bounds)*octaves))
	}
	for d := range s.le {
		for _, bound := range append(slices.Clip(s.bounds), math.Inf(1)) {
			s.le[d] = append(s.le[d], `le="`+string(dialect(d).number(nil, bound))+`"`)
		}
	}
	return s
}

// upTo adds the buckets from next to the end of the classic bucket i to sum.
func (s *shape) upTo(i, next int, sum uint64, buckets []uint64) (int, uint64) {
	for ; next <= i*s.step; next++ {
		sum += buckets[next]
	}
	return next, sum
}
