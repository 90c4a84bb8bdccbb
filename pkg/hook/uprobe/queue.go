// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"cmp"
	"slices"
)

// queue has the waiting operations. Owners take turns, so that an owner with many files does not block the files of
// others.
type queue struct {
	waiting []*Operation
	turns   uint64
	last    map[uint64]uint64 // turn of each owner, since the queue was empty
}

// next takes the operation with the owner whose turn was longest ago, or nil from an empty queue.
func (q *queue) next() *Operation {
	if len(q.waiting) == 0 {
		q.last = nil
		return nil
	}
	first := slices.MinFunc(q.waiting, func(a, b *Operation) int { return cmp.Compare(q.turn(a), q.turn(b)) })
	q.remove(first)
	if q.last == nil {
		q.last = map[uint64]uint64{}
	}
	q.turns++
	for _, id := range first.Owners {
		q.last[id] = q.turns
	}
	return first
}

// turn returns the earliest turn of the owners of an operation; 0 is an owner without a turn.
func (q *queue) turn(o *Operation) uint64 {
	if len(o.Owners) == 0 {
		return 0
	}
	earliest := q.last[o.Owners[0]]
	for _, id := range o.Owners[1:] {
		earliest = min(earliest, q.last[id])
	}
	return earliest
}

// remove takes an operation out. It reports false if the operation does not wait any more.
func (q *queue) remove(o *Operation) bool {
	i := slices.Index(q.waiting, o)
	if i >= 0 {
		q.waiting = slices.Delete(q.waiting, i, i+1)
	}
	return i >= 0
}
