// SPDX-License-Identifier: Apache-2.0

package overview

import (
	"math"

	"github.com/accelscope/accelscope/pkg/model"
)

// counters are the histograms of a row in a refresh.
type counters struct {
	verbs       model.Histogram
	completions model.FineHistogram
}

// sparse is a histogram without the empty buckets at its ends: verbs take microseconds, so most buckets are empty.
// Counts are modulo 2^32, which is enough for the growth in an interval.
type sparse struct {
	first   int
	buckets []uint32
}

func sparseOf(buckets []uint64) sparse {
	first, end := 0, len(buckets)
	for first < end && buckets[first] == 0 {
		first++
	}
	for end > first && buckets[end-1] == 0 {
		end--
	}
	s := sparse{first, make([]uint32, end-first)}
	for i := range s.buckets {
		s.buckets[i] = uint32(buckets[first+i])
	}
	return s
}

var none counters

// growth returns the growth of each bucket since an earlier histogram of the same counters.
func growth(now []uint64, last sparse) []uint64 {
	grown := append([]uint64(nil), now...)
	for i, n := range last.buckets {
		grown[last.first+i] = uint64(uint32(now[last.first+i]) - n)
	}
	return grown
}

// p99 returns the 99th percentile, interpolated within its bucket like PromQL's histogram_quantile; nil without
// durations. Bucket i ends at 2^(i/octave + exponent) seconds.
func p99(buckets []uint64, octave, exponent int) *Quantile {
	var total uint64
	for _, n := range buckets {
		total += n
	}
	if total == 0 {
		return nil
	}
	rank, below := 0.99*float64(total), 0.0
	low := 0.0
	for i, n := range buckets[:len(buckets)-1] {
		bound := math.Exp2(float64(i)/float64(octave) + float64(exponent))
		if below+float64(n) >= rank {
			return &Quantile{Seconds: low + (bound-low)*(rank-below)/float64(n)}
		}
		low, below = bound, below+float64(n)
	}
	return &Quantile{Seconds: low, Above: true}
}

// VerbsQuantile returns the 99th percentile of a histogram, nil without durations.
func VerbsQuantile(h *model.Histogram) *Quantile { return p99(h.Buckets[:], 1, model.HistogramMinExp) }

// CompletionQuantile is VerbsQuantile for completions.
func CompletionQuantile(h *model.FineHistogram) *Quantile {
	return p99(h.Buckets[:], model.FineOctave, model.FineMinExp)
}

// bytesOf returns the growth per second of a row's bytes in one direction.
func bytesOf(d model.Direction, now, last []Bytes, seconds float64) *Rate {
	var sum *Rate
	for _, b := range now {
		if b.Direction != d {
			continue
		}
		if sum == nil {
			sum = &Rate{}
		}
		grown := b.Bytes
		for _, l := range last {
			if l.Direction == b.Direction && l.Method == b.Method && l.Bytes <= b.Bytes {
				grown = b.Bytes - l.Bytes
			}
		}
		sum.PerSecond += float64(grown) / seconds
		sum.Estimate = sum.Estimate || b.Estimate && grown > 0
	}
	return sum
}
