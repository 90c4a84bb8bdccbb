// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"math"
	"time"
)

// callGroups is the number of groups of calls that are switched together.
const Groups = 2

// The groups of calls.
const (
	Post = iota
	Poll
)

// A budget decides which files are probed when, so that the probes take no more
// than a part of the CPU time of each process. It has no clock, does nothing
// itself, and is not safe for use by several goroutines.
//
// What can be switched is a unit: the calls of one group in one file, for all
// processes that map it. Each process has an account for each group. With L the
// limit, an account changes by
//
//	share · 0.9 · L · ΔCPU − Δspent
//
// Posting is served first: its share is all while its account is overdrawn, half
// until it is full, then nothing. While posting is watched in windows only, polling
// has a quarter, as otherwise nothing would ever be known of what is received.
//
// Over any time spent = 0.9·L·CPU + what the accounts held before − what they hold
// after. So a minute keeps the limit when the accounts move within a tenth of what
// the minute earns, which is 6 s of earnings. One second of earnings (L times the
// CPU time that the process takes in a second, averaged over ten) is the unit in
// which all bounds are set: an account holds at most 1 s, or what it saves for a
// window; may be overdrawn by 0.5 s, so that a burst does not end exact watching;
// and what a late tick adds is some 20 ms of one core, or 2 s where L is 1 %. In
// this unit a process that takes a thousandth of a core is as one that takes all of
// it. What cannot be kept: a process that stops running in a window, or soon after,
// cannot earn what the window cost. The excess is that window, and no more. What was
// overdrawn is forgotten a minute after the last trap, as no minute holds both.
//
// A unit begins exact: on, and looked at after 2 ms, then at twice the interval
// each time, up to half a minute's earnings (of a whole core while nothing is hit),
// or 100 ms where that is less: a process may begin to poll at full speed just after
// a look. It stays so as long as no account is overdrawn. Then come windows: the
// unit opens when each process has saved what the last window cost, times a random 1
// to 1.5 so that nothing beats in step with it, and stays on as long as all could
// afford the next. The length is set such that a window costs about 0.8 s of earnings
// of the process that it costs most. Who affords 10 s without a break is exact again;
// each relapse doubles that time. Where even a short window costs more than 4 s, one
// is tried each minute.
//
// What is seen in a window stands for all since the last one. The time to the next
// does not depend on what it sees, so that is right on average for a steady load. Of
// bursts it tells too much, up to twice in simulations: they bring the credit that
// opens windows. And what is bound by the CPU is slower while it is watched.
type Budget struct {
	limit  float64
	toll   time.Duration // what one probe costs a process when attached or detached
	random func() float64

	last      time.Time
	units     map[unitID]*unit
	processes map[int]*account
}

// A File is a file that processes map.
type File struct{ Device, Inode uint64 }

type unitID struct {
	file  File
	calls int
}

// A processLoad is what one process took so far, cumulative.
type ProcessLoad struct {
	PID   int
	CPU   time.Duration
	Spent [Groups]time.Duration // of all files
}

// A fileLoad is a provider's file and who maps it.
type FileLoad struct {
	File   File
	Probes [Groups]int // how many places are probed
	PIDs   []int
	// lingers: probes that were detached are still in the way, and count no more.
	Lingers [Groups]bool
}

// A sampling says what the counts of a unit's processes are worth.
type Sampling struct {
	// windowed: not all of the time is watched.
	Windowed bool
	// scale is the factor for what was counted since the last tick and for what was
	// kept back before; 0 keeps it back: the period has not ended.
	Scale float64
	// void: what was counted since the last tick is to be dropped. Probes come and go
	// one after the other, which takes longer than a window: what is counted meanwhile
	// is of a time that nobody knows. A window is from tick to tick.
	Void bool
	// begins: a window begins at this tick, and so void is over after it.
	Begins bool
	// ratio is which part of the time was watched in the last period, 1 for all.
	Ratio float64
}

// The bounds, in seconds of earnings and in time.
const (
	kept       = 0.9 // of the limit
	pollShare  = 0.25
	fullCredit = 1.0
	overdraft  = 0.5
	hopeless   = 4.0
	trifle     = 20e-6 // s a minute, that nobody notices: some ten traps
	trap       = trifle / 10

	firstLook = 2 * time.Millisecond
	minWindow = 2 * time.Millisecond
	newWindow = 10 * time.Millisecond
	maxWindow = 2 * time.Second
	maxLook   = time.Second
	minLook   = 100 * time.Millisecond // that an interval grows to, whatever is earned
	minWait   = 10 * time.Millisecond
	retry     = time.Minute
	prove     = 10 * time.Second
	maxProve  = 5 * time.Minute
	earnings  = 10 * time.Second // over which CPU time is averaged
)

// DetachWait is how often it is looked whether probes are gone that are to come
// back.
const DetachWait = 5 * time.Millisecond

// New makes one for a limit, 0 for none. toll is what attaching or detaching
// one probe costs each process; random is in [0, 1).
func New(limit float64, toll time.Duration, random func() float64) *Budget {
	return &Budget{
		limit: limit, toll: toll, random: random,
		units: map[unitID]*unit{}, processes: map[int]*account{},
	}
}

// tick decides what is to be on, and when to be asked again at the latest. Files
// and processes that are missing are forgotten. Whoever follows a decision says so
// with switched.
func (b *Budget) Tick(now time.Time, loads []ProcessLoad, files []FileLoad) (map[File][Groups]bool, time.Time) {
	elapsed := max(now.Sub(b.last), 0)
	if b.last.IsZero() || now.Before(b.last) || elapsed > earnings {
		elapsed = 0 // The clock was set, or everything slept.
		for _, u := range b.units {
			u.rebase(now)
		}
	}
	b.last = now
	b.forget(loads, files)
	wants := make(map[File][Groups]bool, len(files))
	if b.limit == 0 {
		for _, f := range files {
			for c := range Groups {
				b.unit(now, f.File, c).want = true
			}
			wants[f.File] = [Groups]bool{true, true}
		}
		return wants, now.Add(maxLook)
	}
	b.earn(elapsed, loads, files)
	next := now.Add(maxLook)
	for _, f := range files {
		var on [Groups]bool
		for c := range Groups {
			u := b.unit(now, f.File, c)
			u.probes = f.Probes[c]
			at := u.decide(b, now, f.PIDs)
			on[c] = u.want
			if at.Before(next) {
				next = at
			}
		}
		wants[f.File] = on
	}
	return wants, next
}

// switched says that the probes of a unit were attached or detached.
func (b *Budget) Switched(file File, calls int, on bool, at time.Time, pids []int) {
	u := b.units[unitID{file, calls}]
	if u == nil || u.on == on {
		return
	}
	u.turn(on, at)
	for _, pid := range pids {
		if a := b.processes[pid]; a != nil {
			a.owed[calls] += (time.Duration(u.probes) * b.toll).Seconds()
		}
	}
}

// lingers says that what was detached stays in the way for a while. What it costs
// until then is known from what it cost before.
func (b *Budget) Lingers(file File, calls int, pids []int) {
	if u := b.units[unitID{file, calls}]; u != nil {
		u.linger(b.last, b.processes, pids)
	}
}

// sampling says how to book what was counted until the last tick. Ask once after
// each tick, before following its decisions.
func (b *Budget) Sampling(file File, calls int) Sampling {
	if u := b.units[unitID{file, calls}]; u != nil {
		return u.sampling(b.last)
	}
	return Sampling{Scale: 1, Ratio: 1}
}

// switching is what attaching and detaching cost a process so far, cumulative.
func (b *Budget) Switching(pid int) time.Duration {
	if a := b.processes[pid]; a != nil {
		return time.Duration((a.tolls[Post] + a.tolls[Poll]) * float64(time.Second))
	}
	return 0
}

func (b *Budget) unit(now time.Time, file File, calls int) *unit {
	id := unitID{file, calls}
	u := b.units[id]
	if u == nil {
		u = newUnit(now, calls)
		b.units[id] = u
	}
	return u
}

func (b *Budget) forget(loads []ProcessLoad, files []FileLoad) {
	pids := make(map[int]bool, len(loads))
	for _, l := range loads {
		pids[l.PID] = true
	}
	for pid := range b.processes {
		if !pids[pid] {
			delete(b.processes, pid)
		}
	}
	ids := make(map[File]bool, len(files))
	for _, f := range files {
		ids[f.File] = true
	}
	for id := range b.units {
		if !ids[id.file] {
			delete(b.units, id)
		}
	}
}

// earn books what processes took since the last tick.
func (b *Budget) earn(elapsed time.Duration, loads []ProcessLoad, files []FileLoad) {
	windowed := map[int]bool{} // whose posting is
	for _, f := range files {
		for c := range Groups {
			if u := b.units[unitID{f.File, c}]; u != nil && u.lingers {
				for _, pid := range f.PIDs {
					if a := b.processes[pid]; a != nil {
						a.owed[c] += u.rates[pid] * elapsed.Seconds()
					}
				}
				u.lingers = f.Lingers[c]
			}
		}
		if u := b.units[unitID{f.File, Post}]; u != nil && !u.exact {
			for _, pid := range f.PIDs {
				windowed[pid] = true
			}
		}
	}
	for _, l := range loads {
		a := b.processes[l.PID]
		if a == nil {
			b.processes[l.PID] = &account{ProcessLoad: l, perSecond: trifle / 60}
			continue
		}
		a.book(l, elapsed.Seconds(), b.limit, windowed[l.PID])
	}
}

// An account is what one process may spend and what it took, in seconds.
type account struct {
	ProcessLoad
	// credit may be negative; save is what the dearest of the windows that are waited
	// for takes.
	credit, save [Groups]float64
	// owed is for what was attached and detached since the last tick; hits and tolls
	// are what was paid since ever.
	owed, hits, tolls [Groups]float64
	// age is for how long it is known, quiet since when nothing was spent, perSecond
	// what it may spend in a second.
	age, quiet, perSecond float64
}

func (a *account) book(l ProcessLoad, elapsed, limit float64, windowed bool) {
	cpu := max((l.CPU - a.CPU).Seconds(), 0)
	// It did not wait for a probe to be attached for longer than it ran.
	room := cpu
	for c := range Groups {
		hit := max((l.Spent[c] - a.Spent[c]).Seconds(), 0)
		paid := min(a.owed[c], room)
		room -= paid
		a.owed[c] = 0
		a.hits[c] += hit
		a.tolls[c] += paid
		a.credit[c] -= hit + paid
		if hit+paid > 0 {
			a.quiet = 0
		}
	}
	a.ProcessLoad = l
	a.quiet += elapsed

	if elapsed > 0 {
		a.age += elapsed
		// A mean over all of its time first, then over the last seconds.
		weight := elapsed / min(a.age, earnings.Seconds())
		if a.age > earnings.Seconds() {
			weight = 1 - math.Exp(-elapsed/earnings.Seconds())
		}
		a.perSecond += weight * (limit*cpu/elapsed + trifle/60 - a.perSecond)
	}

	earned := kept*limit*cpu + trifle/60*elapsed
	part := 0.0
	if windowed {
		part = pollShare
	} else if a.credit[Post] >= 0 {
		part = 0.5
	}
	posting := a.credit[Post] + (1-part)*earned
	a.credit[Post] = min(posting, a.full(Post))
	a.credit[Poll] = min(a.credit[Poll]+part*earned+posting-a.credit[Post], a.full(Poll))
	if a.quiet > time.Minute.Seconds() {
		a.credit[Post], a.credit[Poll] = max(a.credit[Post], 0), max(a.credit[Poll], 0)
	}
	a.save = [Groups]float64{}
}

// full is what an account holds at most.
func (a *account) full(c int) float64 { return max(fullCredit*a.perSecond, a.save[c]) }

// floor is how far it may be overdrawn.
func (a *account) floor() float64 { return -max(overdraft*a.perSecond, trifle) }
