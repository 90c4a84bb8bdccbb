// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"slices"

	"github.com/accelscope/accelscope/pkg/attribution/internal/before/model"
)

// A row is what one cgroup was told to have moved.
type row struct {
	rowKey
	now, last uint64
	told      uint64 // the refresh of now
	booked    uint64 // the refresh of last; 0 for never
	began     uint64 // the refresh in which it began: the source had answered without it before
	missing   int
	resting   bool     // all of it
	account   *account // where it was booked last
}

type rowKey struct {
	cgroup  uint64
	way     *way
	method  int
	sampled bool
}

// claim makes claims of what cgroups were told to have moved since their device was
// booked last.
func (l *Ledger) claim(facts []model.Traffic) {
	l.before = l.answered
	l.told = l.told[:0]
	var d *meter
	for i := range facts {
		f := &facts[i]
		method, direction := slices.Index(methodNames[:], f.Method), slices.Index(directionNames[:], f.Direction)
		if method <= byPort || direction < 0 {
			continue
		}
		if d == nil || d.name != f.Device {
			d = l.meters[f.Device]
		}
		l.answered[method] = l.refresh
		key := rowKey{f.Cgroup, &d.ways[direction], method, f.Sampled}
		r := l.rows[key]
		if r == nil {
			r = &row{rowKey: key}
			if l.before[method] != 0 && l.before[method] == l.refresh-1 {
				r.began = l.refresh
			}
			l.rows[key] = r
		}
		if r.told != l.refresh {
			r.told, r.now, r.missing, r.resting = l.refresh, 0, 0, true
			l.told = append(l.told, r)
		}
		r.now = plus(r.now, f.Bytes)
		r.resting = r.resting && f.Resting
	}
	for _, r := range l.told {
		l.claimRow(r)
	}
}

func (l *Ledger) claimRow(r *row) {
	owner := l.o.ofCgroup(r.cgroup)
	var a *account
	if owner != nobody {
		if h := l.holder(owner); r.account == nil || r.account.holder != h {
			r.account = l.account(h, r.way, r.method, r.sampled)
		}
		a = r.account
		if a.claimed != l.refresh {
			a.claimed, a.claim, a.valid, a.live = l.refresh, 0, false, false
		}
	}
	d := r.way.meter
	if !d.due {
		return
	}
	moved := r.now - r.last
	if r.now < r.last {
		moved = r.now
	}
	valid := a != nil && (r.sampled || l.current(r, a.holder))
	r.last, r.booked = r.now, l.refresh
	if a == nil {
		d.strange = d.strange || moved > 0
	}
	if !valid {
		return
	}
	a.valid, a.live = true, a.live || !r.resting
	a.claim = plus(a.claim, moved)
}

// current says whether what a row tells is of this interval, or was at least not
// booked by another method meanwhile. A row is new, or was not told of for a
// while as its source did not answer; then another method took its place.
func (l *Ledger) current(r *row, h *holder) bool {
	if r.booked != 0 && r.booked >= r.way.meter.booked {
		return true
	}
	if r.booked == 0 && r.began > r.way.meter.booked {
		return true
	}
	if r.way.alone > r.booked {
		return false
	}
	for m := range methods {
		if a := l.accounts[accountKey{h, r.way, m, false}]; m != r.method && a != nil && a.won > r.booked {
			return false
		}
	}
	return true
}
