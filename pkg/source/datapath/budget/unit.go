// SPDX-License-Identifier: Apache-2.0

package budget

import "time"

// unit is the probes of one group of calls in one file.
type unit struct {
	group, pages int
	// wanted is the decision, on the state that the caller reports; exact: not windowed.
	wanted, on, exact bool
	// ending: the window ends when the probes are ready to be removed.
	ending, ready bool

	since    time.Time     // of on
	interval time.Duration // until the next check
	checked  time.Time     // the last check
	opened   time.Time     // when paid was noted
	closing  time.Time     // when the window ends
	length   time.Duration // of a window
	// price is what a window costs each process, in seconds of CPU time: what it earns changes.
	// paid is what the process had paid at the last note.
	price  map[int]float64
	paid   map[int]payment
	fixed  map[int]float64 // what attaching and detaching cost in the last window
	priced bool            // price contains the last window
	// dearest has the highest price of a window in the last minutes, ends the highest cost of detaching. The next window may
	// cost as much, whatever the last one cost, as processes have bursts.
	dearest, ends map[int]peak
	peaksSince    time.Time

	// detaching: detached probes are still in place. rates is what they cost each
	// process, in seconds per second.
	detaching bool
	rates     map[int]float64

	jitter     float64       // factor of the price that is saved
	retryAt    time.Time     // earliest time of the next window, if windows are too expensive
	proveTime  time.Duration // time on after which the unit is exact again
	exactSince time.Time

	// The current period of counting began when the last one ended. Probes count all
	// calls since from, which is zero while they are being attached or are detached.
	periodStart, from time.Time
	periodEnded       bool          // at this tick
	period            time.Duration // the one that ended
	scale, ratio      float64
	// The periods of the processes, what the processes had used when the window began, and what they used in the period that ended.
	spans  map[int]span
	atFrom map[int]used
	uses   map[int]use
}

// payment is what a process has paid, in seconds of CPU time.
type payment struct{ hits, switching float64 }

func newUnit(now time.Time, group int) *unit {
	return &unit{
		group: group, wanted: true, exact: true, since: now, checked: now, exactSince: now,
		interval: firstCheck, length: newWindow, proveTime: proveTime / 2, jitter: 1, scale: 1, ratio: 1,
		price: map[int]float64{}, paid: map[int]payment{}, fixed: map[int]float64{},
		dearest: map[int]peak{}, ends: map[int]peak{}, peaksSince: now,
	}
}

// decide sets wanted and returns when to decide again at the latest.
func (u *unit) decide(b *Budget, now time.Time, pids []int) time.Time {
	accounts := make(map[int]*account, len(pids))
	for _, pid := range pids {
		if a := b.processes[pid]; a != nil {
			accounts[pid] = a
		}
	}
	longest := maxCheck // until the next check
	idle := true
	for pid, a := range accounts {
		longest = min(longest, time.Duration(a.perSecond*float64(30*time.Second)))
		idle = idle && a.hits[u.group] == u.paid[pid].hits
	}
	longest = max(longest, minCheck)
	if !u.exact {
		u.save(accounts)
	}
	if idle {
		longest = max(longest, min(time.Duration(b.limit*float64(30*time.Second)), maxCheck))
	}
	switch {
	case u.exact:
		return u.stepExact(now, accounts, longest)
	case u.wanted != u.on:
		// The caller has not switched yet.
		return now.Add(switchWait)
	case u.wanted:
		// A burst may begin in a window that was opened while there was none.
		return u.stepOpen(b, now, accounts, min(longest, max(windowCheck, now.Sub(u.since)/windowChecks)))
	}
	return u.stepClosed(now, accounts)
}

// stepExact checks an exact unit.
func (u *unit) stepExact(now time.Time, accounts map[int]*account, longest time.Duration) time.Time {
	begins := false
	for pid, a := range accounts {
		if _, ok := u.paid[pid]; !ok {
			begins = true
			u.noteCost(pid, a)
		}
	}
	if u.overdrawn(accounts) {
		u.leaveExact(now, accounts)
		return now.Add(switchWait)
	}
	due := u.checked.Add(u.interval)
	switch {
	case begins:
		u.interval = firstCheck
	case now.Before(due):
		return due // The tick was for another unit.
	default:
		u.interval = min(2*u.interval, longest)
	}
	u.noteAll(now, accounts)
	u.checked = now
	return now.Add(u.interval)
}

// leaveExact changes an exact unit to windows. What calls cost since the last check
// is the estimate of the price of a window.
func (u *unit) leaveExact(now time.Time, accounts map[int]*account) {
	if now.Sub(u.exactSince) > 4*u.proveTime {
		u.proveTime = proveTime / 2
	}
	u.proveTime = min(2*u.proveTime, maxProveTime)
	u.wanted, u.exact, u.priced = false, false, true
	u.periodStart, u.from = now, time.Time{}
	u.periodEnded, u.period, u.scale, u.ratio = true, 0, 1, 1
	u.beginSpans(now, accounts)
	u.jitter = 1
	clear(u.price)
	seconds := max(now.Sub(u.checked), firstCheck).Seconds()
	for pid, a := range accounts {
		u.price[pid] = (a.hits[u.group] - u.paid[pid].hits) / seconds * u.length.Seconds()
	}
	u.setLength(accounts, 0)
}

// stepOpen checks a unit in a window.
func (u *unit) stepOpen(b *Budget, now time.Time, accounts map[int]*account, longest time.Duration) time.Time {
	for pid, a := range accounts {
		if _, ok := u.paid[pid]; !ok {
			u.noteCost(pid, a)
			u.interval, u.checked = firstCheck, now
		}
	}
	if u.from.IsZero() { // The probes were attached since the last tick.
		u.from, u.closing = now, now.Add(u.length)
		u.atFrom = usedBy(now, accounts)
	}
	over := u.overdrawn(accounts) || u.exceeds(accounts)
	if now.Before(u.closing) && !over && !u.ending {
		if due := u.checked.Add(u.interval); now.Before(due) {
			return earlier(due, u.closing)
		}
		u.interval, u.checked = min(2*u.interval, longest), now
		return earlier(now.Add(u.interval), u.closing)
	}
	if u.ending = !u.ready; u.ending {
		return now.Add(switchWait)
	}
	u.setPrices(now, accounts)
	if !over && u.timeToAfford(accounts, 1) == 0 {
		if now.Sub(u.from) >= maxWindow {
			u.endPeriod(now, accounts)
			u.from, u.atFrom = now, usedBy(now, accounts)
		}
		if now.Sub(u.since) >= u.proveTime && u.periodEnded {
			u.exact, u.exactSince = true, now
		}
		u.noteAll(now, accounts)
		u.checked, u.closing = now, now.Add(u.length)
		return earlier(now.Add(u.interval), u.closing)
	}
	u.endPeriod(now, accounts)
	u.wanted, u.priced = false, false
	u.jitter = 1 + b.random()/2
	return now.Add(switchWait)
}

// stepClosed opens a window as soon as all processes can pay for it.
func (u *unit) stepClosed(now time.Time, accounts map[int]*account) time.Time {
	if u.detaching {
		return now.Add(DetachInterval)
	}
	if !u.priced {
		if highest := u.setPrices(now, accounts); highest > tooExpensive {
			// Twice the time in which the process earns the price.
			u.retryAt = now.Add(max(retryInterval, time.Duration(2*highest*float64(time.Second))))
		}
	}
	wait := u.timeToAfford(accounts, u.jitter)
	if left := u.retryAt.Sub(now); left > 0 {
		wait = max(wait, left)
	}
	if wait > 0 {
		return now.Add(min(max(wait, 2*switchWait), maxCheck))
	}
	u.wanted, u.interval, u.checked = true, firstCheck, now
	clear(u.paid)
	u.noteAll(now, accounts)
	u.closing = now.Add(u.length)
	return earlier(now.Add(u.interval), u.closing)
}

// startDetaching sets rates to what calls cost since the last note.
func (u *unit) startDetaching(now time.Time, accounts map[int]*account, pids []int) {
	begun := u.opened
	if u.since.After(begun) {
		begun = u.since
	}
	seconds := max(now.Sub(begun), 100*time.Microsecond).Seconds()
	u.detaching, u.rates = true, make(map[int]float64, len(pids))
	for _, pid := range pids {
		if a := accounts[pid]; a != nil {
			u.rates[pid] = (a.hits[u.group] - u.paid[pid].hits) / seconds
		}
	}
}

func (u *unit) setOn(on bool, at time.Time) {
	u.on, u.since = on, at
	if on {
		u.closing = at.Add(u.length)
	}
}

// endPeriod ends a period of counting in windows.
func (u *unit) endPeriod(now time.Time, accounts map[int]*account) {
	on := max(now.Sub(u.from), 100*time.Microsecond).Seconds()
	u.scale = max(now.Sub(u.periodStart).Seconds()/on, 1)
	u.ratio, u.period = 1/u.scale, now.Sub(u.periodStart)
	u.periodStart, u.from, u.periodEnded = now, time.Time{}, true
	u.endSpans(now, accounts)
}

func (u *unit) sampling(now time.Time) Sampling {
	switch {
	case u.periodEnded:
		u.periodEnded = false
		if u.period == 0 { // exact until now
			return Sampling{Scale: 1, Ratio: 1, Ends: true}
		}
		return Sampling{Windowed: true, Scale: u.scale, Ratio: u.ratio, Period: u.period, uses: u.uses}
	case u.exact:
		return Sampling{Scale: 1, Ratio: 1}
	}
	// What was counted at the first tick of a window is from before it.
	begins := u.from.Equal(now)
	return Sampling{Windowed: true, Begins: begins, Discard: begins || u.from.IsZero(), Ratio: u.ratio, uses: u.uses}
}

// resetClock starts all times at now, after a jump of the clock.
func (u *unit) resetClock(now time.Time) {
	u.since, u.checked, u.exactSince, u.periodStart = now, now, now, now
	if !u.from.IsZero() {
		u.from = now
	}
	u.spans, u.atFrom = nil, nil
	u.closing = earlier(u.closing, now)
	u.retryAt = earlier(u.retryAt, now.Add(retryInterval))
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
