// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"slices"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// A Tracker converts counters per cgroup to counters per owner. It credits the growth of a row
// since its last answer, once, to the current owner of the cgroup. The credit stays with the
// owner when the cgroup ends, and when a name changes.
//
// Answers may be late and may lack rows: a missing row is kept. The zero Tracker is ready to
// use. It is not safe for concurrent use.
type Tracker[K comparable, V any, P model.Cumulative[V]] struct {
	rows     map[rowKey[K]]*trackedRow[V]
	leaving  map[rowKey[K]]*trackedRow[V] // rows of forgotten cgroups
	accounts []account[K, V]              // in the order of the first credit
	index    map[accountKey[K]]int
	answer   uint64 // number of the last answer
	answered bool
	order    []*trackedRow[V] // rows of the answer, in its order
	grown    V                // by the row in progress; a local variable would be allocated for each row
}

type rowKey[K comparable] struct {
	cgroup model.CgroupID
	key    K
}

type trackedRow[V any] struct {
	last    V
	answer  uint64 // the last answer that had the row
	at      int    // index in that answer
	missing int    // consecutive answers without the row after its cgroup was forgotten
}

type account[K comparable, V any] struct {
	owner   identity.OwnerID
	key     K
	value   V
	resting uint64 // the last answer in which a row was resting
}

type accountKey[K comparable] struct {
	owner identity.OwnerID
	key   K
}

// Share is the value of one owner for one key.
type Share[K comparable, V any] struct {
	Owner   int // index into Attribution.Owners
	Key     K
	Value   V
	Resting bool // see model.Series; true if any of its cgroups rests
}

// maxMissedAnswers is the number of consecutive answers without the row of a forgotten cgroup
// after which it is dropped. A source may list it once more, and an answer may be partial: a
// row that is dropped too early is credited a second time.
const maxMissedAnswers = 10

// Credit credits the growth of each row. A nil series means that nothing was collected.
func (t *Tracker[K, V, P]) Credit(series []model.Series[K, V], owners *identity.Table) {
	if t.answered = series != nil; !t.answered {
		return
	}
	if t.rows == nil {
		t.rows, t.index = map[rowKey[K]]*trackedRow[V]{}, map[accountKey[K]]int{}
	}
	t.answer++
	series = t.find(series)
	owner, of := identity.Unattributed, model.CgroupID(0)
	for i := range series {
		s, r := &series[i], t.order[i]
		if s.Cgroup != of {
			owner, of = owners.Of(s.Cgroup), s.Cgroup
		}
		t.grown = P(&s.Value).Since(&r.last)
		r.last = s.Value
		a := t.account(owner, s.Key)
		P(&a.value).Add(&t.grown)
		if s.Resting {
			a.resting = t.answer
		}
	}
	for k, r := range t.leaving {
		if r.answer == t.answer {
			r.missing = 0
		} else if r.missing++; r.missing > maxMissedAnswers {
			delete(t.leaving, k)
			delete(t.rows, k)
		}
	}
}

// find finds the row of each series and sums series with the same row.
func (t *Tracker[K, V, P]) find(series []model.Series[K, V]) []model.Series[K, V] {
	t.order = t.order[:0]
	var sums []model.Series[K, V]
	for i := range series {
		s := &series[i]
		k := rowKey[K]{s.Cgroup, s.Key}
		r := t.rows[k]
		if r == nil {
			r = &trackedRow[V]{}
			t.rows[k] = r
		}
		if r.answer != t.answer {
			r.answer, r.at = t.answer, len(t.order)
			t.order = append(t.order, r)
			if sums != nil {
				sums = append(sums, *s)
			}
			continue
		}
		if sums == nil {
			sums = append(sums, series[:i]...)
		}
		first := &sums[r.at]
		P(&first.Value).Add(&s.Value)
		first.Resting = first.Resting || s.Resting
	}
	if sums != nil {
		return sums
	}
	return series
}

func (t *Tracker[K, V, P]) account(owner identity.OwnerID, key K) *account[K, V] {
	k := accountKey[K]{owner, key}
	i, ok := t.index[k]
	if !ok {
		i = len(t.accounts)
		t.index[k] = i
		t.accounts = append(t.accounts, account[K, V]{owner: owner, key: key})
	}
	return &t.accounts[i]
}

// Shares returns the values of the zero owner and of owners with a known cgroup; nil if
// nothing was collected. use returns the index of an owner.
func (t *Tracker[K, V, P]) Shares(owners *identity.Table, use func(identity.OwnerID) int) []Share[K, V] {
	if !t.answered {
		return nil
	}
	shares := make([]Share[K, V], 0, len(t.accounts))
	for i := range t.accounts {
		a := &t.accounts[i]
		if a.owner == identity.Unattributed || owners.HasCgroup(a.owner) {
			shares = append(shares, Share[K, V]{use(a.owner), a.key, a.value, a.resting == t.answer})
		}
	}
	return shares
}

// Forget marks cgroups as forgotten: their rows are dropped once answers lack them.
func (t *Tracker[K, V, P]) Forget(ids map[model.CgroupID]bool) {
	for k, r := range t.rows {
		if ids[k.cgroup] {
			if t.leaving == nil {
				t.leaving = map[rowKey[K]]*trackedRow[V]{}
			}
			t.leaving[k] = r
		}
	}
}

// Merge moves the counters of one owner to another one.
func (t *Tracker[K, V, P]) Merge(m identity.Merge) {
	for i := range t.accounts {
		a := &t.accounts[i]
		if a.owner != m.From {
			continue
		}
		to := accountKey[K]{m.To, a.key}
		if j, ok := t.index[to]; ok {
			P(&t.accounts[j].value).Add(&a.value)
			continue
		}
		delete(t.index, accountKey[K]{m.From, a.key})
		a.owner = m.To
		t.index[to] = i
	}
	t.Expire(map[identity.OwnerID]bool{m.From: true})
}

// Expire drops everything of owners.
func (t *Tracker[K, V, P]) Expire(ids map[identity.OwnerID]bool) {
	if !slices.ContainsFunc(t.accounts, func(a account[K, V]) bool { return ids[a.owner] }) {
		return
	}
	kept := t.accounts[:0]
	for i := range t.accounts {
		a := &t.accounts[i]
		if ids[a.owner] {
			delete(t.index, accountKey[K]{a.owner, a.key})
			continue
		}
		t.index[accountKey[K]{a.owner, a.key}] = len(kept)
		kept = append(kept, *a)
	}
	clear(t.accounts[len(kept):])
	t.accounts = kept
}
