// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"math"
	"time"
)

// account is what one process may spend and has spent, in seconds of CPU time.
type account struct {
	ProcessLoad
	// credit may be negative. save is the price of the most expensive window that is
	// waited for.
	credit, save [Groups]float64
	// unpaid is the cost of attaching and detaching since the last tick. hits and
	// switching are the cumulative costs of traps and of attaching that were settled.
	unpaid, hits, switching [Groups]float64
	// age is the time since the process became known, quiet the time since its last
	// cost, perSecond the cost that it may have per second.
	age, quiet, perSecond float64
}

// settle updates all accounts with what processes used since the last tick.
func (b *Budget) settle(elapsed time.Duration, loads []ProcessLoad, files []FileLoad) {
	windowed := map[int]bool{} // processes with posting that is probed in windows
	for _, f := range files {
		for g := range Groups {
			if u := b.units[unitID{f.File, g}]; u != nil && u.detaching {
				for _, pid := range f.PIDs {
					if a := b.processes[pid]; a != nil {
						a.unpaid[g] += u.rates[pid] * elapsed.Seconds()
					}
				}
				u.detaching = f.Detaching[g]
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
			b.processes[l.PID] = &account{ProcessLoad: l, perSecond: negligible / 60}
			continue
		}
		cpu := a.spend(l, elapsed.Seconds())
		a.earn(cpu, elapsed.Seconds(), b.limit, windowed[l.PID])
	}
}

// spend takes what the probes cost from the credit and returns the CPU time that
// the process used.
func (a *account) spend(l ProcessLoad, elapsed float64) (cpu float64) {
	cpu = max((l.CPU - a.CPU).Seconds(), 0)
	// A process cannot have spent more time on switching than it ran.
	room := cpu
	for g := range Groups {
		hit := max((l.Spent[g] - a.Spent[g]).Seconds(), 0)
		paid := min(a.unpaid[g], room)
		room -= paid
		a.unpaid[g] = 0
		a.hits[g] += hit
		a.switching[g] += paid
		a.credit[g] -= hit + paid
		if hit+paid > 0 {
			a.quiet = 0
		}
	}
	a.ProcessLoad = l
	a.quiet += elapsed
	return cpu
}

// earn adds what the process earned to the credit of both groups. windowed: its
// posting is probed in windows.
func (a *account) earn(cpu, elapsed, limit float64, windowed bool) {
	if elapsed > 0 {
		a.age += elapsed
		// The mean over its life at first, then an exponential average.
		weight := elapsed / min(a.age, averagingTime.Seconds())
		if a.age > averagingTime.Seconds() {
			weight = 1 - math.Exp(-elapsed/averagingTime.Seconds())
		}
		a.perSecond += weight * (limit*cpu/elapsed + negligible/60 - a.perSecond)
	}

	earned := usedShare*limit*cpu + negligible/60*elapsed
	share := 0.0 // of polling
	if windowed {
		share = pollShare
	} else if a.credit[Post] >= 0 {
		share = 0.5
	}
	posting := a.credit[Post] + (1-share)*earned
	a.credit[Post] = min(posting, a.maxCredit(Post))
	a.credit[Poll] = min(a.credit[Poll]+share*earned+posting-a.credit[Post], a.maxCredit(Poll))
	if a.quiet > time.Minute.Seconds() {
		a.credit[Post], a.credit[Poll] = max(a.credit[Post], 0), max(a.credit[Poll], 0)
	}
	a.save = [Groups]float64{}
}

func (a *account) maxCredit(group int) float64 { return max(maxCredit*a.perSecond, a.save[group]) }

func (a *account) lowest() float64 { return -max(maxOverdraft*a.perSecond, negligible) }
