// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"errors"
	"io"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/source/datapath/budget"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// switchCost is what attaching or detaching one probe costs a process: its memory
// map is locked while the instruction is replaced.
const switchCost = 20 * time.Microsecond

// reading is the counters of one verbs context.
type reading struct {
	key  gen.DatapathContextKey
	stat gen.DatapathContextStat
}

// step passes what processes used to the budget, attaches and detaches probes as it
// decides, and returns the time of the next step.
func (s *Source) step() time.Time {
	now := time.Now()
	readings, spent, err := s.read()
	if err != nil {
		s.opts.Logger.Debug("reading the maps of the data path", zap.Error(err))
		if s.opts.Budget > 0 { // unknown cost may exceed it
			for _, f := range s.files {
				s.switchGroup(f, budget.Post, false)
				s.switchGroup(f, budget.Poll, false)
			}
		}
		return now.Add(removeInterval)
	}
	var loads []budget.ProcessLoad
	for pid, w := range s.processes {
		if cpu, err := w.CPU(); err == nil {
			loads = append(loads, budget.ProcessLoad{PID: pid, CPU: cpu, Spent: spent[pid]})
		}
	}
	files := make([]budget.FileLoad, 0, len(s.files))
	for _, f := range s.files {
		if !s.isWanted(f) {
			continue
		}
		files = append(files, budget.FileLoad{
			File: budget.File(f.id), Probes: [budget.Groups]int{f.probes(budget.Post), f.probes(budget.Poll)}, PIDs: f.pids(),
			Detaching: [budget.Groups]bool{f.closing[budget.Post].Load(), f.closing[budget.Poll].Load()},
		})
	}
	wants, next := s.budget.Tick(now, loads, files)
	s.count(now, readings, loads)
	for _, f := range s.files {
		for c := range budget.Groups {
			if !s.switchGroup(f, c, wants[budget.File(f.id)][c]) {
				next = now.Add(budget.DetachInterval)
			}
		}
	}
	return next
}

// isWanted reports whether a process that maps the file is to be counted, or the file
// is kept for the next one. Other processes that map it pay for its probes, too.
func (s *Source) isWanted(f *file) bool {
	if len(f.paths) == 0 {
		return f.kept != nil
	}
	for pid := range f.paths {
		if w := s.processes[pid]; w != nil && w.chosen {
			return true
		}
	}
	return false
}

// read copies the counters of all contexts and adds up their cost by process.
func (s *Source) read() ([]reading, map[int][budget.Groups]time.Duration, error) {
	readings := s.readings[:0]
	spent := map[int][budget.Groups]time.Duration{}
	pay := func(tgid uint32, ns [budget.Groups]uint64) {
		sum := spent[int(tgid)]
		for c := range budget.Groups {
			sum[c] += time.Duration(ns[c])
		}
		spent[int(tgid)] = sum
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.kernel.contexts(func(key gen.DatapathContextKey, stat *gen.DatapathContextStat) {
		readings = append(readings, reading{key, *stat})
		pay(key.Tgid, stat.SpentNs)
	})
	s.readings = readings
	err = errors.Join(err, s.kernel.unknownCosts(func(tgid uint32, stat *gen.DatapathUnknownCost) { pay(tgid, stat.SpentNs) }))
	return readings, spent, err
}

// count adds readings to the series, scaled by the sampling of the budget.
func (s *Source) count(now time.Time, readings []reading, loads []budget.ProcessLoad) {
	worth := make(map[locate.FileID]samplings, len(s.files))
	ended, probes := false, 0
	var unprobed error
	for _, w := range s.processes {
		unprobed = cmp.Or(unprobed, w.refused)
	}
	for id, f := range s.files {
		var w samplings
		for c := range budget.Groups {
			w[c] = s.budget.Sampling(budget.File(id), c)
			ended = ended || w[c].Begins || w[c].Windowed && w[c].Scale != 0
			probes += len(f.links[c])
		}
		worth[id] = w
		unprobed = cmp.Or(unprobed, f.failure(budget.Post), f.failure(budget.Poll))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.samplings, s.unprobed = worth, unprobed
	for i := range readings {
		r := &readings[i]
		s.fold.add(r.key, &r.stat, s.samplingsOf(r.key))
		if s.isLate(r.key, &r.stat) {
			s.fold.markLate(r.key)
		}
	}
	for _, l := range loads {
		took := l.Spent[budget.Post] + l.Spent[budget.Poll] + s.budget.SwitchingCost(l.PID)
		s.fold.update(now, l.PID, s.processes[l.PID].cgroup, l.CPU, took)
	}
	s.stats.Processes, s.stats.Probes = uint64(len(loads)), uint64(probes)
	if ended {
		err := s.kernel.latencies(func(key gen.DatapathLatencyKey, l *gen.DatapathLatency) {
			s.fold.addLatency(key, l, s.samplingsOf(key.Context)[budget.Poll])
		})
		if err != nil {
			s.opts.Logger.Debug("reading durations of the data path", zap.Error(err))
		}
	}
	for id, w := range worth {
		for c := range w { // the next counts belong to the window that has begun
			w[c].Discard = w[c].Discard && !w[c].Begins
		}
		worth[id] = w
	}
}

// switchGroup attaches or detaches the probes of a group, or attaches new ones. It
// returns false while it cannot.
func (s *Source) switchGroup(f *file, group int, on bool) bool {
	was := f.on(group)
	switch {
	case on && f.closing[group].Load():
		return false // two probes at one place would count twice
	case on:
		if err := f.attach(group, s.probe); err != nil {
			s.opts.Logger.Warn("not all functions of a provider are probed on the data path", zap.Error(err))
		}
	case was:
		f.detach(group, &s.detaching)
	}
	if on && f.failure(group) == nil {
		f.setProbed(group, monotonic())
	}
	if on != was {
		for _, key := range s.contextsOf(f.id) {
			s.kernel.gap(key)
		}
		if !on { // the kernel removes them after a grace period, perf events one by one
			s.budget.Detaching(budget.File(f.id), group, f.pids())
		}
		s.budget.Switched(budget.File(f.id), group, on, time.Now(), f.pids())
	}
	return true
}

// monotonic returns CLOCK_MONOTONIC in ns, which the programs use.
func monotonic() uint64 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return 0
	}
	return uint64(now.Nano())
}

// contextsOf returns the contexts with functions in a file.
func (s *Source) contextsOf(id locate.FileID) []gen.DatapathContextKey {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []gen.DatapathContextKey
	for key, p := range s.contexts {
		if p.file == id {
			keys = append(keys, key)
		}
	}
	return keys
}

// probe probes a target. The cost of a trap is passed to the programs.
func (s *Source) probe(path string, at target) (io.Closer, error) {
	entry := s.costs.emulated
	if at.Stepped {
		entry = s.costs.stepped
	}
	return s.kernel.probe(path, at.Site, at.pid, entry, s.costs.returned)
}
