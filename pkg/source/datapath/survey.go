// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// Defaults of Options.SurveyLength and Options.SurveyInterval.
const (
	DefaultSurveyLength   = 10 * time.Second
	DefaultSurveyInterval = 10 * time.Minute
)

// A survey on suspicion is longer, and a file has at most one in suspicionPause.
const (
	suspicionLength = time.Minute
	suspicionPause  = 10 * time.Minute
)

// maxIntervals is the number of intervals for which the result of a survey is used.
const maxIntervals = 3

// A survey is how the calls of one file are counted.
//
// All calls are counted at first. If the probes of a group of calls (posting or polling) take more of a process's CPU time than they may,
// the group is limited: its calls are counted in surveys only, and its probes are detached between surveys. The first survey begins at
// once, with the attached probes. Later surveys begin at times that all files have in common, at least an interval after the last survey.
// So probes are attached and detached at most once per interval.
//
// All calls are counted again after a survey in which every process kept its budget, and when no process uses the file. A survey has no
// result if probes could not be attached and calls were missed.
//
// On suspicion against processes of a limited file, a survey begins at once, or the running survey becomes longer.
type survey struct {
	limited      [groups]bool
	running      bool
	counting     bool      // it is running, and all calls are counted
	begun, ended time.Time // of the last survey
	length       time.Duration
	next         time.Time
	suspected    time.Time // when the last survey on suspicion began
	over         bool      // a process exceeded its budget in this survey
	broken       bool      // some calls of this survey were not counted
}

func (v *survey) isLimited() bool { return v.limited != [groups]bool{} }

// on reports whether the calls of a group are to be probed.
func (v *survey) on(group int) bool { return !v.limited[group] || v.running }

// place is the file with the functions of a context, and how its calls are counted: the limited groups only in surveys, other groups all
// the time, and whether there is a survey now.
type place struct {
	file     locate.FileID
	limited  [groups]bool
	surveyed bool
}

func (p *place) isLimited() bool { return p.limited != [groups]bool{} }

// schedule is when surveys are made. The zero schedule has no limit.
type schedule struct {
	limit            float64 // share of its CPU time that probes may take of a process
	length, interval time.Duration
	suspicion        time.Duration // the length of a survey on suspicion
	first            time.Time     // of all surveys
	begun            model.SurveyCounts
}

// beginScheduled begins a survey that no suspicion caused.
func (s *schedule) beginScheduled(v *survey, now time.Time) {
	s.begin(v, now)
	s.begun.Scheduled++
}

// suspect surveys a file on suspicion, and reports whether it did. All calls of a file without limits are counted anyway.
func (s *schedule) suspect(v *survey, now time.Time) bool {
	if !v.isLimited() || !v.suspected.IsZero() && now.Sub(v.suspected) < suspicionPause {
		return false
	}
	if !v.running {
		s.begin(v, now)
	}
	v.length, v.suspected = max(v.length, s.suspicion), now
	s.begun.Suspected++
	return true
}

// begin begins a survey.
func (s *schedule) begin(v *survey, now time.Time) {
	if s.first.IsZero() {
		s.first = now
	}
	v.running, v.counting, v.begun, v.length, v.over, v.broken = true, false, now, s.length, false, false
	// The next survey begins at the first common time that is an interval later. A survey that began late must not lose its turn.
	intervals := (now.Sub(s.first) + s.interval - s.length + s.interval - 1) / s.interval
	v.next = s.first.Add(intervals * s.interval)
}

// limitGroup limits a group of a file after a process has exceeded its budget.
func (s *schedule) limitGroup(v *survey, group int, now time.Time) {
	was := v.isLimited()
	v.limited[group] = true
	if !was {
		s.beginScheduled(v, now)
	}
}

// advance begins and ends surveys. used: a process uses the file. ended: a survey with a complete result has ended.
func (s *schedule) advance(v *survey, used bool, now time.Time) (ended bool) {
	switch {
	case !v.isLimited():
	case v.running && now.Sub(v.begun) >= v.length:
		v.broken = v.broken || !v.counting
		v.running, v.counting, v.ended = false, false, now
		if ended = true; !v.over && !v.broken {
			v.limited = [groups]bool{}
		}
	case !v.running && !now.Before(v.next) && used:
		s.beginScheduled(v, now)
	case !v.running && !now.Before(v.next):
		v.limited = [groups]bool{}
	}
	return ended
}

// due returns the time of the next change by advance.
func (s *schedule) due(v *survey) time.Time {
	switch {
	case !v.isLimited():
		return time.Time{}
	case v.running:
		return v.begun.Add(v.length)
	}
	return v.next
}

// isOutdated reports whether the result of a survey is no longer used.
func isOutdated(ended, now time.Time, interval time.Duration) bool {
	return now.Sub(ended) > maxIntervals*interval
}

// cost is the CPU time that probes took of a process in the current period.
type cost struct {
	since time.Time
	cpu   time.Duration // of the process at since
	spent [groups]time.Duration
	// of the last look
	lastCPU   time.Duration
	lastSpent [groups]time.Duration
}

func costSince(now time.Time, cpu time.Duration, spent [groups]time.Duration) cost {
	return cost{since: now, cpu: cpu, lastCPU: cpu, lastSpent: spent}
}

// negligible is the CPU time that probes may take of any process in a period: about a hundred traps.
const negligible = 200 * time.Microsecond

// exceeded adds the CPU time that probes took since the last look, and reports whether they took more than they may in a period, which is
// as long as a survey. cpu and spent are cumulative. Only counting groups matter.
func (s *schedule) exceeded(
	c *cost, now time.Time, cpu time.Duration, spent [groups]time.Duration, counts [groups]bool,
) (group int, yes bool) {
	if c.since.IsZero() || cpu < c.lastCPU {
		*c = costSince(now, cpu, spent)
		return 0, false
	}
	for g := range spent {
		if counts[g] {
			c.spent[g] += max(spent[g]-c.lastSpent[g], 0)
		}
	}
	c.lastCPU, c.lastSpent = cpu, spent
	took := c.spent[posts] + c.spent[polls]
	used, full := cpu-c.cpu, now.Sub(c.since) >= s.length
	if !full {
		used = max(used, s.length) // what one thread uses at most
	}
	yes = s.limit > 0 && took > negligible && float64(took) > s.limit*float64(used)
	group = slices.Index(c.spent[:], slices.Max(c.spent[:]))
	if yes || full {
		*c = costSince(now, cpu, spent)
	}
	return group, yes
}
