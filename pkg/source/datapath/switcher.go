// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// switcher decides which calls are counted all the time, in surveys only, or not at all, and changes the probes accordingly. The loop
// uses it.
type switcher struct {
	opts      *Options
	meter     *meter
	processes *processes
	prober    *prober
	pace      *pace
	schedule  schedule
}

// limit limits groups whose probes cost a process too much.
func (s *switcher) limit(now time.Time, loads []processLoad) {
	if s.schedule.limit == 0 {
		return
	}
	of := map[int][]*file{}
	for _, f := range s.prober.files {
		for pid := range f.Paths {
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
		w := s.processes.byPID[l.pid]
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

// advance begins and ends surveys, changes probes, and returns the time of the next change. broken: calls were missed since the last
// step.
func (s *switcher) advance(now time.Time, broken bool) (next time.Time) {
	next = now.Add(removeInterval)
	for _, f := range s.prober.files {
		f.survey.broken = f.survey.broken || broken
		wanted := s.isWanted(f)
		s.meter.setPlace(f.id, &f.survey, s.schedule.advance(&f.survey, len(f.Paths) > 0 && wanted, now))
		for g := range groups {
			s.prober.want(f, g, wanted && f.survey.on(g))
		}
		s.prober.change(f, now)
		s.beginCounting(f, now)
		if at := s.schedule.due(&f.survey); !at.IsZero() && at.Before(next) {
			next = at
		}
	}
	s.setPlaces()
	return next
}

// maxSuspected is the number of files that are surveyed on suspicion at the same time.
const maxSuspected = 16

// suspect surveys the files of processes of cgroups on suspicion.
func (s *switcher) suspect(cgroups []model.CgroupID, now time.Time) {
	running := 0
	for _, f := range s.prober.files {
		running += toInt[int](f.survey.running && now.Sub(f.survey.suspected) < s.schedule.suspicion)
	}
	for _, f := range s.prober.files {
		if running == maxSuspected {
			return
		}
		if !s.processes.mapsIn(f, cgroups) || !s.isWanted(f) || !s.schedule.suspect(&f.survey, now) {
			continue
		}
		running++
		s.pace.changed = true
		s.opts.Logger.Info("a provider is surveyed, because a communicator of its processes launches less than before",
			zap.Any("cgroups", cgroups))
	}
}

// isWanted reports whether a process that maps the file is or was to be counted, or the file is kept for the next such process. Other
// processes that map the file pay for its probes, too.
func (s *switcher) isWanted(f *file) bool {
	if f.Excluded {
		return false
	}
	if len(f.Paths) == 0 {
		return f.kept != nil
	}
	for pid := range f.Paths {
		if w := s.processes.byPID[pid]; w != nil && w.chosen {
			f.chosen = true
		}
	}
	if f.chosen && s.processes.awaitsConsent(f) {
		s.pace.changed = true // look again soon
		return false
	}
	return f.chosen
}

// beginCounting begins to count in a survey as soon as all groups are probed, and notes a survey that ends before.
func (s *switcher) beginCounting(f *file, now time.Time) {
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

// setPlaces reports removed files, and files that lack probes, to the meter.
func (s *switcher) setPlaces() {
	limited, off := false, map[locate.FileID]bool{}
	for id, f := range s.prober.files {
		limited = limited || f.survey.isLimited()
		for g := range groups {
			off[id] = off[id] || !f.survey.limited[g] && !f.on[g]
		}
	}
	s.meter.setFiles(off, limited, s.schedule.begun)
}
