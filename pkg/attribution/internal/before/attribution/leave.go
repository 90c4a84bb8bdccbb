// SPDX-License-Identifier: Apache-2.0

package attribution

import "slices"

// takeLeave lets go of the owners that have not been told of for a while: what they
// had is the zero owner's from now on. A reading that failed makes nobody leave, and
// while the probe does not answer nobody leaves who was there when it did.
func (l *Ledger) takeLeave() {
	alive := make([]bool, len(l.o.list))
	for id, n := range l.o.byCgroup {
		alive[n] = true
		if n < len(l.byNumber) && l.byNumber[n] != nil && l.o.entities[id].Claimed {
			l.byNumber[n].claims = true
		}
	}
	for i := range l.assigned {
		alive[l.assigned[i].Owner] = true
	}
	gone := false
	for owner, h := range l.holders {
		if h.number != nobody && alive[h.number] || l.podLives(owner, alive) {
			h.absent = 0
			continue
		}
		if l.facts.Objects == nil && h.since <= l.probed {
			continue
		}
		if h.absent++; h.absent > patience {
			delete(l.holders, owner)
			gone = true
		}
	}
	if gone {
		for _, d := range l.order {
			for i := range d.ways {
				l.dismiss(&d.ways[i])
			}
		}
	}
	if len(l.told) < len(l.rows) {
		l.forgetRows()
	}
	l.forgetMeters()
}

// podLives says whether an owner is a pod of which a container lives.
func (l *Ledger) podLives(owner Owner, alive []bool) bool {
	if owner.Pod == "" || owner.Container != "" {
		return false
	}
	for n, lives := range alive {
		if lives && samePod(l.o.list[n], owner) {
			return true
		}
	}
	return false
}

// forgetRows drops what the ledger keeps of cgroups that a source has forgotten.
// That it does not answer at all says nothing: what it tells then goes on.
func (l *Ledger) forgetRows() {
	for key, r := range l.rows {
		if r.told == l.refresh || l.answered[key.method] != l.refresh {
			continue
		}
		if r.missing++; r.missing > patience {
			delete(l.rows, key)
		}
	}
}

// dismiss closes the accounts of owners that left.
func (l *Ledger) dismiss(w *way) {
	kept := w.accounts[:0]
	for _, a := range w.accounts {
		if a.holder.absent <= patience {
			kept = append(kept, a)
			continue
		}
		w.nobody += a.booked
		delete(l.accounts, a.key(w))
	}
	clear(w.accounts[len(kept):])
	w.accounts = kept
	for h := range w.meter.users {
		if h.absent > patience {
			delete(w.meter.users, h)
		}
	}
}

// maxAbsent is how many devices are remembered that are gone and in which nobody
// has a share: one that comes back goes on where it was.
const maxAbsent = 256

func (l *Ledger) forgetMeters() {
	absent := func(d *meter) bool {
		return !d.told && len(d.ways[transmit].accounts)+len(d.ways[receive].accounts) == 0
	}
	n := 0
	for _, d := range l.order {
		if absent(d) {
			n++
		}
	}
	if n <= maxAbsent {
		return
	}
	for key := range l.rows {
		if absent(key.way.meter) {
			delete(l.rows, key)
		}
	}
	l.order = slices.DeleteFunc(l.order, func(d *meter) bool {
		if absent(d) {
			delete(l.meters, d.name)
			return true
		}
		return false
	})
}
