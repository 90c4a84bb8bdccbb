// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"slices"

	"github.com/accelscope/accelscope/pkg/identity"
)

// Merge moves the accounts of the owner m.From to m.To.
func (l *Ledger) Merge(m identity.Merge) {
	for _, d := range l.order {
		if d.given == m.From {
			d.given = m.To
		}
		if u := d.users[m.From]; u != nil {
			delete(d.users, m.From)
			d.use(m.To).add(u)
		}
		d.mergeMissed(m)
		for i := range d.directions {
			l.accounts.merge(&d.directions[i], m)
		}
	}
}

// Expire makes the bytes of expired owners unattributed.
func (l *Ledger) Expire(ids []identity.OwnerID) {
	if len(ids) == 0 {
		return
	}
	for _, d := range l.order {
		for _, id := range ids {
			delete(d.users, id)
			if d.given == id {
				d.given = identity.Unattributed
			}
		}
		d.missed = slices.DeleteFunc(d.missed, func(m *missed) bool { return slices.Contains(ids, m.owner) })
		for i := range d.directions {
			w := &d.directions[i]
			w.accounts = slices.DeleteFunc(w.accounts, func(a *account) bool {
				if !slices.Contains(ids, a.owner) {
					return false
				}
				w.unattributed += a.credited
				delete(l.accounts, a.accountKey)
				a.closed = true
				return true
			})
		}
	}
}
