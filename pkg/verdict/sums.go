// SPDX-License-Identifier: Apache-2.0

package verdict

import "time"

type sumKey struct {
	owner  int
	detail string
}

// judgeSums judges the sums of counters of owners, in the order of their first counter.
func (r *round) judgeSums(c *Condition, all sums, what string) {
	for _, k := range all.order {
		s, o := r.owned(k.owner)
		n := r.counted(counterKey{condition: c, number: 1, detail: k.detail}, all.values[k], o)
		if float64(n) > c.limit(0) {
			s.Detail = k.detail
			r.find(c, s, time.Time{}, grewIn(what, n, c.Window))
		}
	}
}

// sums adds up counters by owner.
type sums struct {
	values map[sumKey]uint64
	order  []sumKey
}

func (s *sums) add(owner int, detail string, n uint64) {
	k := sumKey{owner, detail}
	if s.values == nil {
		s.values = map[sumKey]uint64{}
	}
	if _, known := s.values[k]; !known {
		s.order = append(s.order, k)
	}
	s.values[k] += n
}
