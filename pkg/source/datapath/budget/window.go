// SPDX-License-Identifier: Apache-2.0

package budget

import (
	"maps"
	"time"
)

// overdrawn reports whether an account is below the lowest credit.
func (u *unit) overdrawn(accounts map[int]*account) bool {
	for _, a := range accounts {
		if a.credit[u.group] < a.lowest() {
			return true
		}
	}
	return false
}

// exceeds reports whether a process can pay just for the end of the window, from its credit or within the last minute.
func (u *unit) exceeds(accounts map[int]*account) bool {
	for pid, a := range accounts {
		if min(a.room[u.group], a.credit[u.group])-u.ends[pid].highest() < a.lowest() {
			return true
		}
	}
	return false
}

// timeToAfford returns the time until all accounts can pay for a window.
func (u *unit) timeToAfford(accounts map[int]*account, jitter float64) time.Duration {
	var wait time.Duration
	for pid, a := range accounts {
		price := u.priceOf(pid, a)
		need := price * jitter
		if need < trapCost && a.credit[u.group] > a.lowest() {
			continue
		}
		switch missing := need - a.credit[u.group]; {
		case max(price, u.dearestOf(pid, a)) > a.room[u.group]:
			return maxCheck
		case missing <= need/100:
		case missing > a.perSecond*maxCheck.Seconds():
			return maxCheck
		default:
			wait = max(wait, time.Duration(missing/(usedShare*a.perSecond)*float64(time.Second)), 1)
		}
	}
	return wait
}

// priceOf returns the price of a window in seconds of CPU time. Of a window that is too
// expensive it is a part: until retryAt the process earns the rest.
func (u *unit) priceOf(pid int, a *account) float64 {
	return min(u.price[pid], tooExpensive*a.perSecond)
}

// dearestOf is priceOf for the most expensive window of the last minutes.
func (u *unit) dearestOf(pid int, a *account) float64 {
	return min(u.dearest[pid].highest(), tooExpensive*a.perSecond)
}

// save has the accounts keep the price of a window until the unit is exact again.
func (u *unit) save(accounts map[int]*account) {
	for pid, a := range accounts {
		// More than the price, as perSecond changes a little.
		a.save[u.group] = max(a.save[u.group], 1.2*u.jitter*u.priceOf(pid, a))
	}
}

// setPrices sets the prices to what the last window cost, and the length of the
// next one. It returns the highest price, in seconds of earnings.
func (u *unit) setPrices(now time.Time, accounts map[int]*account) float64 {
	u.priced = true
	if now.Sub(u.peaksSince) >= peakTime {
		u.peaksSince = now
		forget(u.dearest)
		forget(u.ends)
	}
	var highest, fixed float64
	for pid, a := range accounts {
		before, ok := u.paid[pid]
		if !ok {
			continue
		}
		hits, switching := a.hits[u.group]-before.hits, a.switching[u.group]-before.switching
		if u.on { // detaching is still to be paid
			switching = max(switching, u.fixed[pid])
		} else {
			u.fixed[pid] = switching
		}
		price := hits + switching
		if price < trapCost {
			price = 0
		}
		u.dearest[pid], u.ends[pid] = u.dearest[pid].add(price), u.ends[pid].add(switching)
		if old, ok := u.price[pid]; ok && price < old {
			price = (price + old) / 2
		}
		u.price[pid] = price
		if inEarnings := price / a.perSecond; inEarnings > highest {
			highest, fixed = inEarnings, switching/a.perSecond
		}
	}
	for _, costs := range []map[int]float64{u.price, u.fixed} {
		maps.DeleteFunc(costs, func(pid int, _ float64) bool { return accounts[pid] == nil })
	}
	for _, peaks := range []map[int]peak{u.dearest, u.ends} {
		maps.DeleteFunc(peaks, func(pid int, _ peak) bool { return accounts[pid] == nil })
	}
	u.setLength(accounts, fixed)
	return highest
}

// setLength adapts the length of a window to its highest price. fixed is the part
// of it that does not depend on the length. Both are seconds of earnings.
func (u *unit) setLength(accounts map[int]*account, fixed float64) {
	var highest float64
	for pid, p := range u.price {
		highest = max(highest, p/accounts[pid].perSecond)
	}
	length := u.length
	switch {
	case highest < 0.4, highest < maxFixed/2 && fixed > highest/2:
		length = min(2*length, maxWindow)
	case highest > maxFixed:
		length = max(length/2, minWindow)
	case highest > 1.2 && fixed < highest/2:
		length = max(time.Duration(float64(length)*0.8/highest), minWindow)
	}
	constant := 0.0
	if highest > 0 {
		constant = fixed / highest
	}
	for pid := range u.price {
		u.price[pid] *= constant + (1-constant)*length.Seconds()/u.length.Seconds()
	}
	u.length = length
}

// noteAll notes what all processes have paid.
func (u *unit) noteAll(now time.Time, accounts map[int]*account) {
	u.opened = now
	for pid, a := range accounts {
		u.noteCost(pid, a)
	}
	maps.DeleteFunc(u.paid, func(pid int, _ payment) bool { return accounts[pid] == nil })
}

func (u *unit) noteCost(pid int, a *account) {
	u.paid[pid] = payment{a.hits[u.group], a.switching[u.group]}
}
