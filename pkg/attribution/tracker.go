// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// A Tracker converts counters of cgroups to counters of owners. It credits the growth of a row since its last answer,
// once, to the cgroup's current owner. The credit stays with the owner when the cgroup ends or its name changes.
//
// An owner's counter is the sum of the last values of its rows and of ended counts, modulo 2^64: a row that changes its
// owner at value v adds v to the ended counts of the old owner and subtracts v from the new owner's.
//
// Answers may be late and may lack rows: a missing row is kept. The zero Tracker is ready to use. It is not safe for
// concurrent use.
//
// A share was 0 at the answer before the answer that added it. If an answer lacks a row of the answer before, other
// rows may have been missing, too, and a row may have a new name: the start is then unknown.
type Tracker[K, V comparable, P model.Cumulative[V]] struct {
	rows     map[rowKey[K]]*trackedRow[K, V, P]
	leaving  map[rowKey[K]]*trackedRow[K, V, P] // rows of forgotten cgroups
	accounts []*account[K, V, P]                // in the order of the first credit
	index    map[accountKey[K]]*account[K, V, P]
	answer   uint32 // number of the last answer
	answered bool
	counted  time.Time              // before the last answer that lacked no row of the answer before
	order    []*trackedRow[K, V, P] // rows of the answer, in its order
}

type rowKey[K comparable] struct {
	cgroup model.CgroupID
	key    K
}

type trackedRow[K, V comparable, P model.Cumulative[V]] struct {
	last    V
	account *account[K, V, P] // nil after its owner expired
	answer  uint32            // the last answer with the row
	at      int32             // index in that answer
	missing uint32            // consecutive answers without the row after its cgroup was forgotten
}

type account[K, V comparable, P model.Cumulative[V]] struct {
	key     K
	ended   P // nil: nothing ended
	owner   identity.OwnerID
	at      int32  // index in the shares, or -1
	resting uint32 // the last answer with a resting row
	since   time.Time
	round   uint64 // of the owners, in which it was added
}

type accountKey[K comparable] struct {
	owner identity.OwnerID
	key   K
}

// end returns the counts that do not belong to current rows.
func (a *account[K, V, P]) end() P {
	if a.ended == nil {
		a.ended = new(V)
	}
	return a.ended
}

// moveTo credits what r counts from now on to account a.
func (r *trackedRow[K, V, P]) moveTo(a *account[K, V, P]) {
	var zero V
	if r.last != zero && r.account != nil {
		r.account.end().Add(&r.last)
	}
	if r.last != zero && a != nil {
		a.end().Subtract(&r.last)
	}
	r.account = a
}

// Share is the value of an owner for a key.
type Share[K comparable, V any] struct {
	Owner   int // index into Attribution.Owners
	Key     K
	Value   V
	Resting bool // see model.Series; true if any of its cgroups rests
	// Since is a time at which Value was 0; zero if unknown, or if a part of Value belonged to another owner or had
	// other labels.
	Since time.Time
}

// maxMissedAnswers is the number of consecutive answers without the row of a forgotten cgroup after which the row is
// dropped. A source may list it again, and answers may be partial: a row that is dropped too early is credited twice.
const maxMissedAnswers = 10

// Credit credits the growth of each row. A nil series was not collected. counted is a time before the series was read.
func (t *Tracker[K, V, P]) Credit(series []model.Series[K, V], owners *identity.Table, counted time.Time) {
	if t.answered = series != nil; !t.answered {
		return
	}
	if t.rows == nil {
		t.rows, t.index = map[rowKey[K]]*trackedRow[K, V, P]{}, map[accountKey[K]]*account[K, V, P]{}
	}
	t.answer++
	series = t.find(series)
	since, lacks := t.counted, t.lacksRows()
	if lacks {
		since = time.Time{}
	} else {
		t.counted = counted
	}
	owner, of := identity.Unattributed, model.CgroupID(0)
	for i := range series {
		s, r := &series[i], t.order[i]
		if s.Cgroup != of {
			owner, of = owners.Of(s.Cgroup), s.Cgroup
		}
		if r.account == nil || r.account.owner != owner {
			a, added := t.account(owner, s.Key)
			if added {
				a.since, a.round = since, owners.Round()
			}
			r.moveTo(a)
		}
		if P(&s.Value).Fell(&r.last) {
			r.account.end().Add(&r.last)
		}
		r.last = s.Value
		if s.Resting {
			r.account.resting = t.answer
		}
	}
	for k, r := range t.leaving {
		if r.answer == t.answer {
			r.missing = 0
		} else if r.missing++; r.missing > maxMissedAnswers {
			r.moveTo(nil)
			delete(t.leaving, k)
			delete(t.rows, k)
		}
	}
}

// find finds the row of each series and adds up series with the same row.
func (t *Tracker[K, V, P]) find(series []model.Series[K, V]) []model.Series[K, V] {
	t.order = t.order[:0]
	var sums []model.Series[K, V]
	for i := range series {
		s := &series[i]
		k := rowKey[K]{s.Cgroup, s.Key}
		r := t.rows[k]
		if r == nil {
			r = &trackedRow[K, V, P]{}
			t.rows[k] = r
		}
		if r.answer != t.answer {
			r.answer, r.at = t.answer, int32(len(t.order))
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

// lacksRows reports whether the answer lacks a row of the answer before, except rows of forgotten cgroups.
func (t *Tracker[K, V, P]) lacksRows() bool {
	for k, r := range t.rows {
		if r.answer != t.answer-1 {
			continue
		}
		if _, leaving := t.leaving[k]; !leaving {
			return true
		}
	}
	return false
}

func (t *Tracker[K, V, P]) account(owner identity.OwnerID, key K) (a *account[K, V, P], added bool) {
	k := accountKey[K]{owner, key}
	a, known := t.index[k]
	if !known {
		a = &account[K, V, P]{owner: owner, key: key}
		t.index[k] = a
		t.accounts = append(t.accounts, a)
	}
	return a, !known
}

// Shares returns the values of the zero owner and of owners with a known cgroup; nil if nothing was collected. use
// returns the index of an owner.
func (t *Tracker[K, V, P]) Shares(owners *identity.Table, use func(identity.OwnerID) int) []Share[K, V] {
	if !t.answered {
		return nil
	}
	shares := make([]Share[K, V], 0, len(t.accounts))
	for _, a := range t.accounts {
		if a.at = -1; a.owner != identity.Unattributed && !owners.HasCgroup(a.owner) {
			continue
		}
		a.at = int32(len(shares))
		s := Share[K, V]{Owner: use(a.owner), Key: a.key, Resting: a.resting == t.answer}
		if a.owner != identity.Unattributed && a.round >= owners.Inherited(a.owner) {
			s.Since = a.since
		}
		shares = append(shares, s)
		if a.ended != nil {
			shares[a.at].Value = *a.ended
		}
	}
	for _, r := range t.rows {
		if r.account != nil && r.account.at >= 0 {
			P(&shares[r.account.at].Value).Add(&r.last)
		}
	}
	return shares
}

// attributed returns each key's sum over all owners except the zero owner, including owners that Shares leaves out.
func (t *Tracker[K, V, P]) attributed() map[K]V {
	sums := map[K]V{}
	add := func(key K, v P) {
		sum := sums[key]
		P(&sum).Add(v)
		sums[key] = sum
	}
	for _, a := range t.accounts {
		if a.owner != identity.Unattributed && a.ended != nil {
			add(a.key, a.ended)
		}
	}
	for _, r := range t.rows {
		if r.account != nil && r.account.owner != identity.Unattributed {
			add(r.account.key, &r.last)
		}
	}
	return sums
}

// Forget marks cgroups as forgotten: their rows are dropped when answers lack them.
func (t *Tracker[K, V, P]) Forget(ids map[model.CgroupID]bool) {
	for k, r := range t.rows {
		if ids[k.cgroup] {
			if t.leaving == nil {
				t.leaving = map[rowKey[K]]*trackedRow[K, V, P]{}
			}
			t.leaving[k] = r
		}
	}
}

// Merge moves the counters of one owner to another one.
func (t *Tracker[K, V, P]) Merge(m identity.Merge) {
	moved := map[*account[K, V, P]]*account[K, V, P]{}
	for _, from := range t.accounts {
		if from.owner != m.From {
			continue
		}
		to, _ := t.account(m.To, from.key) // a new account has no start: the moved values had other labels
		if from.ended != nil {
			to.end().Add(from.ended)
		}
		moved[from] = to
	}
	t.drop(moved)
}

// Expire drops everything of owners.
func (t *Tracker[K, V, P]) Expire(ids map[identity.OwnerID]bool) {
	gone := map[*account[K, V, P]]*account[K, V, P]{}
	for _, a := range t.accounts {
		if ids[a.owner] {
			gone[a] = nil
		}
	}
	t.drop(gone)
}

// drop drops accounts. Their rows count for the replacing account, if any.
func (t *Tracker[K, V, P]) drop(replaced map[*account[K, V, P]]*account[K, V, P]) {
	if len(replaced) == 0 {
		return
	}
	t.accounts = slices.DeleteFunc(t.accounts, func(a *account[K, V, P]) bool {
		_, dropped := replaced[a]
		if dropped {
			delete(t.index, accountKey[K]{a.owner, a.key})
		}
		return dropped
	})
	for _, r := range t.rows {
		if to, dropped := replaced[r.account]; dropped {
			r.account = to
		}
	}
}
