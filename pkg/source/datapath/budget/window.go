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

// timeToAfford returns the time until all accounts can pay for a window.
func (u *unit) timeToAfford(accounts map[int]*account, jitter float64) time.Duration {
	var wait time.Duration
	for pid, a := range accounts {
		// For a window that is too expensive a part is saved: until retryAt the process
		// earns the rest.
		need := min(u.price[pid], tooExpensive) * jitter * a.perSecond
		if need < trapCost && a.credit[u.group] > a.lowest() {
			continue
		}
		a.save[u.group] = max(a.save[u.group], 1.2*need) // as perSecond changes a little
		switch missing := need - a.credit[u.group]; {
		case missing <= need/100:
		case missing > a.perSecond*maxCheck.Seconds():
			return maxCheck
		default:
			wait = max(wait, time.Duration(missing/(usedShare*a.perSecond)*float64(time.Second)), 1)
		}
	}
	return wait
}

// setPrices sets the prices to what the last window cost, and the length of the
// next one. It returns the highest price.
func (u *unit) setPrices(accounts map[int]*account) float64 {
	u.priced = true
	var highest, fixed float64
	for pid, a := range accounts {
		before, ok := u.paid[pid]
		if !ok {
			continue
		}
		hits, switching := a.hits[u.group]-before.hits, a.switching[u.group]-before.switching
		price := (hits + switching) / a.perSecond
		if hits+switching < trapCost {
			price = 0
		}
		if old, ok := u.price[pid]; ok && price < old {
			price = (price + old) / 2
		}
		u.price[pid] = price
		if price > highest {
			highest, fixed = price, switching/a.perSecond
		}
	}
	maps.DeleteFunc(u.price, func(pid int, _ float64) bool { return accounts[pid] == nil })
	u.setLength(fixed)
	return highest
}

// setLength adapts the length of a window to its highest price. fixed is the part
// of it that does not depend on the length.
func (u *unit) setLength(fixed float64) {
	var highest float64
	for _, p := range u.price {
		highest = max(highest, p)
	}
	length := u.length
	switch {
	case highest < 0.4, highest < 1.2 && fixed > highest/2:
		length = min(2*length, maxWindow)
	case highest > 1.2 && fixed < highest/2:
		length = max(time.Duration(float64(length)*0.8/highest), minWindow)
	}
	for pid := range u.price {
		u.price[pid] *= length.Seconds() / u.length.Seconds()
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
