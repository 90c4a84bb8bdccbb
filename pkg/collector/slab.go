// SPDX-License-Identifier: Apache-2.0

package collector

import (
	"math"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/model"
)

// slab hands out zeroed values from one allocation as big as what the refresh
// before needed.
type slab[T any] struct {
	free []T
	used int
}

func (s *slab[T]) begin() {
	s.free = make([]T, s.used)
	s.used = 0
}

func (s *slab[T]) next() *T {
	return &s.take(1)[0]
}

func (s *slab[T]) take(n int) []T {
	if len(s.free) < n {
		s.free = make([]T, max(n, s.used/4, 64))
	}
	s.used += n
	taken := s.free[:n:n]
	s.free = s.free[n:]
	return taken
}

// slabs are the parts of a metric.
type slabs struct {
	metrics    slab[dto.Metric]
	counters   slab[dto.Counter]
	gauges     slab[dto.Gauge]
	untyped    slab[dto.Untyped]
	floats     slab[float64]
	histograms slab[dto.Histogram]
	spans      slab[dto.BucketSpan]
	spanRefs   slab[*dto.BucketSpan]
	buckets    slab[dto.Bucket]
	bucketRefs slab[*dto.Bucket]
	counts     slab[uint64]
	deltas     slab[int64]
	offsets    slab[int32]
	lengths    slab[uint32]
}

func (s *slabs) begin() {
	s.metrics.begin()
	s.counters.begin()
	s.gauges.begin()
	s.untyped.begin()
	s.floats.begin()
	s.histograms.begin()
	s.spans.begin()
	s.spanRefs.begin()
	s.buckets.begin()
	s.bucketRefs.begin()
	s.counts.begin()
	s.deltas.begin()
	s.offsets.begin()
	s.lengths.begin()
}

func (s *slabs) float(v float64) *float64 {
	p := s.floats.next()
	*p = v
	return p
}

func (s *slabs) count(v uint64) *uint64 {
	p := s.counts.next()
	*p = v
	return p
}

// The classic buckets: every second power of two from 2^-20 s (1 µs) to 16 s.
const (
	classicStep = 2
	classicLast = 4
)

var (
	nativeSchema  = int32(0)
	zeroThreshold = math.Ldexp(1, -128)
	zeroCount     = uint64(0)
	classicBounds = func() (bounds []float64) {
		for exp := model.HistogramMinExp; exp <= classicLast; exp += classicStep {
			bounds = append(bounds, math.Ldexp(1, exp))
		}
		return bounds
	}()
)

// histogram renders h twice: as a native histogram of schema 0, whose buckets
// end at the powers of two, as those of h do (what took longer than h tells
// apart is in the one above), and as classic buckets.
func (s *slabs) histogram(h *model.Histogram) *dto.Histogram {
	d := s.histograms.next()
	// A count that differs from the buckets, because the kernel counted on
	// while it was read, would have the whole histogram refused.
	count := uint64(0)
	for _, n := range h.Buckets {
		count += n
	}
	d.SampleCount, d.SampleSum = s.count(count), s.float(h.SumSeconds)
	d.Schema, d.ZeroThreshold, d.ZeroCount = &nativeSchema, &zeroThreshold, &zeroCount
	s.native(d, h)
	s.classic(d, h)
	return d
}

// native sets one span over all buckets that are not empty. Without any it is
// an empty span, which is what makes a histogram native.
func (s *slabs) native(d *dto.Histogram, h *model.Histogram) {
	first, last := 0, len(h.Buckets)
	for first < last && h.Buckets[first] == 0 {
		first++
	}
	for last > first && h.Buckets[last-1] == 0 {
		last--
	}
	span, offset, length := s.spans.next(), s.offsets.next(), s.lengths.next()
	if first < last {
		*offset = int32(model.HistogramMinExp + first)
	}
	*length = uint32(last - first)
	span.Offset, span.Length = offset, length
	d.PositiveSpan = s.spanRefs.take(1)
	d.PositiveSpan[0] = span
	d.PositiveDelta = s.deltas.take(last - first)
	before := int64(0)
	for i, n := range h.Buckets[first:last] {
		d.PositiveDelta[i] = int64(n) - before
		before = int64(n)
	}
}

func (s *slabs) classic(d *dto.Histogram, h *model.Histogram) {
	d.Bucket = s.bucketRefs.take(len(classicBounds))
	buckets := s.buckets.take(len(classicBounds))
	sum, next := uint64(0), 0
	for i := range buckets {
		for ; next <= i*classicStep; next++ {
			sum += h.Buckets[next]
		}
		buckets[i].CumulativeCount, buckets[i].UpperBound = s.count(sum), &classicBounds[i]
		d.Bucket[i] = &buckets[i]
	}
}
