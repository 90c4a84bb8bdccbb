// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"cmp"
	"math"
	"math/bits"
	"slices"

	"github.com/accelscope/accelscope/pkg/attribution/internal/before/model"
)

// The methods, as indexes.
const (
	byPort = iota
	byQPCounter
	byUprobe
	methods
)

var methodNames = [methods]model.Method{model.MethodPort, model.MethodQPCounter, model.MethodUprobe}

// An account is what one owner has in one direction of a device by one method.
type account struct {
	holder  *holder
	method  int
	sampled bool

	booked uint64 // part of the device's figure
	free   uint64 // booked while the device told none
	waits  uint64 // claimed, and not yet seen by the device
	ahead  uint64 // claimed, and not yet seen by the better method
	won    uint64 // the refresh in which the method was the one that counts last

	claim   uint64 // of this interval
	claimed uint64 // the refresh in which it was told of
	valid   bool   // and the claim is of this interval
	live    bool   // and not all of what it is the sum of rests
	better  *account
}

type accountKey struct {
	holder  *holder
	way     *way
	method  int
	sampled bool
}

func (a *account) key(w *way) accountKey { return accountKey{a.holder, w, a.method, a.sampled} }

func (l *Ledger) account(h *holder, w *way, method int, sampled bool) *account {
	key := accountKey{h, w, method, sampled}
	a := l.accounts[key]
	if a == nil {
		a = &account{holder: h, method: method, sampled: sampled}
		l.accounts[key] = a
		w.accounts = append(w.accounts, a)
		l.rank(h, w)
	}
	return a
}

func (l *Ledger) rank(h *holder, w *way) {
	if worse := l.accounts[accountKey{h, w, byUprobe, false}]; worse != nil {
		worse.better = l.accounts[accountKey{h, w, byQPCounter, false}]
	}
}

// settle books an interval of a device.
func (l *Ledger) settle(d *meter) {
	for i := range d.ways {
		for _, a := range d.ways[i].accounts {
			if a.claimed != l.refresh {
				a.claim, a.valid, a.live = 0, false, false
			}
			if a.claim > 0 {
				d.use(a.holder).active = true
			}
		}
	}
	alone := (*holder)(nil)
	if d.bound {
		alone = l.sole(d)
	}
	for i := range d.ways {
		w := &d.ways[i]
		for _, a := range w.accounts {
			if a.sampled {
				a.free, a.claim = plus(a.free, a.claim), 0
			}
		}
		switch {
		case !w.counted:
			l.settleFree(w)
		case alone != nil:
			l.settleAlone(w, alone, d.moved[i])
		default:
			l.settleShared(w, d.moved[i])
		}
	}
	for _, u := range d.users {
		u.was, u.active = u.active, false
	}
	d.wasStrange, d.strange = d.strange, false
	d.before, d.booked = d.booked, l.refresh
}

func (l *Ledger) settleAlone(w *way, h *holder, moved uint64) {
	for _, a := range w.accounts {
		a.claim, a.waits, a.ahead = 0, 0, 0
	}
	a := l.account(h, w, byPort, false)
	a.booked += moved
	a.won, w.alone = l.refresh, l.refresh
}

func (l *Ledger) settleShared(w *way, moved uint64) {
	if w.meter.begins { // what was booked while the device told no figures is part of them now
		none := uint64(0)
		moved = fill(moved, w.accounts, func(a *account) *uint64 {
			if a.sampled {
				return &none
			}
			return &a.free
		})
	}
	l.choose(w)
	left := fill(moved, w.accounts, func(a *account) *uint64 { return &a.claim })
	for _, a := range w.accounts {
		if l.facts.Objects != nil && !w.meter.out && !w.meter.used(a.holder) {
			a.waits, a.ahead = 0, 0
		}
	}
	left = fill(left, w.accounts, func(a *account) *uint64 { return &a.waits })
	for _, a := range w.accounts {
		a.waits, a.claim = plus(a.waits, a.claim), 0
	}
	w.nobody += left
}

func (l *Ledger) settleFree(w *way) {
	l.choose(w)
	for _, a := range w.accounts {
		a.free = plus(plus(a.free, a.claim), a.waits)
		a.claim, a.waits = 0, 0
	}
}

// choose leaves to a worse method what the better one does not see: it may be that
// only some of the owner's queue pairs have a counter. What the worse one claimed
// before (it was posted) the better one sees when it is sent, and does not claim
// again: so the two together never claim more than one of them up to some moment and
// the other one from then on. A method that rests, or does not answer, has no part
// in this.
func (l *Ledger) choose(w *way) {
	for _, a := range w.accounts {
		if a.sampled {
			continue
		}
		b := a.better
		if b == nil || !b.live || !a.live {
			a.ahead = 0
		}
		a.ahead = max(a.ahead, a.waits)
		if b != nil && b.valid {
			both := min(a.claim, b.claim)
			a.claim -= both
			sent := min(b.claim-both, a.ahead)
			waited := min(sent, a.waits)
			a.ahead -= sent
			a.waits -= waited
			b.claim -= sent - waited
			a.ahead = plus(a.ahead, a.claim)
		}
		if a.claim > 0 || a.live && (b == nil || !b.live) {
			a.won = l.refresh
		}
	}
}

// fill books n bytes on those who want some, the smallest wants first: who claims
// more than there is must not keep others from what they moved. It returns what
// is left.
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
		a.booked += got
		*w -= got
		n -= got
	}
	return n
}

// plus is a+b, or the highest number there is: claims come from containers.
func plus(a, b uint64) uint64 {
	sum, carry := bits.Add64(a, b, 0)
	if carry != 0 {
		return math.MaxUint64
	}
	return sum
}
