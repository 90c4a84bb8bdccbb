// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"maps"
	"time"
)

// Groups is the number of groups of calls that are switched together.
const Groups = 2

// The groups of calls.
const (
	Post = iota
	Poll
)

// Negligible is the CPU time per minute that a process may always spend: about ten traps.
const Negligible = 20 * time.Microsecond

// Bounds in seconds of earnings.
const (
	maxCredit    = 1.0
	maxOverdraft = 0.5
	maxFixed     = 6.0  // price above which a window gets shorter even if most of it does not depend on its length
	tooExpensive = 45.0 // price of a window that is tried less often
)

const (
	usedShare  = 0.9  // of the limit
	pollShare  = 0.25 // of polling while posting is probed in windows
	negligible = float64(Negligible) / 1e9
	trapCost   = negligible / 10

	firstCheck    = 2 * time.Millisecond
	minWindow     = 2 * time.Millisecond
	newWindow     = 10 * time.Millisecond
	maxWindow     = 2 * time.Second
	maxCheck      = time.Second
	minCheck      = 100 * time.Millisecond // longest interval between checks of a process that earns nothing
	windowCheck   = 20 * time.Millisecond  // longest interval between checks in a window,
	windowChecks  = 100                    // or this part of its age
	peakTime      = 2 * time.Minute        // a peak is remembered this long, or twice as long
	switchWait    = 10 * time.Millisecond  // time for the caller to attach or detach
	retryInterval = time.Minute
	proveTime     = 10 * time.Second
	maxProveTime  = 5 * time.Minute
	averagingTime = 10 * time.Second // of earnings
	roomTime      = time.Minute + maxWindow
)

// DetachInterval is the time between checks whether detached probes are gone that
// are to be attached again.
const DetachInterval = 5 * time.Millisecond

// Budget is the controller. It is not safe for concurrent use.
type Budget struct {
	limit      float64
	switchCost time.Duration
	random     func() float64

	last      time.Time
	units     map[unitID]*unit
	processes map[int]*account
}

// File identifies a file that processes map.
type File struct{ Device, Inode uint64 }

type unitID struct {
	file  File
	group int
}

// ProcessLoad is the CPU time that a process has used. All values are cumulative.
type ProcessLoad struct {
	PID   int
	CPU   time.Duration
	Spent [Groups]time.Duration // part of CPU that its probes took, of all files
}

// FileLoad is a file with probes and the processes that map it.
type FileLoad struct {
	File  File
	Pages [Groups]int // number of pages with probes
	PIDs  []int
	// Ready: attached probes would be gone as soon as they are detached. See Ending.
	Ready [Groups]bool
	// Detaching: detached probes are still in place. They cost CPU time and count
	// nothing.
	Detaching [Groups]bool
}

// Sampling is how to scale what processes of a unit counted.
type Sampling struct {
	// Windowed: the unit is probed in windows.
	Windowed bool
	// Scale is the factor for counts since the last tick and for counts that were
	// held back before. 0 holds them back: the period has not ended.
	Scale float64
	// Discard: counts since the last tick are invalid. Probes are attached and
	// detached one after the other, which takes longer than a window, so counts
	// before the window's first tick cover an unknown time.
	Discard bool
	// Ends: all calls were counted until this tick. Windows follow.
	Ends bool
	// Begins: a window begins at this tick. Counts after it are valid.
	Begins bool
	// Ratio is the part of the last period that was probed, 1 for all of it.
	Ratio float64
	// Period is the length of the period that ends at this tick with a window.
	Period time.Duration
	// Keep: Discard is not for counts that were held back before. See Of.
	Keep bool
	// Weight is the CPU time in seconds that the process used in the period. See Of.
	Weight float64

	uses map[int]use
}

// Of returns how to scale what one process counted.
func (s Sampling) Of(pid int) Sampling {
	switch u, ok := s.uses[pid]; {
	case !ok:
	case s.Period == 0:
		s.Keep = u.held
	case u.held:
		s.Scale, s.Period = 0, 0
	default:
		s.Scale, s.Ratio, s.Weight = u.scale, 1/u.scale, u.weight
	}
	return s
}

// New returns a budget with a limit, 0 for none. random returns numbers in [0, 1).
func New(limit float64, random func() float64) *Budget {
	return &Budget{
		limit: limit, random: random,
		units: map[unitID]*unit{}, processes: map[int]*account{},
	}
}

// SetSwitchCost sets what attaching or detaching the probes of one page costs each process
// that maps it.
func (b *Budget) SetSwitchCost(cost time.Duration) { b.switchCost = cost }

// Tick returns which groups of which files are to be attached, and when to call
// it again at the latest. Files and processes that are missing are removed. The
// caller confirms what it attached and detached with Switched.
func (b *Budget) Tick(now time.Time, loads []ProcessLoad, files []FileLoad) (map[File][Groups]bool, time.Time) {
	elapsed := max(now.Sub(b.last), 0)
	if b.last.IsZero() || now.Before(b.last) || elapsed > averagingTime {
		elapsed = 0 // The clock was set, or the machine was suspended.
		for _, u := range b.units {
			u.resetClock(now)
		}
	}
	b.last = now
	b.removeMissing(loads, files)
	wanted := make(map[File][Groups]bool, len(files))
	if b.limit == 0 {
		for _, f := range files {
			for g := range Groups {
				b.unit(now, f.File, g).wanted = true
			}
			wanted[f.File] = [Groups]bool{true, true}
		}
		return wanted, now.Add(maxCheck)
	}
	b.settle(elapsed, loads, files)
	next := now.Add(maxCheck)
	for _, f := range files {
		var on [Groups]bool
		for g := range Groups {
			u := b.unit(now, f.File, g)
			u.pages, u.ready = f.Pages[g], f.Ready[g]
			next = earlier(u.decide(b, now, f.PIDs), next)
			on[g] = u.wanted
		}
		wanted[f.File] = on
	}
	return wanted, next
}

// Switched records that the probes of a unit were attached or detached.
func (b *Budget) Switched(file File, group int, on bool, at time.Time, pids []int) {
	u := b.units[unitID{file, group}]
	if u == nil || u.on == on {
		return
	}
	u.setOn(on, at)
	for _, pid := range pids {
		if a := b.processes[pid]; a != nil {
			a.unpaid[group] += (time.Duration(u.pages) * b.switchCost).Seconds()
		}
	}
}

// Ending reports whether a window ends as soon as its probes can be removed at once: the
// time until then is part of the window.
func (b *Budget) Ending(file File, group int) bool {
	u := b.units[unitID{file, group}]
	return u != nil && u.ending
}

// Detaching records that the probes of a unit are being detached and stay in
// place for a while. Their cost until then is estimated from their cost before.
func (b *Budget) Detaching(file File, group int, pids []int) {
	if u := b.units[unitID{file, group}]; u != nil {
		u.startDetaching(b.last, b.processes, pids)
	}
}

// Sampling returns how to scale the counts until the last tick. It must be
// called once after each tick, before probes are attached or detached.
func (b *Budget) Sampling(file File, group int) Sampling {
	if u := b.units[unitID{file, group}]; u != nil {
		return u.sampling(b.last)
	}
	return Sampling{Scale: 1, Ratio: 1}
}

// SwitchingCost returns the CPU time that attaching and detaching has cost a
// process.
func (b *Budget) SwitchingCost(pid int) time.Duration {
	if a := b.processes[pid]; a != nil {
		return time.Duration((a.switching[Post] + a.switching[Poll]) * float64(time.Second))
	}
	return 0
}

func (b *Budget) unit(now time.Time, file File, group int) *unit {
	id := unitID{file, group}
	u := b.units[id]
	if u == nil {
		u = newUnit(now, group)
		b.units[id] = u
	}
	return u
}

func (b *Budget) removeMissing(loads []ProcessLoad, files []FileLoad) {
	pids := make(map[int]bool, len(loads))
	for _, l := range loads {
		pids[l.PID] = true
	}
	maps.DeleteFunc(b.processes, func(pid int, _ *account) bool { return !pids[pid] })
	ids := make(map[File]bool, len(files))
	for _, f := range files {
		ids[f.File] = true
	}
	maps.DeleteFunc(b.units, func(id unitID, _ *unit) bool { return !ids[id.file] })
}
