// SPDX-License-Identifier: Apache-2.0

package model

// Totals keeps the counts of cgroups from kernel counters that no longer exist: of removed devices and destroyed queue
// pairs. The zero Totals is ready to use. It is not safe for concurrent use.
type Totals[K comparable, V any, P Cumulative[V]] struct {
	Limit int // maximum number of rows; 0: no limit
	rows  map[totalsKey[K]]P
}

type totalsKey[K comparable] struct {
	cgroup CgroupID
	key    K
}

// Add adds a value. It returns false if there is no room for another row.
func (t *Totals[K, V, P]) Add(id CgroupID, key K, v V) bool {
	k := totalsKey[K]{id, key}
	if sum := t.rows[k]; sum != nil {
		sum.Add(&v)
		return true
	}
	if t.Limit > 0 && len(t.rows) >= t.Limit {
		return false
	}
	if t.rows == nil {
		t.rows = map[totalsKey[K]]P{}
	}
	t.rows[k] = P(&v)
	return true
}

// AppendTo appends all rows to s, in no order.
func (t *Totals[K, V, P]) AppendTo(s []Series[K, V]) []Series[K, V] {
	for k, v := range t.rows {
		s = append(s, Series[K, V]{Cgroup: k.cgroup, Key: k.key, Value: *v})
	}
	return s
}

// Forget drops the rows of cgroups.
func (t *Totals[K, V, P]) Forget(ids map[CgroupID]bool) {
	for k := range t.rows {
		if ids[k.cgroup] {
			delete(t.rows, k)
		}
	}
}
