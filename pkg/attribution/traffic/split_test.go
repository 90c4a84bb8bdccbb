// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

// A simOwner sends at a known rate, and is surveyed.
type simOwner struct {
	rate       func(at float64) float64 // bytes per second
	begin, end float64                  // end 0: it does not end
	counted    bool                     // by hardware counters of its queue pairs
	exact      bool                     // its calls are always counted
	sent       float64
	survey     *model.Survey
}

func (o *simOwner) lives(at float64) bool { return at >= o.begin && (o.end == 0 || at < o.end) }

func constant(n float64) func(float64) float64 { return func(float64) float64 { return n } }

// steps have ten times the rate after a time.
func steps(when, n float64) func(float64) float64 {
	return func(at float64) float64 {
		if at < when {
			return n
		}
		return 10 * n
	}
}

// TestSplit compares the bytes that are credited to owners with what they sent, on a simulated clock: an hour of
// scrapes every 15 s, with a survey of 10 s every 10 minutes.
func TestSplit(t *testing.T) {
	const megabyte = 1e6
	for name, test := range map[string]struct {
		owners  []*simOwner
		noise   float64                  // relative error of the bytes of a survey
		other   func(at float64) float64 // what else the device sends
		counter func(sent uint64) uint64
		// worst is the largest difference between an owner's credit and what it sent, in the intervals that are split,
		// relative to what all owners sent in them. unattributed is the largest unattributed part of all bytes.
		worst, unattributed float64
	}{
		"1 to 9":                     {owners: []*simOwner{{rate: constant(megabyte)}, {rate: constant(9 * megabyte)}}, worst: 0.001, unattributed: 0.17},
		"1 to 9, surveys with noise": {owners: []*simOwner{{rate: constant(megabyte)}, {rate: constant(9 * megabyte)}}, noise: 0.1, worst: 0.05, unattributed: 0.17},
		"three": {
			owners: []*simOwner{{rate: constant(megabyte)}, {rate: constant(2 * megabyte)}, {rate: constant(5 * megabyte)}},
			noise:  0.1, worst: 0.05, unattributed: 0.17,
		},
		"a load that changes, until the next survey": {
			owners: []*simOwner{{rate: steps(1500, megabyte)}, {rate: constant(9 * megabyte)}}, worst: 0.05, unattributed: 0.17,
		},
		"reads of remote sides": {
			owners: []*simOwner{{rate: constant(megabyte)}, {rate: constant(2 * megabyte)}},
			other:  constant(3 * megabyte), worst: 0.001, unattributed: 0.6,
		},
		"loopback that the counter lacks": {
			owners: []*simOwner{{rate: constant(2 * megabyte)}, {rate: constant(3 * megabyte)}},
			other:  constant(-4 * megabyte), unattributed: 1,
		},
		"one has hardware counters, one is counted": {
			owners: []*simOwner{
				{rate: constant(megabyte)},
				{rate: constant(2 * megabyte)},
				{rate: constant(5 * megabyte), counted: true},
				{rate: constant(5 * megabyte), exact: true},
			},
			noise: 0.1, worst: 0.05, unattributed: 0.05,
		},
		// Nothing is split between the begin of the fourth owner and its first survey.
		"one ends, one begins": {
			owners: []*simOwner{
				{rate: constant(megabyte)},
				{rate: constant(2 * megabyte)},
				{rate: constant(4 * megabyte), end: 1505},
				{rate: constant(3 * megabyte), begin: 2405},
			},
			noise: 0.1, worst: 0.05, unattributed: 0.35,
		},
		"a counter of 32 bits that wraps": {
			owners:  []*simOwner{{rate: constant(megabyte)}, {rate: constant(9 * megabyte)}},
			counter: func(sent uint64) uint64 { return sent % (1 << 32) }, worst: 0.02, unattributed: 0.17,
		},
	} {
		t.Run(name, func(t *testing.T) {
			var worst, unattributed float64
			for seed := range uint64(10) {
				s := splitSim{random: rand.New(rand.NewPCG(seed, 3)), owners: test.owners, noise: test.noise, other: test.other, counter: test.counter}
				a, b := s.run(t, 3600)
				worst, unattributed = max(worst, a), max(unattributed, b)
			}
			t.Logf("largest error %.3f, unattributed %.3f", worst, unattributed)
			if worst > test.worst || unattributed > test.unattributed {
				t.Errorf("want at most %.3f, %.3f", test.worst, test.unattributed)
			}
		})
	}
}

// splitSim simulates owners, their device, the surveys and the scrapes.
type splitSim struct {
	random  *rand.Rand
	owners  []*simOwner
	noise   float64
	other   func(at float64) float64
	counter func(sent uint64) uint64

	at, sent float64 // bytes of the device
}

const (
	splitStep      = 0.5
	surveyInterval = 600
	surveyLength   = 10
	surveyOffset   = 503 // of the first survey
)

// advance lets the time of a scrape interval pass.
func (s *splitSim) advance() {
	for end := s.at + 15; s.at < end; s.at += splitStep {
		if s.other != nil {
			s.sent += s.other(s.at) * splitStep
		}
		for i, o := range s.owners {
			if !o.lives(s.at) {
				o.survey = nil
				continue
			}
			o.sent += o.rate(s.at) * splitStep
			s.sent += o.rate(s.at) * splitStep
			if since := math.Mod(s.at-surveyOffset, surveyInterval); since == surveyLength {
				bytes := o.rate(s.at) * surveyLength * (1 + s.noise*(2*s.random.Float64()-1))
				o.survey = &model.Survey{
					Cgroup: model.CgroupID(i), Device: "d", Begun: second(s.at - surveyLength), Ended: second(s.at), TransmitBytes: uint64(bytes),
				}
			}
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
		id := uint64(i)
		if s.at > o.begin {
			n.holds(id, "d", uint64(toInt(o.lives(s.at))), 1)
		}
		switch {
		case !o.lives(s.at):
		case o.counted:
			n.reports(id, "d", model.MethodQPCounter, uint64(o.sent))
		case o.exact:
			n.covered(id).reports(id, "d", model.MethodUprobe, uint64(o.sent))
		default:
			if n.covered(id, model.GapSurvey); o.survey != nil {
				n.Surveys = append(n.Surveys, *o.survey)
			}
		}
	}
	return n.sum("d", 1), read
}

func toInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// run returns the largest error of an owner's credit by surveys, and the unattributed part of all bytes.
func (s *splitSim) run(t *testing.T, until float64) (worst, unattributed float64) {
	t.Helper()
	var l testLedger
	var counter, total uint64
	last := map[string]uint64{}
	before, credited, sentThen := make([]float64, len(s.owners)), make([]float64, len(s.owners)), make([]float64, len(s.owners))
	for _, o := range s.owners {
		o.sent, o.survey = 0, nil
	}
	for s.at < until {
		s.advance()
		n, read := s.facts()
		if read < counter {
			counter = 0 // when a counter wraps, Prometheus loses what it counted since the last scrape, and so does the ledger
		}
		total, counter = total+read-counter, read
		l.clock = second(s.at)
		got := sent(t, &l, n)
		sum, split := uint64(0), uint64(0)
		for _, bytes := range got {
			sum += bytes
		}
		if sum != total {
			t.Fatalf("at %.0f s: the shares are %d, the device moved %d: %v", s.at, sum, total, got)
		}
		for i := range s.owners {
			split += got[fmt.Sprintf("c%d survey", i)] - last[fmt.Sprintf("c%d survey", i)]
		}
		for i, o := range s.owners {
			who := fmt.Sprintf("c%d survey", i)
			if split > 0 && !o.counted && !o.exact {
				credited[i] += float64(got[who] - last[who])
				sentThen[i] += o.sent - before[i]
			}
			before[i] = o.sent
		}
		last = got
	}
	all := 0.0
	for _, bytes := range sentThen {
		all += bytes
	}
	for i := range s.owners {
		if all > 0 {
			worst = max(worst, math.Abs(credited[i]-sentThen[i])/all)
		}
	}
	return worst, float64(last[" port"]) / float64(total)
}
