// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"slices"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// step counts, begins and ends surveys, attaches and detaches probes, and returns the time of the next step.
func (s *Source) step() time.Time {
	now := time.Now()
	s.pace.begin(now)
	err := s.meter.read(&s.last, now.Sub(s.removedAt) >= removeInterval)
	if err != nil {
		s.opts.Logger.Debug("reading the maps of the data path", zap.Error(err))
	} else {
		loads := s.readLoads()
		s.meter.count(now, s.last.contexts, loads, s.probeState())
		s.limit(now, loads)
	}
	s.pace.read(time.Now())
	next := now.Add(removeInterval)
	for _, f := range s.files {
		f.survey.broken = f.survey.broken || err != nil
		wanted := s.isWanted(f)
		s.meter.setPlace(f.id, &f.survey, s.schedule.advance(&f.survey, len(f.paths) > 0 && wanted, now))
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
	pid      int
	cgroup   model.CgroupID
	cpu      time.Duration
	spent    [groups]time.Duration
	surveyed bool // one of its files was, since the last step
}

// readLoads reads the CPU time of all processes that have not exited.
func (s *Source) readLoads() []processLoad {
	s.loads, s.loaded = s.loads[:0], s.loaded[:0]
	for pid, w := range s.processes {
		if cpu, err := w.CPU(); err == nil {
			s.loads = append(s.loads, processLoad{pid, w.cgroup, cpu, s.last.spent[pid], w.surveyed})
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

// setPlaces has the meter know which files are gone, and which lack probes that they should have.
func (s *Source) setPlaces() {
	limited, off := false, map[locate.FileID]bool{}
	for id, f := range s.files {
		limited = limited || f.survey.isLimited()
		for g := range groups {
			off[id] = off[id] || !f.survey.limited[g] && !f.on[g]
		}
	}
	s.meter.setFiles(off, limited)
}

// isWanted reports whether a process that maps the file is to be counted, or was, or the file
// is kept for the next one. Other processes that map it pay for its probes, too.
func (s *Source) isWanted(f *file) bool {
	if f.excluded {
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
		if s.meter.catchUp() != nil {
			return // what was counted before is not part of it
		}
		v.counting, v.begun = true, now // attaching takes a moment
		s.meter.setPlace(f.id, v, false)
	}
}

// probeState returns how far the files are probed.
func (s *Source) probeState() probeState {
	p := probeState{tracedSince: make(map[locate.FileID]uint64, len(s.files)), unprobeable: map[locate.FileID]bool{}}
	for _, w := range s.processes {
		p.unprobed = cmp.Or(p.unprobed, w.refused)
	}
	for id, f := range s.files {
		p.probes += f.probes()
		p.tracedSince[id] = f.tracedSince()
		p.unprobed = cmp.Or(f.delayed, p.unprobed)
		if len(f.failed) > 0 {
			p.unprobeable[id] = true
			p.unprobed = cmp.Or(f.failure(posts), f.failure(polls), p.unprobed)
		}
	}
	return p
}

// monotonic returns CLOCK_MONOTONIC in ns, which the programs use.
func monotonic() uint64 {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return 0
	}
	return uint64(now.Nano())
}
