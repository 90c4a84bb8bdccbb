// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"math"
	"slices"
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
	// minute has samples of the last minute and of the time that a window takes. room is
	// what may be spent now so that each minute keeps the limit.
	minute []sample
	room   [Groups]float64
}

// sample is what a process had used and paid at an age, in seconds.
type sample struct {
	age, cpu float64
	paid     [Groups]float64
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
			b.processes[l.PID] = &account{
				ProcessLoad: l, perSecond: negligible / 60, minute: []sample{{cpu: l.CPU.Seconds()}},
			}
			continue
		}
		cpu := a.spend(l, elapsed.Seconds())
		a.earn(cpu, elapsed.Seconds(), b.limit, windowed[l.PID])
		a.measureRoom(b.limit, windowed[l.PID])
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
	posting, polling := a.credit[Post]+(1-share)*earned, a.credit[Poll]+share*earned
	// What one group cannot hold belongs to the other one.
	a.credit[Post] = min(posting+max(polling-a.maxCredit(Poll), 0), a.maxCredit(Post))
	a.credit[Poll] = min(polling+max(posting-a.maxCredit(Post), 0), a.maxCredit(Poll))
	if a.quiet > time.Minute.Seconds() {
		a.credit[Post], a.credit[Poll] = max(a.credit[Post], 0), max(a.credit[Poll], 0)
	}
	a.save = [Groups]float64{}
}

// measureRoom sets room. The samples are a second apart. While posting is probed in
// windows, polling has room in its share only, so that it leaves room for posting.
func (a *account) measureRoom(limit float64, windowed bool) {
	now := sample{age: a.age, cpu: a.CPU.Seconds()}
	for g := range Groups {
		now.paid[g] = a.hits[g] + a.switching[g]
	}
	if now.age >= a.minute[len(a.minute)-1].age+1 {
		a.minute = append(a.minute, now)
	}
	for len(a.minute) > 2 && a.minute[1].age < now.age-roomTime.Seconds() {
		a.minute = slices.Delete(a.minute, 0, 1)
	}
	first := a.minute[0]
	perMinute := min(time.Minute.Seconds()/max(now.age-first.age, 1), 1)
	earned := usedShare*limit*(now.cpu-first.cpu)*perMinute + negligible
	polling := now.paid[Poll] - first.paid[Poll]
	room := earned - polling - (now.paid[Post] - first.paid[Post])
	a.room = [Groups]float64{room, room}
	if windowed {
		a.room[Poll] = min(room, pollShare*earned-polling)
	}
}

func (a *account) maxCredit(group int) float64 { return max(maxCredit*a.perSecond, a.save[group]) }

func (a *account) lowest() float64 { return -max(maxOverdraft*a.perSecond, negligible) }
