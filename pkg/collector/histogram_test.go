// SPDX-License-Identifier: Apache-2.0

package collector

import (
	"math"
	"math/rand/v2"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/proto"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestNativeHistogram takes the buckets back out of the wire format, by the
// rules of native histograms: at schema 0 bucket k ends at 2^k.
func TestNativeHistogram(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	cases := []model.Histogram{{}, one(0), one(model.HistogramBuckets - 1)}
	for range 100 {
		h := model.Histogram{SumSeconds: r.Float64()}
		for i := range h.Buckets {
			if r.IntN(3) == 0 {
				h.Buckets[i] = r.Uint64N(1000)
				h.Count += h.Buckets[i]
			}
		}
		cases = append(cases, h)
	}
	for _, h := range cases {
		s := slabs{histograms: newSlab[histogramSeries](1)}
		wire, err := proto.Marshal(s.histogram(&h).Histogram)
		if err != nil {
			t.Fatal(err)
		}
		var d dto.Histogram
		if err := proto.Unmarshal(wire, &d); err != nil {
			t.Fatal(err)
		}
		if d.GetSchema() != 0 || len(d.PositiveSpan) == 0 || d.GetZeroThreshold() <= 0 {
			t.Fatalf("not a native histogram: %v", &d)
		}
		got := map[int]uint64{}
		index, count, delta := 0, int64(0), 0
		for _, span := range d.PositiveSpan {
			index += int(span.GetOffset())
			for range span.GetLength() {
				count += d.PositiveDelta[delta]
				got[index] = uint64(count)
				index++
				delta++
			}
		}
		if delta != len(d.PositiveDelta) {
			t.Errorf("%d deltas for %d buckets", len(d.PositiveDelta), delta)
		}
		total := uint64(0)
		for i, want := range h.Buckets {
			if got[model.HistogramMinExp+i] != want {
				t.Errorf("bucket to 2^%d s holds %d, want %d", model.HistogramMinExp+i, got[model.HistogramMinExp+i], want)
			}
			total += want
		}
		if d.GetSampleCount() != total || d.GetSampleSum() != h.SumSeconds {
			t.Errorf("count %d sum %v, want %d and %v", d.GetSampleCount(), d.GetSampleSum(), total, h.SumSeconds)
		}
		for _, b := range d.Bucket {
			want := uint64(0)
			for i, n := range h.Buckets {
				if math.Ldexp(1, model.HistogramMinExp+i) <= b.GetUpperBound() {
					want += n
				}
			}
			if b.GetCumulativeCount() != want {
				t.Errorf("le %v: %d, want %d", b.GetUpperBound(), b.GetCumulativeCount(), want)
			}
		}
		if n := len(d.Bucket); n != 13 || d.Bucket[0].GetUpperBound() != math.Ldexp(1, -20) ||
			d.Bucket[n-1].GetUpperBound() != 16 {
			t.Errorf("classic buckets: %v", d.Bucket)
		}
	}
}

func one(bucket int) model.Histogram {
	h := model.Histogram{Count: 1, SumSeconds: 1}
	h.Buckets[bucket] = 1
	return h
}
