// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// A sampledOwner sends at a rate that is known. The estimate of what it sent grows at the end of its windows, by the rate of
// the window times the time since the previous one.
type sampledOwner struct {
	rate       func(at float64) float64 // bytes per second
	begin, end float64                  // end 0: never
	unseen     bool                     // has no windows
	counted    bool                     // by hardware counters of its queue pairs
	uncertain  bool                     // the estimate is not listed
	sent       float64
	estimate   float64
	observed   float64 // end of the last window
	window     float64 // the next one
}

func (o *sampledOwner) lives(at float64) bool { return at >= o.begin && (o.end == 0 || at < o.end) }

func constant(n float64) func(float64) float64 { return func(float64) float64 { return n } }

// bursts are of one second in four.
func bursts(n, phase float64) func(float64) float64 {
	return func(at float64) float64 {
		if math.Mod(at+phase, 4) < 1 {
			return 4 * n
		}
		return 0
	}
}

// until stops at a time, and keeps its queue pairs.
func until(end, n float64) func(float64) float64 {
	return func(at float64) float64 { return n * float64(toInt(at < end)) }
}

// phases have ten times the rate in every other 100 s.
func phases(n float64) func(float64) float64 {
	return func(at float64) float64 { return n * (1 + 9*math.Floor(math.Mod(at/100, 2))) }
}

// TestSplit compares the bytes that are credited to owners with what they sent, on a clock that is simulated, in ten minutes
// of scrapes that are 15 s apart.
func TestSplit(t *testing.T) {
	const megabyte = 1e6
	for name, test := range map[string]struct {
		owners []*sampledOwner
		// separate: the windows of the owners are not at the same times, as they map different files.
		separate bool
		other    func(at float64) float64 // what else the device sends
		kernel   uint64                   // queue pairs of the kernel that may send it
		counter  func(sent uint64) uint64
		// worst is the largest error of what is credited to an owner, byTime that of its estimate; unattributed is the
		// largest part of the bytes that has no owner.
		worst, byTime, unattributed float64
		better                      bool // the mean error is less than two thirds of that of the estimates
	}{
		"steady": {
			owners: []*sampledOwner{{rate: constant(megabyte)}, {rate: constant(2 * megabyte)}, {rate: constant(5 * megabyte)}},
			worst:  0.001, byTime: 0.03, unattributed: 0.12,
		},
		"steady, windows at different times": {
			owners:   []*sampledOwner{{rate: constant(megabyte)}, {rate: constant(2 * megabyte)}, {rate: constant(5 * megabyte)}},
			separate: true, worst: 0.03, byTime: 0.03, unattributed: 0.12,
		},
		"phases": {
			owners: []*sampledOwner{{rate: phases(megabyte)}, {rate: phases(3 * megabyte)}},
			worst:  0.02, byTime: 0.04, unattributed: 0.05, better: true,
		},
		"bursts of a job": {
			owners: []*sampledOwner{{rate: bursts(megabyte, 0)}, {rate: bursts(3*megabyte, 0)}},
			worst:  0.27, byTime: 0.27, unattributed: 0.4, better: true,
		},
		// The windows are too few to show how bursts at different times are distributed.
		"bursts of eight owners": {
			owners: []*sampledOwner{
				{rate: bursts(megabyte, 0)},
				{rate: bursts(megabyte, 0.5)},
				{rate: bursts(megabyte, 1)},
				{rate: bursts(megabyte, 1.5)},
				{rate: bursts(megabyte, 2)},
				{rate: bursts(megabyte, 2.5)},
				{rate: bursts(megabyte, 3)},
				{rate: bursts(megabyte, 3.5)},
			},
			separate: true, worst: 0, byTime: 2, unattributed: 1,
		},
		"reads of remote sides": {
			owners: []*sampledOwner{{rate: constant(megabyte)}, {rate: constant(2 * megabyte)}},
			other:  constant(3 * megabyte), worst: 0.02, byTime: 0.03, unattributed: 0.57,
		},
		"reads of remote sides, and uncertain estimates": {
			owners: []*sampledOwner{{rate: constant(megabyte), uncertain: true}, {rate: constant(2 * megabyte), uncertain: true}},
			other:  constant(3 * megabyte), byTime: 0.03, unattributed: 1,
		},
		"bursts, and reads of remote sides": {
			owners: []*sampledOwner{{rate: bursts(megabyte, 0)}, {rate: bursts(3*megabyte, 0)}},
			other:  constant(4 * megabyte), worst: 0.35, byTime: 0.27, unattributed: 0.7,
		},
		"a tenth is the kernel's": {
			owners: []*sampledOwner{{rate: constant(3 * megabyte)}, {rate: constant(6 * megabyte)}},
			other:  constant(megabyte), kernel: 4, worst: 0.02, byTime: 0.03, unattributed: 0.21,
		},
		"one ends, one begins": {
			owners: []*sampledOwner{
				{rate: constant(megabyte)},
				{rate: constant(2 * megabyte)},
				{rate: constant(4 * megabyte), end: 205},
				{rate: constant(3 * megabyte), begin: 405},
			},
			worst: 0.1, byTime: 0.05, unattributed: 0.3,
		},
		"one stops": {
			owners: []*sampledOwner{
				{rate: constant(2 * megabyte)},
				{rate: until(300, 3*megabyte)},
				{rate: constant(megabyte)},
			},
			worst: 0.1, byTime: 0.03, unattributed: 0.15,
		},
		"loopback that the counter lacks": {
			owners: []*sampledOwner{{rate: constant(2 * megabyte)}, {rate: constant(3 * megabyte)}},
			other:  constant(-4 * megabyte), worst: 0, byTime: 0.03, unattributed: 1,
		},
		"one has hardware counters": {
			owners: []*sampledOwner{
				{rate: constant(megabyte)}, {rate: constant(2 * megabyte)}, {rate: constant(5 * megabyte), counted: true},
			},
			worst: 0.02, byTime: 0.03, unattributed: 0.06,
		},
		"an owner without windows": {
			owners: []*sampledOwner{{rate: constant(megabyte)}, {rate: constant(2 * megabyte)}, {rate: constant(3 * megabyte), unseen: true}},
			worst:  0.02, byTime: 0.03, unattributed: 0.57,
		},
		"a counter of 32 bits that wraps": {
			owners:  []*sampledOwner{{rate: constant(megabyte)}, {rate: constant(50 * megabyte)}},
			counter: func(sent uint64) uint64 { return sent % (1 << 32) },
			worst:   0.1, byTime: 0.03, unattributed: 0.12,
		},
		"a counter that is reset": {
			owners:  []*sampledOwner{{rate: constant(megabyte)}, {rate: constant(2 * megabyte)}},
			counter: func(sent uint64) uint64 { return sent % 900e6 },
			worst:   0.06, byTime: 0.03, unattributed: 0.12,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var worst, byTime, unattributed, sum, sumByTime float64
			for seed := range uint64(10) {
				s := splitSim{
					random: rand.New(rand.NewPCG(seed, 3)), owners: test.owners, separate: test.separate,
					other: test.other, kernel: test.kernel, counter: test.counter,
				}
				a, b, c := s.run(t, 600)
				worst, byTime, unattributed = max(worst, a), max(byTime, b), max(unattributed, c)
				sum, sumByTime = sum+a, sumByTime+b
			}
			t.Logf("largest error %.3f, by time %.3f, unattributed %.3f", worst, byTime, unattributed)
			if worst > test.worst || byTime > test.byTime || unattributed > test.unattributed {
				t.Errorf("want at most %.3f, %.3f, %.3f", test.worst, test.byTime, test.unattributed)
			}
			if test.better && sum > 2*sumByTime/3 {
				t.Errorf("the mean error is %.3f, by time %.3f", sum/10, sumByTime/10)
			}
		})
	}
}

// splitSim simulates owners, their device and the scrapes.
type splitSim struct {
	random   *rand.Rand
	owners   []*sampledOwner
	separate bool
	other    func(at float64) float64
	kernel   uint64
	counter  func(sent uint64) uint64

	at, sent float64 // the sum of the device
}

const splitStep = 0.05

func (s *splitSim) period() float64 { return 4 + 8*s.random.Float64() }

// advance lets the time of a scrape interval pass.
func (s *splitSim) advance() {
	for end := s.at + 15; s.at < end; s.at += splitStep {
		period := s.period()
		for _, o := range s.owners {
			if !o.lives(s.at) {
				continue
			}
			rate := o.rate(s.at)
			o.sent += rate * splitStep
			s.sent += rate * splitStep
			if o.unseen || s.at < o.window {
				continue
			}
			o.estimate += rate * (s.at - o.observed)
			if s.separate {
				period = s.period()
			}
			o.observed, o.window = s.at, s.at+period
		}
		if s.other != nil {
			s.sent += s.other(s.at) * splitStep
		}
	}
}

// facts are what the sources report now. read is the value of the device's counter.
func (s *splitSim) facts() (n *node, read uint64) {
	read = uint64(s.sent)
	if s.counter != nil {
		read = s.counter(read)
	}
	read = read / 4 * 4
	n = newNode().device("d", read, 0)
	for i, o := range s.owners {
		if s.at > o.begin {
			n.holds(uint64(i), "d", uint64(toInt(o.lives(s.at))), 1)
		}
		if o.counted {
			n.reports(uint64(i), "d", model.MethodQPCounter, uint64(o.sent))
		}
		if o.estimate > 0 {
			n.reports(uint64(i), "d", model.MethodUprobe, uint64(o.estimate), model.Seen{Sampled: true, Resting: o.uncertain})
		}
	}
	return n.sum("d", 1+s.kernel), read
}

func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// run returns the largest error of what was credited to an owner, of what it sent in the intervals whose bytes were split; that of
// an estimate by time; and the part of all bytes that is unattributed.
func (s *splitSim) run(t *testing.T, until float64) (worst, byTime, unattributed float64) {
	t.Helper()
	var l testLedger
	var counter, total uint64
	last := map[string]uint64{}
	before, credited, sentThen := make([]float64, len(s.owners)), make([]float64, len(s.owners)), make([]float64, len(s.owners))
	for _, o := range s.owners {
		o.sent, o.estimate, o.observed, o.window = 0, 0, o.begin, o.begin
	}
	for s.at < until {
		s.advance()
		n, read := s.facts()
		if read < counter {
			counter = 0
		}
		total, counter = total+read-counter, read
		l.clock = time.Unix(0, int64(s.at*1e9))
		got := sent(t, &l, n)
		sum, split := got[" port"], uint64(0)
		for i := range s.owners {
			split += got[fmt.Sprintf("c%d sampled", i)] - last[fmt.Sprintf("c%d sampled", i)]
			sum += got[fmt.Sprintf("c%d sampled", i)] + got[fmt.Sprintf("c%d port", i)] + got[fmt.Sprintf("c%d qp_counter", i)]
		}
		if sum != total {
			t.Fatalf("at %.0f s: the shares are %d, the device moved %d: %v", s.at, sum, total, got)
		}
		for i, o := range s.owners {
			who := fmt.Sprintf("c%d sampled", i)
			if split > 0 && !o.counted {
				credited[i] += float64(got[who] - last[who])
				sentThen[i] += o.sent - before[i]
			}
			before[i] = o.sent
		}
		last = got
	}
	for i, o := range s.owners {
		if o.unseen {
			continue
		}
		if sentThen[i] > 0 {
			worst = max(worst, math.Abs(credited[i]/sentThen[i]-1))
		}
		byTime = max(byTime, math.Abs(o.estimate/o.sent-1))
	}
	return worst, byTime, float64(last[" port"]) / float64(total)
}
