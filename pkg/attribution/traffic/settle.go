// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/identity"
)

// An account is the bytes of one owner in one direction of a device by one method.
type account struct {
	accountKey
	closed bool // its owner expired, or was merged into another one

	// The account had no bytes at since, and the owners' table was in this round when it was added.
	since time.Time
	round uint64

	credited uint64 // part of the device's own counter
	free     uint64 // credited while the device has no counters
	waits    uint64 // reported, but the device has not counted it yet
	ahead    uint64 // reported, but the better method has not counted it yet
	won      uint64 // the last refresh in which this method was used

	report   uint64 // in this interval
	reported uint64 // the refresh that set report
	valid    bool   // report belongs to this interval
	live     bool   // not all rows of the report are resting
	better   *account
}

type accountKey struct {
	owner     identity.OwnerID
	direction *direction
	method    int
}

type accounts map[accountKey]*account

func (all accounts) rank(owner identity.OwnerID, w *direction) {
	if worse := all[accountKey{owner, w, byUprobe}]; worse != nil {
		worse.better = all[accountKey{owner, w, byQPCounter}]
	}
}

// live reports whether a method counts the bytes of an owner in this interval.
func (all accounts) live(d *device, owner identity.OwnerID, method int) bool {
	for i := range d.directions {
		if a := all[accountKey{owner, &d.directions[i], method}]; a != nil && a.live {
			return true
		}
	}
	return false
}

func (all accounts) merge(w *direction, m identity.Merge) {
	w.accounts = slices.DeleteFunc(w.accounts, func(a *account) bool {
		if a.owner != m.From {
			return false
		}
		delete(all, a.accountKey)
		if b := all[accountKey{m.To, w, a.method}]; b != nil {
			b.credited, b.free = b.credited+a.credited, plus(b.free, a.free)
			b.waits, b.ahead, b.won = plus(b.waits, a.waits), plus(b.ahead, a.ahead), max(b.won, a.won)
			a.closed = true
			return true
		}
		a.owner = m.To
		all[a.accountKey] = a
		return false
	})
	all.rank(m.To, w)
}

func (l *Ledger) account(owner identity.OwnerID, w *direction, method int) *account {
	key := accountKey{owner, w, method}
	a := l.accounts[key]
	if a == nil {
		a = &account{accountKey: key, since: w.device.counted, round: l.owners.Round()}
		if reports := method == byQPCounter || method == byUprobe; reports && l.before[method]+1 != l.refresh {
			a.since = time.Time{} // its first report may include earlier bytes
		}
		l.accounts[key] = a
		w.accounts = append(w.accounts, a)
		l.accounts.rank(owner, w)
	}
	return a
}

func (l *Ledger) settle(d *device) {
	for i := range d.directions {
		for _, a := range d.directions[i].accounts {
			if a.reported != l.refresh {
				a.report, a.valid, a.live = 0, false, false
			}
			if a.report > 0 {
				d.use(a.owner).active = true
			}
		}
	}
	exclusive := identity.Unattributed
	if d.state.counted {
		exclusive = l.assigned.exclusiveOwner(d, l.facts.Objects != nil)
	}
	var unattributed uint64
	for i := range d.directions {
		w := &d.directions[i]
		before := w.unattributed
		switch {
		case !w.counted:
			l.settleUncounted(w)
		case exclusive != identity.Unattributed:
			l.settleExclusive(w, exclusive, d.moved[i])
		default:
			l.settleShared(w, d.moved[i])
		}
		unattributed = plus(unattributed, w.unattributed-before)
	}
	d.miss(unattributed, exclusive != identity.Unattributed, l.facts.Objects != nil)
	for _, u := range d.users {
		u.wasActive, u.active = u.active, false
	}
	d.wasUnknown, d.unknownUse, d.lapsed = d.unknownUse, false, false
	d.endedBefore, d.ended, d.endedAt, d.counted = d.ended, l.refresh, l.now, l.facts.Counted
}

func (l *Ledger) settleExclusive(w *direction, owner identity.OwnerID, moved uint64) {
	for _, a := range w.accounts {
		a.report, a.waits, a.ahead = 0, 0, 0
	}
	w.remember(l.accounts, l.now, moved) // surveys may be all that counts for this owner next
	a := l.account(owner, w, byPort)
	a.credited += moved
	a.won, w.exclusive = l.refresh, l.refresh
}

func (l *Ledger) settleShared(w *direction, moved uint64) {
	if w.device.interval.begins { // they include the bytes that were credited without counters
		moved = fill(moved, w.accounts, func(a *account) *uint64 { return &a.free })
	}
	l.choose(w)
	left := fill(moved, w.accounts, func(a *account) *uint64 { return &a.report })
	for _, a := range w.accounts {
		if l.facts.Objects != nil && !w.device.isVF && !w.device.used(a.owner) {
			a.waits, a.ahead = 0, 0
		}
	}
	left = fill(left, w.accounts, func(a *account) *uint64 { return &a.waits })
	for _, a := range w.accounts {
		a.waits, a.report = plus(a.waits, a.report), 0
	}
	w.remember(l.accounts, l.now, left)
	w.unattributed += l.split(w, left)
}

func (l *Ledger) settleUncounted(w *direction) {
	l.choose(w)
	for _, a := range w.accounts {
		a.free = plus(plus(a.free, a.report), a.waits)
		a.report, a.waits = 0, 0
	}
}

// choose reduces the report of the worse method to the bytes that the better method does not count: only some of the
// owner's queue pairs may have a hardware counter. The worse method reports bytes when they are posted, the better
// method when they are sent. Bytes that the worse method reported are not credited again when the better method reports
// them. So both together never exceed the worse method before some moment plus the better method after it, or the
// reverse. A method that rests or does not answer is ignored.
func (l *Ledger) choose(w *direction) {
	for _, a := range w.accounts {
		b := a.better
		if b == nil || !b.live || !a.live {
			a.ahead = 0
		}
		a.ahead = max(a.ahead, a.waits)
		if b != nil && b.valid {
			both := min(a.report, b.report)
			a.report -= both
			sent := min(b.report-both, a.ahead)
			waited := min(sent, a.waits)
			a.ahead -= sent
			a.waits -= waited
			b.report -= sent - waited
			a.ahead = plus(a.ahead, a.report)
		}
		if a.report > 0 || a.live && (b == nil || !b.live) {
			a.won = l.refresh
		}
	}
}

// fill credits n bytes to the accounts that want bytes, the smallest wants first: an owner that reports too much must
// not take bytes from the others. It returns the remainder.
func fill(n uint64, accounts []*account, want func(*account) *uint64) uint64 {
	var sum uint64
	wanting := 0
	for _, a := range accounts {
		if w := *want(a); w > 0 {
			sum = plus(sum, w)
			wanting++
		}
	}
	if wanting == 0 || n == 0 {
		return n
	}
	in, short := accounts, sum > n
	if short {
		in = make([]*account, 0, wanting)
		for _, a := range accounts {
			if *want(a) > 0 {
				in = append(in, a)
			}
		}
		slices.SortStableFunc(in, func(a, b *account) int { return cmp.Compare(*want(a), *want(b)) })
	}
	for i, a := range in {
		w := want(a)
		got := *w
		if short {
			got = min(got, n/uint64(len(in)-i))
		}
		a.credited += got
		*w -= got
		n -= got
	}
	return n
}

// plus returns a+b, or the maximum on overflow: containers control the values.
func plus(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return math.MaxUint64
	}
	return sum
}
