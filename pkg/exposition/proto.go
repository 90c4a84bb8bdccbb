// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"math"

	dto "github.com/prometheus/client_model/go"
)

// protoFamilies converts families to the types of client_golang and the protobuf format.
func protoFamilies(families []Family) []*dto.MetricFamily {
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

func (s *slab[T]) take(n int) []T {
	v := s.free[:n:n]
	s.free = s.free[n:]
	return v
}

// slabs allocates families and series; the parts of a series come from one allocation.
type slabs struct {
	families   slab[dto.MetricFamily]
	counters   slab[counterSeries]
	gauges     slab[gaugeSeries]
	untyped    slab[untypedSeries]
	histograms slab[histogramSeries]
	// Parts of histograms; their number follows from the shape.
	deltas  slab[int64]
	buckets slab[classicBucket]
	refs    slab[*dto.Bucket]
}

func newSlabs(families []Family) *slabs {
	size := map[dto.MetricType]int{}
	native, classic := 0, 0
	for i := range families {
		f := &families[i]
		size[f.typ] += len(f.rows)
		if f.typ != histogram {
			continue
		}
		for j := range f.rows {
			s, _, buckets := f.rows[j].histogram.in()
			native += len(buckets)
			classic += len(s.bounds)
		}
	}
	return &slabs{
		families:   newSlab[dto.MetricFamily](len(families)),
		counters:   newSlab[counterSeries](size[counter]),
		gauges:     newSlab[gaugeSeries](size[gauge]),
		untyped:    newSlab[untypedSeries](size[untyped]),
		histograms: newSlab[histogramSeries](size[histogram]),
		deltas:     newSlab[int64](native),
		buckets:    newSlab[classicBucket](classic),
		refs:       newSlab[*dto.Bucket](classic),
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

var (
	zeroThreshold = math.Ldexp(1, -128)
	zeroCount     = uint64(0)
)

type histogramSeries struct {
	metric    dto.Metric
	histogram dto.Histogram
	count     uint64
	sum       float64

	span   dto.BucketSpan
	spans  [1]*dto.BucketSpan
	offset int32
	length uint32
}

type classicBucket struct {
	bucket dto.Bucket
	count  uint64
}

// histogram renders h with native and with classic buckets.
func (s *slabs) histogram(h durations) *dto.Metric {
	d := s.histograms.next()
	d.metric.Histogram = &d.histogram
	shape, sum, buckets := h.in()
	d.sum, d.histogram.SampleSum = sum, &d.sum
	// The kernel may count while the histogram is read. Prometheus refuses a histogram
	// with a count that differs from the sum of its buckets.
	for _, n := range buckets {
		d.count += n
	}
	d.histogram.SampleCount = &d.count
	d.native(shape, buckets, s.deltas.take(len(buckets)))
	d.histogram.Bucket = s.classic(shape, buckets)
	return &d.metric
}

// native sets one span over all buckets that are not empty. Without any, the span is empty;
// a span is required for Prometheus to treat the histogram as native.
func (d *histogramSeries) native(s *shape, buckets []uint64, deltas []int64) {
	first, last := 0, len(buckets)
	for first < last && buckets[first] == 0 {
		first++
	}
	for last > first && buckets[last-1] == 0 {
		last--
	}
	if first < last {
		d.offset, d.length = int32(s.first+first), uint32(last-first)
	}
	d.span.Offset, d.span.Length = &d.offset, &d.length
	d.spans[0] = &d.span
	before := int64(0)
	for i, n := range buckets[first:last] {
		deltas[i] = int64(n) - before
		before = int64(n)
	}
	d.histogram.Schema, d.histogram.ZeroThreshold, d.histogram.ZeroCount = &s.schema, &zeroThreshold, &zeroCount
	d.histogram.PositiveSpan, d.histogram.PositiveDelta = d.spans[:], deltas[:d.length]
}

func (s *slabs) classic(shape *shape, buckets []uint64) []*dto.Bucket {
	refs := s.refs.take(len(shape.bounds))
	sum, next := uint64(0), 0
	for i := range refs {
		next, sum = shape.upTo(i, next, sum, buckets)
		c := s.buckets.next()
		c.count, c.bucket.CumulativeCount, c.bucket.UpperBound = sum, &c.count, &shape.bounds[i]
		refs[i] = &c.bucket
	}
	return refs
}
