// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/source/datapath/budget"
)

// The relative standard error is that of the sum of many estimates whose mean is known: of a steady load, a noisy one,
// and one that posts in a quarter of the time.
func TestConfidence(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for name, load := range map[string]func() float64{
		"steady": func() float64 { return 1000 + random.Float64() },
		"noisy":  func() float64 { return 1000 * (1 + random.NormFloat64()/5) },
		"bursty": func() float64 {
			if random.IntN(4) == 0 {
				return 4000
			}
			return 0
		},
	} {
		const runs, windows = 400, 40
		var predicted, squares float64
		for range runs {
			var c confidence
			var sum, seconds float64
			for range windows {
				period := time.Duration((0.5 + random.Float64()) * float64(time.Second))
				n := load() * period.Seconds()
				sum, seconds = sum+n, seconds+period.Seconds()
				how := budget.Sampling{Period: period, Ratio: 0.01}
				c.observe(n/4, how) // of two contexts
				c.observe(3*n/4, how)
				c.endPeriod()
			}
			predicted += c.relativeError() / runs
			deviation := sum/(1000*seconds) - 1
			squares += deviation * deviation / runs
		}
		if actual := math.Sqrt(squares); predicted < actual*0.8-0.001 || predicted > actual*1.2+0.001 {
			t.Errorf("%s: predicted %.4f, actual %.4f", name, predicted, actual)
		} else {
			t.Logf("%s: predicted %.4f, actual %.4f", name, predicted, actual)
		}
	}
}

// Estimates are listed if they rest on enough windows, and agree.
func TestConfidenceAbsent(t *testing.T) {
	key := gen.DatapathContextKey{Context: 1, Tgid: 10}
	for _, test := range []struct {
		name    string
		windows []uint64 // requests seen in each
		ratio   float64
		listed  bool
	}{
		{"one", []uint64{100}, 0.1, false},
		{"two", []uint64{100, 85}, 0.1, false},
		{"two that agree", []uint64{100, 96}, 0.1, true},
		{"few", []uint64{100, 60, 140}, 0.1, false},
		{"few, most of the time", []uint64{100, 100}, 0.8, true},
		{"enough", []uint64{100, 90, 110, 100, 100, 100}, 0.1, true},
		{"bursts", []uint64{0, 0, 400, 0, 0, 0, 400, 0}, 0.1, false},
	} {
		f := newFold(0.01)
		s := gen.DatapathContextStat{Cgroup: 7, Device: 1}
		how := whole
		how[budget.Post] = budget.Sampling{Windowed: true, Scale: 1 / test.ratio, Ratio: test.ratio, Period: time.Second}
		for _, n := range test.windows {
			s.Posted[gen.DatapathOpcodeOPCODE_SEND] += n
			s.Bytes[gen.DatapathOpcodeOPCODE_SEND] += 1000 * n
			f.add(key, &s, how)
			f.endPeriods()
		}
		got, resting := rows(f)
		for _, name := range []string{"7 mlx5_1 transmit sampled", "7 mlx5_1 send sampled"} {
			if got[name] == 0 || resting[name] == test.listed {
				t.Errorf("%s: %s is %d, resting: %v", test.name, name, got[name], resting[name])
			}
		}
	}
}
