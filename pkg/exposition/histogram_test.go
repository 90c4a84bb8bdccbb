// SPDX-License-Identifier: Apache-2.0

package exposition

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"google.golang.org/protobuf/proto"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestNativeHistogram decodes the buckets by the rules of native histograms: at schema n, bucket k ends at 2^(k/2^n).
func TestNativeHistogram(t *testing.T) {
	t.Run("coarse", func(t *testing.T) {
		testHistograms(t, 0, model.HistogramMinExp, 5, 4, func(sum float64, fill func([]uint64)) durations {
			h := model.Histogram{Sum: uint64(sum * 1e9)}
			fill(h.Buckets[:])
			return (*coarse)(&h)
		})
	})
	t.Run("fine", func(t *testing.T) {
		testHistograms(t, 2, model.FineMinExp, 7, math.Ldexp(1, -6), func(sum float64, fill func([]uint64)) durations {
			h := model.FineHistogram{Sum: uint64(sum * 1e9)}
			fill(h.Buckets[:])
			return (*fine)(&h)
		})
	})
}

func testHistograms(
	t *testing.T, schema, exp, classic int, last float64, of func(sum float64, fill func([]uint64)) durations,
) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	cases := []durations{
		of(0, func([]uint64) {}),
		of(1, func(b []uint64) { b[0] = 1 }),
		of(1, func(b []uint64) { b[len(b)-1] = 1 }),
	}
	for range 100 {
		cases = append(cases, of(r.Float64(), func(b []uint64) {
			for i := range b {
				if r.IntN(3) == 0 {
					b[i] = r.Uint64N(1000)
				}
			}
		}))
	}
	// All in one family: histograms must not share memory.
	f := Family{name: new("x_seconds"), help: new("X."), typ: histogram}
	for _, h := range cases {
		f.rows, f.histograms = append(f.rows, row{labels: &LabelSet{}}), append(f.histograms, h)
	}
	for i, m := range protoFamilies([]Family{f}, Forms{})[0].Metric {
		_, sum, buckets := cases[i].in()
		checkHistogram(t, m.Histogram, schema, exp, sum, buckets)
		b := m.Histogram.Bucket
		if len(b) != classic || b[0].GetUpperBound() != math.Ldexp(1, -18) || b[len(b)-1].GetUpperBound() != last { // including infinity
			t.Errorf("classic buckets: %v", b)
		}
	}
}

func checkHistogram(t *testing.T, h *dto.Histogram, schema, exp int, sum float64, buckets []uint64) {
	t.Helper()
	wire, err := proto.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	var d dto.Histogram
	if err := proto.Unmarshal(wire, &d); err != nil {
		t.Fatal(err)
	}
	if d.GetSchema() != int32(schema) || len(d.PositiveSpan) == 0 || d.GetZeroThreshold() <= 0 {
		t.Fatalf("not a native histogram: %v", &d)
	}
	got := map[float64]uint64{} // by upper bound
	index, count, delta := 0, int64(0), 0
	for _, span := range d.PositiveSpan {
		index += int(span.GetOffset())
		for range span.GetLength() {
			count += d.PositiveDelta[delta]
			got[float64(index)/math.Exp2(float64(schema))] = uint64(count)
			index++
			delta++
		}
	}
	if delta != len(d.PositiveDelta) {
		t.Errorf("%d deltas for %d buckets", len(d.PositiveDelta), delta)
	}
	end := func(i int) float64 { return float64(exp) + float64(i)/math.Exp2(float64(schema)) }
	total := uint64(0)
	for i, want := range buckets {
		if got[end(i)] != want {
			t.Errorf("bucket to 2^%v s holds %d, want %d", end(i), got[end(i)], want)
		}
		total += want
	}
	if d.GetSampleCount() != total || d.GetSampleSum() != sum {
		t.Errorf("count %d sum %v, want %d and %v", d.GetSampleCount(), d.GetSampleSum(), total, sum)
	}
	for _, b := range d.Bucket {
		want := uint64(0)
		for i, n := range buckets {
			if i < len(buckets)-1 && end(i) <= math.Log2(b.GetUpperBound()) {
				want += n
			}
		}
		if b.GetCumulativeCount() != want {
			t.Errorf("le %v: %d, want %d", b.GetUpperBound(), b.GetCumulativeCount(), want)
		}
	}
}

func TestForms(t *testing.T) {
	h := model.Histogram{Count: 3, Sum: 2e9, Buckets: [model.HistogramBuckets]uint64{3: 1, 22: 2}}
	f := Family{name: new("x_seconds"), help: new("X."), typ: histogram, rows: []row{{labels: &LabelSet{}}}, histograms: []durations{(*coarse)(&h)}}
	for _, tt := range []struct {
		forms         Forms
		classic, text int
		native        bool
	}{
		{Forms{}, 5, 6, true},
		{Forms{NoClassic: true}, 0, 1, true},
		{Forms{NoNative: true}, 5, 6, false},
		{Forms{NoClassic: true, NoNative: true}, 0, 1, false},
	} {
		page := NewPage([]Family{f}, tt.forms)
		d := page.Proto()[0].Metric[0].Histogram
		if len(d.Bucket) != tt.classic || (len(d.PositiveSpan) > 0) != tt.native || (d.Schema != nil) != tt.native {
			t.Errorf("%+v: protobuf %v", tt.forms, d)
		}
		if d.GetSampleCount() != 3 || d.GetSampleSum() != 2 {
			t.Errorf("%+v: %d durations, %v s", tt.forms, d.GetSampleCount(), d.GetSampleSum())
		}
		var e Encoder
		text, err := e.Encode(page, expfmt.NewFormat(expfmt.TypeTextPlain), false)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), "x_seconds_bucket{"); n != tt.text ||
			!strings.HasSuffix(string(text), "x_seconds_bucket{le=\"+Inf\"} 3\nx_seconds_sum 2\nx_seconds_count 3\n") {
			t.Errorf("%+v: %s", tt.forms, text)
		}
	}
}
