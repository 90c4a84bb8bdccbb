// SPDX-License-Identifier: Apache-2.0

package attribution

// follow lets containers that get other names keep what they have: one is known by
// its cgroup first, and by what its runtime calls it later.
func (l *Ledger) follow() {
	var lost []*holder
	for _, h := range l.holders {
		if h.number == nobody && h.ContainerID != "" && !h.claims {
			lost = append(lost, h)
		}
	}
	if lost == nil {
		return
	}
	now := map[string]int{}
	for id, n := range l.o.byCgroup {
		container := l.o.list[n].ContainerID
		if container == "" || l.o.entities[id].Claimed {
			continue
		}
		if other, ok := now[container]; ok && other != n {
			n = nobody // of two names none is the one
		}
		now[container] = n
	}
	for _, h := range lost {
		if n := now[h.ContainerID]; n != nobody {
			l.join(h, l.holder(n))
			delete(l.holders, h.Owner)
		}
	}
}

// join makes what one holder has another's.
func (l *Ledger) join(from, to *holder) {
	to.since = min(to.since, from.since)
	for _, d := range l.order {
		if d.given == from.Owner {
			d.given = to.Owner
		}
		if u := d.users[from]; u != nil {
			delete(d.users, from)
			d.use(to).add(u)
		}
		for i := range d.ways {
			l.joinAccounts(&d.ways[i], from, to)
		}
	}
}

func (l *Ledger) joinAccounts(w *way, from, to *holder) {
	kept := w.accounts[:0]
	for _, a := range w.accounts {
		if a.holder != from {
			kept = append(kept, a)
			continue
		}
		delete(l.accounts, a.key(w))
		if b := l.accounts[accountKey{to, w, a.method, a.sampled}]; b != nil {
			b.booked, b.free = b.booked+a.booked, plus(b.free, a.free)
			b.waits, b.ahead, b.won = plus(b.waits, a.waits), plus(b.ahead, a.ahead), max(b.won, a.won)
			continue
		}
		a.holder = to
		l.accounts[a.key(w)] = a
		kept = append(kept, a)
	}
	clear(w.accounts[len(kept):])
	w.accounts = kept
	l.rank(to, w)
}

func (u *use) add(o *use) {
	u.held, u.holds = u.held || o.held, u.holds || o.holds
	u.created, u.createdBy = u.created+o.created, u.createdBy+o.createdBy
	u.active, u.was = u.active || o.active, u.was || o.was
}
