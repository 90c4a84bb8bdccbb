// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/budget"
)

// Between windows a series counts on: its contexts are assumed to do, in the CPU time that their processes have used since
// their periods began, what they did in the CPU time of the last periods. The next window replaces that. If it shows
// less, the series stands still until it has reached what was counted on.

// ahead is the CPU time of a process, in seconds, since its period began; joined is how much of it is from before the context
// was known.
type ahead struct {
	cpu, joined float64
	known       bool
}

// rates are what the contexts of a series counted in the last periods, as confidence weighs them.
type rates struct {
	pending, recent [counters]float64 // at this step; of all periods
	// The CPU time of these periods. A process that was not known when its period began is not part of it.
	pendingCPU, recentCPU [budget.Groups]float64
}

// countOn sets how far the process of a context is ahead of its periods.
func (f *fold) countOn(key gen.DatapathContextKey, cpu [budget.Groups]float64) {
	c := f.contexts[key]
	if c == nil {
		return
	}
	for g := range cpu {
		a := &c.ahead[g]
		if !a.known {
			a.known, a.joined = true, cpu[g]
		}
		a.cpu = max(cpu[g]-a.joined, 0)
	}
}

// endPeriods adds what was counted in periods that end at this step.
func (r *rates) endPeriods(confidence *[budget.Groups]confidence) {
	for i := range r.recent {
		if keep := confidence[groupOfCounter(i)].last; keep > 0 {
			r.recent[i] = r.recent[i]*keep + r.pending[i]
			r.pending[i] = 0
		}
	}
	for g := range r.recentCPU {
		if keep := confidence[g].last; keep > 0 {
			r.recentCPU[g] = r.recentCPU[g]*keep + r.pendingCPU[g]
			r.pendingCPU[g] = 0
		}
	}
}

// expected returns what a counter is expected to count in CPU time of contexts. Errors are not expected.
func (s *series) expected(i int, cpu float64) float64 {
	of := s.recentCPU[groupOfCounter(i)]
	if i >= countErrors || cpu <= 0 || of == 0 {
		return 0
	}
	return s.recent[i] / of * cpu
}

// countOn shows what contexts are expected to have counted since their periods began, in CPU time.
func (s *series) countOn(cpu [budget.Groups]float64) {
	for g := range cpu {
		if !s.confidence[g].predicts() {
			cpu[g] = 0
		}
	}
	received := 0.0
	for i := range s.counts {
		more := s.expected(i, cpu[groupOfCounter(i)])
		s.counts[i].show(more)
		if directionOf(i) == model.Receive {
			received += more
		}
	}
	s.received.show(received)
}

// settle adds what a context that ends is expected to have counted since its period began, and reports whether that is
// known.
func (s *series) settle(group int, cpu float64) bool {
	if cpu <= 0 || s.recentCPU[group] == 0 || !s.confidence[group].predicts() {
		return false
	}
	for i := range s.counts {
		if groupOfCounter(i) != group {
			continue
		}
		more := s.expected(i, cpu)
		s.counts[i].addSampled(more)
		if directionOf(i) == model.Receive {
			s.received.addSampled(more)
		}
	}
	return true
}

// ahead returns how far the contexts of each series are ahead of their periods, in CPU time.
func (f *fold) ahead() map[seriesKey][budget.Groups]float64 {
	all := make(map[seriesKey][budget.Groups]float64, len(f.series))
	for _, c := range f.contexts {
		sum := all[c.series]
		for g := range sum {
			sum[g] += c.ahead[g].cpu
		}
		all[c.series] = sum
	}
	return all
}
