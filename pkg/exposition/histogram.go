// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"math"
	"slices"

	"github.com/accelscope/accelscope/pkg/model"
)

// Forms are the forms of exported histograms. The zero Forms has both. Text formats have only the classic form; with
// NoClassic, only the bucket infinity remains.
type Forms struct {
	NoClassic, NoNative bool
	// CreatedLines adds the start time of counters and histograms to OpenMetrics, as NAME_created. Protobuf always has
	// it.
	CreatedLines bool
}

// durations is a histogram of either resolution, by reference.
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

// shape describes how a histogram is exposed: as a native histogram with the same buckets (the overflow is one more
// bucket), and as fewer classic buckets.
type shape struct {
	schema int32 // 2^schema native buckets end within each power of two
	first  int   // native index of the first bucket
	bounds []float64
	last   []int       // the last bucket of each classic bucket
	le     [2][]string // bounds and infinity as labels, by dialect
}

// A histogram has at most eight classic buckets, including infinity, for servers that do not request native histograms
// with all buckets.
var (
	// From 4 µs to 4 s. Two buckets end at the thresholds of the alert RDMAVerbsSlow, 0.25 s and 4 s.
	coarseShape = newShape(0, model.HistogramMinExp, -18, -14, -8, -2, 2)
	// From 4 µs to 16 ms, in steps of four: the alert RDMACompletionsSlow compares quantiles.
	fineShape = newShape(2, model.FineMinExp, -18, -16, -14, -12, -10, -8, -6)
)

// newShape returns the shape of a histogram: the first bucket ends at 2^exp, classic buckets end at the powers of two.
func newShape(schema int32, exp int, powers ...int) *shape {
	s := &shape{schema: schema, first: exp << schema}
	for _, power := range powers {
		s.bounds = append(s.bounds, math.Ldexp(1, power))
		s.last = append(s.last, (power-exp)<<schema)
	}
	for d := range s.le {
		for _, bound := range append(slices.Clip(s.bounds), math.Inf(1)) {
			s.le[d] = append(s.le[d], `le="`+string(dialect(d).number(nil, bound))+`"`)
		}
	}
	return s
}

// classic returns the bounds of the classic buckets without infinity.
func (s *shape) classic(forms Forms) []float64 {
	if forms.NoClassic {
		return nil
	}
	return s.bounds
}

// upTo adds the buckets from next to the end of classic bucket i to sum.
func (s *shape) upTo(i, next int, sum uint64, buckets []uint64) (int, uint64) {
	for ; next <= s.last[i]; next++ {
		sum += buckets[next]
	}
	return next, sum
}
