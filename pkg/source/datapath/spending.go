// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"maps"
	"math"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// spending is the CPU time that probes took of processes and cgroups. A process has a ratio after an interval between surveys, which
// contains one survey.
type spending struct {
	limit     float64
	window    time.Duration
	processes map[int]*processSpending
	cgroups   map[model.CgroupID]time.Duration // cumulative
}

// processSpending has samples of one process over the window.
type processSpending struct {
	cgroup  model.CgroupID
	samples []spendingSample
	latest  spendingSample // spent is without surveys
	spent   time.Duration  // with surveys
}

type spendingSample struct {
	at         time.Time
	cpu, spent time.Duration
}

// samplesOfWindow is the number of samples of a process in a window.
const samplesOfWindow = 12

func newSpending(limit float64, window time.Duration) spending {
	return spending{limit: limit, window: window, processes: map[int]*processSpending{}, cgroups: map[model.CgroupID]time.Duration{}}
}

// update records the CPU time of a process and the part that probes took. Both are cumulative. surveyed: there was a survey of the
// process since the last update.
func (s *spending) update(at time.Time, pid int, cgroup model.CgroupID, cpu, spent time.Duration, surveyed bool) {
	p := s.processes[pid]
	took, outside := spent, time.Duration(0)
	if p != nil {
		took, outside = max(spent-p.spent, 0), p.latest.spent
		p.spent = spent
	}
	s.cgroups[cgroup] += took
	if !surveyed {
		outside += took
	}
	now := spendingSample{at, cpu, outside}
	if p == nil || p.cgroup != cgroup || cpu < p.latest.cpu || at.Before(p.latest.at) {
		s.processes[pid] = &processSpending{cgroup: cgroup, samples: []spendingSample{now}, latest: now, spent: spent}
		return
	}
	p.latest = now
	if at.Sub(p.samples[len(p.samples)-1].at) >= s.window/samplesOfWindow {
		p.samples = append(p.samples, now)
	}
	for len(p.samples) > 1 && at.Sub(p.samples[1].at) >= s.window {
		p.samples = slices.Delete(p.samples, 0, 1)
	}
}

// finish records the last CPU time of probes in an ended process.
func (s *spending) finish(pid int, cgroup model.CgroupID, spent time.Duration) {
	if p := s.processes[pid]; p != nil {
		cgroup, spent = p.cgroup, spent-p.spent
	}
	s.cgroups[cgroup] += max(spent, 0)
}

// ratio returns the share of its CPU time that probes took outside of surveys in the last window, 0 if negligible: an idle process takes
// no CPU time.
func (p *processSpending) ratio(window time.Duration) float64 {
	first := p.samples[0]
	if p.latest.at.Sub(first.at) < window || p.latest.cpu <= first.cpu || p.latest.spent-first.spent < negligible {
		return 0
	}
	return max(p.latest.spent-first.spent, 0).Seconds() / (p.latest.cpu - first.cpu).Seconds()
}

// fill adds the CPU time of probes by cgroup, and the highest ratio of its processes.
func (s *spending) fill(snap *model.Snapshot) {
	highest := map[model.CgroupID]float64{}
	for _, p := range s.processes {
		highest[p.cgroup] = max(highest[p.cgroup], p.ratio(s.window))
	}
	snap.Budgets = make([]model.Budget, 0, len(s.cgroups))
	snap.Spent = make([]model.Series[model.SpentKey, model.CPUTime], 0, len(s.cgroups))
	for _, id := range slices.Sorted(maps.Keys(s.cgroups)) {
		snap.Budgets = append(snap.Budgets, model.Budget{Cgroup: id, SpentRatio: highest[id]})
		snap.Spent = append(snap.Spent, model.Series[model.SpentKey, model.CPUTime]{Cgroup: id, Value: model.CPUTime(s.cgroups[id])})
	}
}

// limitRatio returns the share of a process's CPU time that probes may take.
func (s *spending) limitRatio() float64 {
	if s.limit == 0 {
		return math.Inf(1)
	}
	return s.limit
}
