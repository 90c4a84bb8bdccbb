// SPDX-License-Identifier: Apache-2.0

package model

import (
	"cmp"
	"slices"
)

// factList is a list of facts in a Snapshot.
type factList interface {
	merge(to, from *Snapshot)
	cgroups(s *Snapshot, add func(CgroupID))
	drop(s *Snapshot)
}

type listOf[T any] struct {
	of     func(*Snapshot) *[]T
	cgroup func(*T) CgroupID // nil for facts without a cgroup
	series bool
}

func list[T any](of func(*Snapshot) *[]T) factList { return listOf[T]{of: of} }

func byCgroup[T any](of func(*Snapshot) *[]T, cgroup func(*T) CgroupID) factList {
	return listOf[T]{of: of, cgroup: cgroup}
}

func series[K comparable, V any](of func(*Snapshot) *[]Series[K, V]) factList {
	return listOf[Series[K, V]]{of, func(f *Series[K, V]) CgroupID { return f.Cgroup }, true}
}

// merge does not copy the first non-empty list. Partial snapshots do not change: append to a clipped list allocates a
// new array.
func (l listOf[T]) merge(to, from *Snapshot) {
	a, b := l.of(to), *l.of(from)
	switch {
	case *a == nil:
		*a = b
	case len(b) > 0:
		*a = append(slices.Clip(*a), b...)
	}
}

func (l listOf[T]) cgroups(s *Snapshot, add func(CgroupID)) {
	if l.cgroup == nil {
		return
	}
	facts := *l.of(s)
	for i := range facts {
		add(l.cgroup(&facts[i]))
	}
}

func (l listOf[T]) drop(s *Snapshot) {
	if l.series {
		*l.of(s) = nil
	}
}

// DropSeries drops all series, which use most of the memory.
func (s *Snapshot) DropSeries() {
	for _, l := range lists {
		l.drop(s)
	}
}

// Merge adds the facts of o to s. A list that both lack stays nil.
func (s *Snapshot) Merge(o *Snapshot) {
	for _, l := range lists {
		l.merge(s, o)
	}
	s.DenialsUnseen = s.DenialsUnseen || o.DenialsUnseen
	s.NodeStorage = cmp.Or(o.NodeStorage, s.NodeStorage)
	s.Node = cmp.Or(o.Node, s.Node)
	s.Fabric = cmp.Or(o.Fabric, s.Fabric)
	s.FabricManager = cmp.Or(o.FabricManager, s.FabricManager)
	s.Clock = cmp.Or(o.Clock, s.Clock)
	s.DataPath = cmp.Or(o.DataPath, s.DataPath)
	s.Events = cmp.Or(o.Events, s.Events)
	s.UnresolvedCgroups = cmp.Or(o.UnresolvedCgroups, s.UnresolvedCgroups)
}

// CgroupIDs returns the cgroups of all facts, each once.
func (s *Snapshot) CgroupIDs() []CgroupID {
	var ids []CgroupID
	seen := map[CgroupID]struct{}{0: {}}
	last := CgroupID(0)
	add := func(id CgroupID) {
		if id == last { // consecutive rows often have the same cgroup
			return
		}
		last = id
		if _, ok := seen[id]; !ok {
			seen[id] = struct{}{}
			ids = append(ids, id)
		}
	}
	for _, l := range lists {
		l.cgroups(s, add)
	}
	return ids
}
