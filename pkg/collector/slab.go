// SPDX-License-Identifier: Apache-2.0

package collector

import (
	"math"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/model"
)

// protoFamilies are the families as client_golang and the protobuf format have
// them.
func protoFamilies(families []family) []*dto.MetricFamily {
	s := newSlabs(families)
	out := make([]*dto.MetricFamily, len(families))
	for i := range families {
		f := &families[i]
		m := s.families.next()
		m.Name, m.Help, m.Type = f.name, f.help, &f.typ
		m.Metric = make([]*dto.Metric, len(f.rows))
		for j := range f.rows {
			m.Metric[j] = s.series(f.typ, &f.rows[j])
		}
		out[i] = m
	}
	return out
}

// slab hands out zeroed values from one allocation.
type slab[T any] struct{ free []T }

func newSlab[T any](size int) slab[T] { return slab[T]{make([]T, size)} }

func (s *slab[T]) next() *T {
	v := &s.free[0]
	s.free = s.free[1:]
	return v
}

// slabs are families and series, each series with all its parts in one piece.
type slabs struct {
	families   slab[dto.MetricFamily]
	counters   slab[counterSeries]
	gauges     slab[gaugeSeries]
	untyped    slab[untypedSeries]
	histograms slab[histogramSeries]
}

func newSlabs(families []family) *slabs {
	size := map[dto.MetricType]int{}
	for i := range families {
		size[families[i].typ] += len(families[i].rows)
	}
	return &slabs{
		families:   newSlab[dto.MetricFamily](len(families)),
		counters:   newSlab[counterSeries](size[counter]),
		gauges:     newSlab[gaugeSeries](size[gauge]),
		untyped:    newSlab[untypedSeries](size[untyped]),
		histograms: newSlab[histogramSeries](size[histogram]),
	}
}

func (s *slabs) series(typ dto.MetricType, r *row) *dto.Metric {
	var m *dto.Metric
	switch typ {
	case counter:
		m = s.counter(r.value)
	case gauge:
		m = s.gauge(r.value)
	case histogram:
		m = s.histogram(r.histogram)
	default:
		m = s.untypedValue(r.value)
	}
	m.Label = r.labels.pairs
	return m
}

type counterSeries struct {
	metric  dto.Metric
	counter dto.Counter
	value   float64
}

func (s *slabs) counter(v float64) *dto.Metric {
	c := s.counters.next()
	c.value, c.counter.Value, c.metric.Counter = v, &c.value, &c.counter
	return &c.metric
}

type gaugeSeries struct {
	metric dto.Metric
	gauge  dto.Gauge
	value  float64
}

func (s *slabs) gauge(v float64) *dto.Metric {
	g := s.gauges.next()
	g.value, g.gauge.Value, g.metric.Gauge = v, &g.value, &g.gauge
	return &g.metric
}

type untypedSeries struct {
	metric  dto.Metric
	untyped dto.Untyped
	value   float64
}

func (s *slabs) untypedValue(v float64) *dto.Metric {
	u := s.untyped.next()
	u.value, u.untyped.Value, u.metric.Untyped = v, &u.value, &u.untyped
	return &u.metric
}

// The classic buckets: every second power of two from 2^-20 s (1 µs) to 16 s.
const (
	classicStep    = 2
	classicLast    = 4
	classicBuckets = (classicLast-model.HistogramMinExp)/classicStep + 1
)

var (
	nativeSchema  = int32(0)
	zeroThreshold = math.Ldexp(1, -128)
	zeroCount     = uint64(0)
	classicBounds = func() (bounds [classicBuckets]float64) {
		for i := range bounds {
			bounds[i] = math.Ldexp(1, model.HistogramMinExp+i*classicStep)
		}
		return bounds
	}()
)

type histogramSeries struct {
	metric    dto.Metric
	histogram dto.Histogram
	count     uint64
	sum       float64

	span    dto.BucketSpan
	spans   [1]*dto.BucketSpan
	offset  int32
	length  uint32
	deltas  [model.HistogramBuckets]int64
	buckets [classicBuckets]dto.Bucket
	refs    [classicBuckets]*dto.Bucket
	counts  [classicBuckets]uint64
}

// histogram renders h twice: as a native histogram of schema 0, whose buckets
// end at the powers of two, as those of h do (what took longer than h tells
// apart is in the one above), and as classic buckets.
func (s *slabs) histogram(h *model.Histogram) *dto.Metric {
	d := s.histograms.next()
	d.metric.Histogram = &d.histogram
	d.sum, d.histogram.SampleSum = h.SumSeconds, &d.sum
	// A count that differs from the buckets, because the kernel counted on
	// while it was read, would have the whole histogram refused.
	for _, n := range h.Buckets {
		d.count += n
	}
	d.histogram.SampleCount = &d.count
	d.native(h)
	d.classic(h)
	return &d.metric
}

// native sets one span over all buckets that are not empty. Without any it is
// an empty span, which is what makes a histogram native.
func (d *histogramSeries) native(h *model.Histogram) {
	first, last := 0, len(h.Buckets)
	for first < last && h.Buckets[first] == 0 {
		first++
	}
	for last > first && h.Buckets[last-1] == 0 {
		last--
	}
	if first < last {
		d.offset, d.length = int32(model.HistogramMinExp+first), uint32(last-first)
	}
	d.span.Offset, d.span.Length = &d.offset, &d.length
	d.spans[0] = &d.span
	before := int64(0)
	for i, n := range h.Buckets[first:last] {
		d.deltas[i] = int64(n) - before
		before = int64(n)
	}
	d.histogram.Schema, d.histogram.ZeroThreshold, d.histogram.ZeroCount = &nativeSchema, &zeroThreshold, &zeroCount
	d.histogram.PositiveSpan, d.histogram.PositiveDelta = d.spans[:], d.deltas[:d.length]
}

func (d *histogramSeries) classic(h *model.Histogram) {
	sum, next := uint64(0), 0
	for i := range d.buckets {
		for ; next <= i*classicStep; next++ {
			sum += h.Buckets[next]
		}
		d.counts[i] = sum
		d.buckets[i].CumulativeCount, d.buckets[i].UpperBound = &d.counts[i], &classicBounds[i]
		d.refs[i] = &d.buckets[i]
	}
	d.histogram.Bucket = d.refs[:]
}
