// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"errors"
	"io"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/source/datapath/budget"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// reading is the counters of one verbs context.
type reading struct {
	key    gen.DatapathContextKey
	stat   gen.DatapathContextStat
	closed bool
}

// step passes what processes used to the budget, attaches and detaches probes as it
// decides, and returns the time of the next step.
func (s *Source) step() time.Time {
	now := time.Now()
	s.pace.begin(now)
	err := s.read()
	now = now.Add(time.Since(now) / 2) // the counts are from between
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
	loads := s.readLoads()
	files := s.loadedFiles[:0]
	for _, f := range s.files {
		if !s.isWanted(f) {
			continue
		}
		files = append(files, budget.FileLoad{
			File: budget.File(f.id), Pages: [budget.Groups]int{f.pages(budget.Post), f.pages(budget.Poll)}, PIDs: f.pids(),
			Ready:     [budget.Groups]bool{s.isReady(f, budget.Post), s.isReady(f, budget.Poll)},
			Detaching: [budget.Groups]bool{f.inPlace[budget.Post].Load(), f.inPlace[budget.Poll].Load()},
		})
	}
	s.loadedFiles = files
	wants, next := s.budget.Tick(now, loads, files)
	s.count(now, s.readings, loads)
	s.pace.read(time.Now())
	for _, f := range s.files {
		f.added = false
		for c := range budget.Groups {
			if s.budget.Ending(budget.File(f.id), c) {
				f.prepare(c, s.kernel.touch, &s.detaching, s.wake)
			} else if f.preparing[c] {
				f.reset(c)
			}
			if !s.switchGroup(f, c, wants[budget.File(f.id)][c]) {
				next = now.Add(budget.DetachInterval)
			}
		}
	}
	return next
}

// readLoads reads the CPU time of all processes that have not exited.
func (s *Source) readLoads() []budget.ProcessLoad {
	s.loads, s.loaded = s.loads[:0], s.loaded[:0]
	for pid, w := range s.processes {
		if cpu, err := w.CPU(); err == nil {
			s.loads = append(s.loads, budget.ProcessLoad{PID: pid, CPU: cpu, Spent: s.spent[pid]})
			s.loaded = append(s.loaded, w.Process)
		}
	}
	locate.EachExited(s.loaded, func(i int) { s.loads[i].PID = 0 })
	s.loads = slices.DeleteFunc(s.loads, func(l budget.ProcessLoad) bool { return l.PID == 0 })
	return s.loads
}

// isReady reports whether detached probes of a group would be gone at once. Perf events
// take as long in any case.
func (s *Source) isReady(f *file, group int) bool { return !s.kernel.multi || f.ready[group].Load() }

// wake makes the loop do the next step now.
func (s *Source) wake() {
	select {
	case s.ready <- struct{}{}:
	default:
	}
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

// read copies the counters of all contexts and adds up their cost by process. Once per
// removeInterval it also corrects the numbers of contexts and rings of each owner, which limit them.
func (s *Source) read() error {
	s.readings = s.readings[:0]
	clear(s.spent)
	pay := func(tgid uint32, ns [budget.Groups]uint64) {
		sum := s.spent[int(tgid)]
		for c := range budget.Groups {
			sum[c] += time.Duration(ns[c])
		}
		s.spent[int(tgid)] = sum
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.kernel.eachContext(func(key gen.DatapathContextKey, stat *gen.DatapathContextStat, closed bool) {
		s.readings = append(s.readings, reading{key, *stat, closed})
		pay(key.Tgid, stat.SpentNs)
	})
	if err == nil && s.pace.begun.Sub(s.removedAt) >= removeInterval {
		found := map[uint64]int64{}
		for i := range s.readings {
			found[s.readings[i].stat.Owner]++
		}
		err = errors.Join(s.kernel.object.Owners.Correct(contextsOfOwner, found), s.kernel.correctRings())
	}
	return errors.Join(err, s.kernel.unknownCosts(func(tgid uint32, stat *gen.DatapathUnknownCost) { pay(tgid, stat.SpentNs) }))
}

// count adds readings to the series, scaled by the sampling of the budget.
func (s *Source) count(now time.Time, readings []reading, loads []budget.ProcessLoad) {
	worth := make(map[locate.FileID]samplings, len(s.files))
	traced := make(map[locate.FileID]uint64, len(s.files))
	unprobeable := map[locate.FileID]bool{}
	ended, probes := false, 0
	var unprobed error
	for _, w := range s.processes {
		unprobed = cmp.Or(unprobed, w.refused)
	}
	for id, f := range s.files {
		var w samplings
		for c := range budget.Groups {
			w[c] = s.budget.Sampling(budget.File(id), c)
			ended = ended || w[c].Ends || w[c].Begins || w[c].Windowed && w[c].Scale != 0
			probes += len(f.links[c])
		}
		worth[id] = w
		traced[id] = f.tracedSince()
		if len(f.failed) > 0 {
			unprobeable[id] = true
			unprobed = cmp.Or(f.failure(budget.Post), f.failure(budget.Poll), unprobed)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	live := make(map[int]bool, len(loads))
	for _, l := range loads {
		live[l.PID] = true
	}
	s.samplings, s.tracedSince, s.unprobed, s.unprobeable = worth, traced, unprobed, unprobeable
	for i := range readings {
		r := &readings[i]
		s.fold.add(r.key, &r.stat, s.samplingsOf(r.key))
		if live[int(r.key.Tgid)] { // of one that has exited, the budget no longer knows the CPU time
			s.fold.countOn(r.key, s.ahead(r.key))
		}
		if s.isLate(r.key, &r.stat) {
			s.fold.markLate(r.key)
		}
	}
	s.fold.endPeriods()
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

// ahead returns the CPU time of the process of a context that the periods which have ended do not contain.
func (s *Source) ahead(key gen.DatapathContextKey) (cpu [budget.Groups]float64) {
	if p, located := s.contexts[key]; located {
		for g := range cpu {
			cpu[g] = s.budget.Ahead(budget.File(p.file), g, int(key.Tgid))
		}
	}
	return cpu
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
		if on {
			f.switchedOn[group] = monotonic()
		}
		for _, key := range s.contextsOf(f.id) {
			s.kernel.gap(key)
		}
		if !on { // the kernel removes them after a grace period
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
