// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// reading is the counters of one verbs context.
type reading struct {
	key    gen.DatapathContextKey
	stat   gen.DatapathContextStat
	closed bool
}

// step counts, begins and ends surveys, attaches and detaches probes, and returns the time of the next step.
func (s *Source) step() time.Time {
	now := time.Now()
	s.pace.begin(now)
	err := s.read()
	if err != nil {
		s.opts.Logger.Debug("reading the maps of the data path", zap.Error(err))
	} else {
		loads := s.readLoads()
		s.count(now, s.readings, loads)
		s.limit(now, loads)
	}
	s.pace.read(time.Now())
	next := now.Add(removeInterval)
	for _, f := range s.files {
		f.survey.broken = f.survey.broken || err != nil
		wanted := s.isWanted(f)
		s.setPlace(f, s.schedule.advance(&f.survey, len(f.paths) > 0 && wanted, now))
		for g := range groups {
			s.want(f, g, wanted && f.survey.on(g))
		}
		s.change(f, now)
		s.beginCounting(f, now)
		if at := s.schedule.due(&f.survey); !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	s.setPlaces()
	return next
}

// processLoad is the CPU time that a process used, and what probes took of it.
type processLoad struct {
	pid   int
	cpu   time.Duration
	spent [groups]time.Duration
}

// readLoads reads the CPU time of all processes that have not exited.
func (s *Source) readLoads() []processLoad {
	s.loads, s.loaded = s.loads[:0], s.loaded[:0]
	for pid, w := range s.processes {
		if cpu, err := w.CPU(); err == nil {
			s.loads = append(s.loads, processLoad{pid: pid, cpu: cpu, spent: s.spent[pid]})
			s.loaded = append(s.loaded, w.Process)
		}
	}
	locate.EachExited(s.loaded, func(i int) { s.loads[i].pid = 0 })
	s.loads = slices.DeleteFunc(s.loads, func(l processLoad) bool { return l.pid == 0 })
	return s.loads
}

// limit limits the probes of processes that they cost more than they may.
func (s *Source) limit(now time.Time, loads []processLoad) {
	if s.schedule.limit == 0 {
		return
	}
	of := map[int][]*file{}
	for _, f := range s.files {
		for pid := range f.paths {
			of[pid] = append(of[pid], f)
		}
	}
	for _, l := range loads {
		counts := [groups]bool{}
		surveyed := false
		for g := range groups {
			counts[g] = !slices.ContainsFunc(of[l.pid], func(f *file) bool { return f.survey.limited[g] })
		}
		for _, f := range of[l.pid] {
			surveyed = surveyed || f.survey.running
		}
		w := s.processes[l.pid]
		if w.surveyed = surveyed; surveyed { // the other groups have their turn after it
			if _, over := s.schedule.exceeded(&w.inSurvey, now, l.cpu, l.spent, [groups]bool{true, true}); over {
				for _, f := range of[l.pid] {
					f.survey.over = true
				}
			}
			w.cost = cost{}
			continue
		}
		w.inSurvey = costSince(now, l.cpu, l.spent)
		group, over := s.schedule.exceeded(&w.cost, now, l.cpu, l.spent, counts)
		if !over {
			continue
		}
		s.opts.Logger.Info("probes take more of a process than they may: its provider is surveyed", zap.Int("pid", l.pid),
			zap.Bool("polling", group == polls), zap.Float64("limit", s.schedule.limit))
		for _, f := range of[l.pid] {
			s.schedule.limitGroup(&f.survey, group, now)
		}
	}
}

// setPlace sets how the calls of a file are counted from now on, before its probes are attached or detached for that. ended: a survey has
// ended just now.
func (s *Source) setPlace(f *file, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ended {
		s.fold.endSurvey(f.id, &f.survey)
	}
	s.places[f.id] = place{file: f.id, limited: f.survey.limited, surveyed: f.survey.counting}
	s.limited = s.limited || f.survey.isLimited()
}

// setPlaces removes the places of files that are gone, and sets which files lack probes that they should have.
func (s *Source) setPlaces() {
	limited, off := false, map[locate.FileID]bool{}
	for id, f := range s.files {
		limited = limited || f.survey.isLimited()
		for g := range groups {
			off[id] = off[id] || !f.survey.limited[g] && !f.on[g]
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.limited, s.off = limited, off
	maps.DeleteFunc(s.places, func(id locate.FileID, _ place) bool { return s.files[id] == nil })
}

// isWanted reports whether a process that maps the file is to be counted, or was, or the file
// is kept for the next one. Other processes that map it pay for its probes, too.
func (s *Source) isWanted(f *file) bool {
	if s.excluded[f.id] { // only the loop sets it
		return false
	}
	if len(f.paths) == 0 {
		return f.kept != nil
	}
	for pid := range f.paths {
		if w := s.processes[pid]; w != nil && w.chosen {
			f.chosen = true
		}
	}
	if f.chosen && s.awaitsConsent(f) {
		s.pace.changed = true // look again soon
		return false
	}
	return f.chosen
}

// beginCounting begins to count what a survey does as soon as all groups are probed, and notes if that ends before the survey.
func (s *Source) beginCounting(f *file, now time.Time) {
	v := &f.survey
	if !v.running {
		return
	}
	complete := true
	for g, limited := range v.limited {
		complete = complete && (!limited || f.on[g] && f.failure(g) == nil && !f.lacks(g))
	}
	switch {
	case v.counting && !complete:
		v.broken = true // what it counts is less than what was moved
	case !v.counting && complete:
		if s.kernel != nil && s.lockAndDrain() != nil {
			return // what was counted before is not part of it
		}
		v.counting, v.begun = true, now // attaching takes a moment
		s.setPlace(f, false)
	}
}

// read copies the counters of all contexts and adds up their cost by process. Once per
// removeInterval it also corrects the numbers of contexts and rings of each owner, which limit them.
func (s *Source) read() error {
	s.readings = s.readings[:0]
	clear(s.spent)
	pay := func(tgid uint32, ns [groups]uint64) {
		sum := s.spent[int(tgid)]
		for c := range groups {
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

// count adds readings to the series.
func (s *Source) count(now time.Time, readings []reading, loads []processLoad) {
	traced := make(map[locate.FileID]uint64, len(s.files))
	unprobeable := map[locate.FileID]bool{}
	probes := 0
	var unprobed error
	for _, w := range s.processes {
		unprobed = cmp.Or(unprobed, w.refused)
	}
	for id, f := range s.files {
		probes += f.probes()
		traced[id] = f.tracedSince()
		unprobed = cmp.Or(f.delayed, unprobed)
		if len(f.failed) > 0 {
			unprobeable[id] = true
			unprobed = cmp.Or(f.failure(posts), f.failure(polls), unprobed)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tracedSince, s.unprobed, s.unprobeable = traced, unprobed, unprobeable
	for i := range readings {
		r := &readings[i]
		s.add(r.key, &r.stat, r.closed)
		if s.isLate(r.key, &r.stat) {
			s.fold.markLate(r.key)
		}
	}
	for _, l := range loads {
		w := s.processes[l.pid]
		s.fold.update(now, l.pid, w.cgroup, l.cpu, l.spent[posts]+l.spent[polls], w.surveyed)
	}
	s.stats.Processes, s.stats.Probes = uint64(len(loads)), uint64(probes)
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
