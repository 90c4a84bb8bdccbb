// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"math"
	"time"
)

// used is the CPU time that a process has used: all, and without what its probes took; and time. All in seconds.
type used struct{ all, own, time float64 }

func (u used) minus(v used) used { return used{u.all - v.all, u.own - v.own, u.time - v.time} }

// use is what a process used in a period, and the factor for its counts.
type use struct {
	weight, scale float64
	held          bool // the period of the process goes on
}

// span is the current period of a process: what it had used when the period began, and what it used in windows.
type span struct{ start, seen used }

// minUsed is the part of the mean CPU time per second that a process uses in windows if they end its period.
const minUsed = 0.05

// similar is the relative difference of the CPU time per second in windows and outside of them up to which the process may use
// all it can get.
const similar = 0.1

func (a *account) used(now time.Time) used {
	cpu := a.CPU.Seconds()
	return used{cpu, cpu - a.hits[Post] - a.hits[Poll] - a.switching[Post] - a.switching[Poll], float64(now.UnixNano()) / 1e9}
}

func usedBy(now time.Time, accounts map[int]*account) map[int]used {
	all := make(map[int]used, len(accounts))
	for pid, a := range accounts {
		all[pid] = a.used(now)
	}
	return all
}

// Ahead returns the CPU time in seconds that a process has used, without what its probes took, since its period began. What it did
// in it is not counted yet.
func (b *Budget) Ahead(file File, group, pid int) float64 {
	u, a := b.units[unitID{file, group}], b.processes[pid]
	if u == nil || a == nil || u.exact {
		return 0
	}
	s, ok := u.spans[pid]
	if !ok {
		return 0
	}
	return max(a.used(b.last).minus(s.start).own, 0)
}

// added returns the CPU time that probes added in windows. They add nothing to that of a process that polls all the time or
// reaches a quota: it polls less in windows, and posts as often. Such a process uses as much CPU time outside of windows.
func (u used) added(outside used) float64 {
	probes := u.all - u.own
	if usual := outside.all / outside.time * u.time; math.Abs(u.all-usual) < similar*u.all {
		return min(max(u.all-usual, 0), probes)
	}
	return probes
}

// beginSpans begins a period of all processes.
func (u *unit) beginSpans(now time.Time, accounts map[int]*account) {
	u.spans = make(map[int]span, len(accounts))
	for pid, start := range usedBy(now, accounts) {
		u.spans[pid] = span{start: start}
	}
}

// endSpans compares the CPU time of the period with that of its windows. CPU time opens windows, so they are at random places
// of the CPU time of a process, and not of time: what it counted is scaled by its CPU time without what probes added. Where
// probes took most of the CPU time of the windows, what is left of it is uncertain, and time is used. A process that hardly ran
// in the window, or was not known when it began, goes on with its period.
func (u *unit) endSpans(now time.Time, accounts map[int]*account) {
	u.uses = make(map[int]use, len(accounts))
	spans := make(map[int]span, len(accounts))
	for pid, end := range usedBy(now, accounts) {
		s, ok := u.spans[pid]
		if !ok {
			spans[pid] = span{start: end}
			continue
		}
		if from, ok := u.atFrom[pid]; ok {
			window := end.minus(from)
			s.seen = used{s.seen.all + window.all, s.seen.own + window.own, s.seen.time + window.time}
		}
		switch whole := end.minus(s.start); {
		case s.seen.time == 0, s.seen.all*whole.time < minUsed*whole.all*s.seen.time:
			u.uses[pid], spans[pid] = use{held: true}, s
			continue
		case s.seen.own > s.seen.all/2:
			added := s.seen.added(whole.minus(s.seen))
			u.uses[pid] = use{weight: whole.all - added, scale: max((whole.all-added)/(s.seen.all-added), 1)}
		default:
			u.uses[pid] = use{weight: whole.all, scale: max(whole.time/s.seen.time, 1)}
		}
		spans[pid] = span{start: end}
	}
	u.spans = spans
}
