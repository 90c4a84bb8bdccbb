// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"time"

	"github.com/accelscope/accelscope/pkg/identity"
)

// maxEnergyShares bounds the accounts of one counter; energy of further owners is nobody's.
const maxEnergyShares = 4096

// energyAccounts divide what an energy counter grew by, in its unit: the accounts and the unattributed energy add up to
// the growth.
type energyAccounts struct {
	unattributed uint64
	accounts     []*energyAccount
}

type energyAccount struct {
	owner  identity.OwnerID
	method EnergyMethod
	energy uint64
	since  time.Time
	round  uint64
}

// begin returns the time at which the account was 0; zero if the owner had other labels.
func (a *energyAccount) begin(o *users) time.Time {
	if a.round < o.Inherited(a.owner) {
		a.since = time.Time{}
	}
	return a.since
}

// credit adds the users' shares of the growth to their accounts, and the remainder to the unattributed energy. A new
// account is a copy of fresh.
func (l *energyAccounts) credit(grown uint64, shares []uint64, users []energyUser, fresh energyAccount) {
	for i, n := range shares {
		if n == 0 || users[i].owner == identity.Unattributed {
			continue
		}
		fresh.owner = users[i].owner
		if a := l.account(fresh); a != nil {
			a.energy += n
			grown -= n
		}
	}
	l.unattributed += grown
}

// account returns the account with the owner and method of fresh, or nil if there are too many.
func (l *energyAccounts) account(fresh energyAccount) *energyAccount {
	for _, a := range l.accounts {
		if a.owner == fresh.owner && a.method == fresh.method {
			return a
		}
	}
	if len(l.accounts) >= maxEnergyShares {
		return nil
	}
	l.accounts = append(l.accounts, &fresh)
	return &fresh
}

func (l *energyAccounts) merge(m identity.Merge) {
	l.replace(m.From, func(a *energyAccount) bool {
		for _, b := range l.accounts {
			if b.owner == m.To && b.method == a.method {
				b.energy, b.since = b.energy+a.energy, time.Time{}
				return false
			}
		}
		a.owner, a.since = m.To, time.Time{}
		return true
	})
}

// expire makes the energy of ended owners unattributed.
func (l *energyAccounts) expire(ids map[identity.OwnerID]bool) {
	for id := range ids {
		l.replace(id, func(a *energyAccount) bool {
			l.unattributed += a.energy
			return false
		})
	}
}

// replace calls keep for each account of an owner, and drops the account if it returns false.
func (l *energyAccounts) replace(owner identity.OwnerID, keep func(*energyAccount) bool) {
	kept := l.accounts[:0]
	for _, a := range l.accounts {
		if a.owner != owner || keep(a) {
			kept = append(kept, a)
		}
	}
	clear(l.accounts[len(kept):])
	l.accounts = kept
}
