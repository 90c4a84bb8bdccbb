// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"math"
	"time"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// protoFamilies converts families to client_golang's types and the protobuf format.
func protoFamilies(families []Family, forms Forms) []*dto.MetricFamily {
	out := make([]*dto.MetricFamily, len(families))
	for i := range families {
		f := &families[i]
		out[i] = &dto.MetricFamily{Name: f.name, Help: f.help, Type: &f.typ, Metric: protoSeries(f, forms)}
	}
	return out
}

func protoSeries(f *Family, forms Forms) []*dto.Metric {
	switch f.typ {
	case counter:
		var s starts
		return allocate(f.rows, func(m *dto.Metric, c *dto.Counter, i int) {
			m.Counter, c.Value, c.CreatedTimestamp = c, &f.rows[i].value, s.of(&f.rows[i])
		})
	case gauge:
		return allocate(f.rows, func(m *dto.Metric, g *dto.Gauge, i int) { m.Gauge, g.Value = g, &f.rows[i].value })
	case histogram:
		var s starts
		p := newParts(f.histograms, forms)
		return allocate(f.rows, func(m *dto.Metric, h *histogramSeries, i int) {
			p.histogram(m, h, f.histograms[i])
			m.Histogram.CreatedTimestamp = s.of(&f.rows[i])
		})
	default:
		return allocate(f.rows, func(m *dto.Metric, u *dto.Untyped, i int) { m.Untyped, u.Value = u, &f.rows[i].value })
	}
}

// starts are the start times of a family's series, which many series share.
type starts map[int64]*timestamppb.Timestamp

// of returns the start time of a series, nil if unknown.
func (s *starts) of(r *row) *timestamppb.Timestamp {
	if r.since == 0 {
		return nil
	}
	t := (*s)[r.since]
	if t == nil {
		if *s == nil {
			*s = starts{}
		}
		t = timestamppb.New(time.UnixMilli(r.since))
		(*s)[r.since] = t
	}
	return t
}

// allocate returns the series of rows from one allocation. fill sets the value of row i.
func allocate[T any](rows []row, fill func(m *dto.Metric, value *T, i int)) []*dto.Metric {
	all := make([]struct {
		metric dto.Metric
		value  T
	}, len(rows))
	out := make([]*dto.Metric, len(rows))
	for i := range rows {
		out[i] = &all[i].metric
		out[i].Label = rows[i].labels.pairs
		fill(out[i], &all[i].value, i)
	}
	return out
}

var (
	zeroThreshold = math.Ldexp(1, -128)
	zeroCount     = uint64(0)
)

type histogramSeries struct {
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

// parts holds the unused parts of a family's histograms. Their number follows from the shape.
type parts struct {
	forms   Forms
	deltas  []int64
	buckets []classicBucket
	refs    []*dto.Bucket
}

func newParts(histograms []durations, forms Forms) *parts {
	native, classic := 0, 0
	for _, h := range histograms {
		s, _, buckets := h.in()
		native += len(buckets)
		classic += len(s.classic(forms))
	}
	return &parts{forms, make([]int64, native), make([]classicBucket, classic), make([]*dto.Bucket, classic)}
}

// take returns the first n elements and removes them from rest.
func take[T any](rest *[]T, n int) []T {
	v := (*rest)[:n:n]
	*rest = (*rest)[n:]
	return v
}

func (p *parts) histogram(m *dto.Metric, d *histogramSeries, h durations) {
	m.Histogram = &d.histogram
	shape, sum, buckets := h.in()
	d.sum, d.histogram.SampleSum = sum, &d.sum
	// The kernel may count while the histogram is read. Prometheus refuses a histogram whose count differs from the sum
	// of its buckets.
	for _, n := range buckets {
		d.count += n
	}
	d.histogram.SampleCount = &d.count
	if !p.forms.NoNative {
		d.native(shape, buckets, take(&p.deltas, len(buckets)))
	}
	d.histogram.Bucket = p.classic(shape, buckets)
}

// native sets one span over all non-empty buckets. An empty histogram has an empty span: Prometheus needs a span to
// treat the histogram as native.
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

func (p *parts) classic(shape *shape, buckets []uint64) []*dto.Bucket {
	refs := take(&p.refs, len(shape.classic(p.forms)))
	classic := take(&p.buckets, len(refs))
	sum, next := uint64(0), 0
	for i := range refs {
		next, sum = shape.upTo(i, next, sum, buckets)
		c := &classic[i]
		c.count, c.bucket.CumulativeCount, c.bucket.UpperBound = sum, &c.count, &shape.bounds[i]
		refs[i] = &c.bucket
	}
	return refs
}
