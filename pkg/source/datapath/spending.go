// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"math"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// spending is what probes took of the CPU time of processes. A process that is
// younger than a quarter of a minute has no ratio: what its first window took is
// paid back in that time.
type spending struct {
	limit     float64
	processes map[int]*spender
	cgroups   map[uint64]time.Duration // spent since ever
}

// A spender is one process: what it took, and samples of that, step apart, over the
// last minute.
type spender struct {
	cgroup  uint64
	samples []spentSample
	latest  spentSample
}

type spentSample struct {
	at         time.Time
	cpu, spent time.Duration
}

const (
	spentOver = time.Minute
	spentStep = 5 * time.Second
	spentFrom = 15 * time.Second
)

func newSpending(limit float64) spending {
	return spending{limit: limit, processes: map[int]*spender{}, cgroups: map[uint64]time.Duration{}}
}

// spent says what a process took so far, cumulative: all of its CPU time, and of that
// what probes took, what switching them costs included.
func (s *spending) spent(at time.Time, pid int, cgroup uint64, cpu, spent time.Duration) {
	p := s.processes[pid]
	now := spentSample{at, cpu, spent}
	if p == nil || p.cgroup != cgroup || cpu < p.latest.cpu || at.Before(p.latest.at) {
		first := spent
		if p != nil {
			first = max(spent-p.latest.spent, 0)
		}
		s.cgroups[cgroup] += first
		s.processes[pid] = &spender{cgroup: cgroup, samples: []spentSample{now}, latest: now}
		return
	}
	s.cgroups[cgroup] += max(spent-p.latest.spent, 0)
	p.latest = now
	if at.Sub(p.samples[len(p.samples)-1].at) >= spentStep {
		p.samples = append(p.samples, now)
	}
	for len(p.samples) > 1 && at.Sub(p.samples[1].at) >= spentOver {
		p.samples = slices.Delete(p.samples, 0, 1)
	}
}

// settle says what a process that is gone took in the end.
func (s *spending) settle(pid int, cgroup uint64, spent time.Duration) {
	if p := s.processes[pid]; p != nil {
		cgroup, spent = p.cgroup, spent-p.latest.spent
	}
	s.cgroups[cgroup] += max(spent, 0)
}

// ratio is which part of its CPU time probes took in the last minute.
func (p *spender) ratio() float64 {
	first := p.samples[0]
	if p.latest.at.Sub(first.at) < spentFrom || p.latest.cpu <= first.cpu {
		return 0
	}
	return max(p.latest.spent-first.spent, 0).Seconds() / (p.latest.cpu - first.cpu).Seconds()
}

// gone forgets a process; what it took stays.
func (s *spending) gone(pid int) { delete(s.processes, pid) }

func (s *spending) forgetSpent(cgroups map[uint64]bool) {
	for id := range cgroups {
		delete(s.cgroups, id)
	}
}

// budgets tells of each cgroup.
func (s *spending) budgets() []model.Budget {
	limit := s.limit
	if limit == 0 {
		limit = math.Inf(1)
	}
	most := map[uint64]float64{}
	for _, p := range s.processes {
		most[p.cgroup] = max(most[p.cgroup], p.ratio())
	}
	out := make([]model.Budget, 0, len(s.cgroups))
	for id, spent := range s.cgroups {
		out = append(out, model.Budget{Cgroup: id, LimitRatio: limit, SpentRatio: most[id], SpentSeconds: spent.Seconds()})
	}
	slices.SortFunc(out, func(a, b model.Budget) int {
		if a.Cgroup < b.Cgroup {
			return -1
		}
		return 1
	})
	return out
}
