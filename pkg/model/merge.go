// SPDX-License-Identifier: Apache-2.0

package model

import "slices"

// lists has a line for every list of facts in a Snapshot; lists of facts with a cgroup name
// its field.
var lists = []factList{
	list(func(s *Snapshot) *[]HCA { return &s.HCAs }),
	list(func(s *Snapshot) *[]Resource { return &s.Resources }),
	byCgroup(func(s *Snapshot) *[]Holding { return &s.Holdings }, func(f *Holding) CgroupID { return f.Cgroup }),
	byCgroup(func(s *Snapshot) *[]Objects { return &s.Objects }, func(f *Objects) CgroupID { return f.Cgroup }),
	byCgroup(func(s *Snapshot) *[]Registered { return &s.Registered }, func(f *Registered) CgroupID { return f.Cgroup }),
	series(func(s *Snapshot) *[]Series[ObjectKey, Count] { return &s.Created }),
	series(func(s *Snapshot) *[]Series[VerbKey, Histogram] { return &s.Verbs }),
	series(func(s *Snapshot) *[]Series[VerbErrorKey, Count] { return &s.VerbErrors }),
	byCgroup(func(s *Snapshot) *[]RDMACgroup { return &s.RDMACgroups }, func(f *RDMACgroup) CgroupID { return f.Cgroup }),
	byCgroup(func(s *Snapshot) *[]Traffic { return &s.Traffic }, func(f *Traffic) CgroupID { return f.Cgroup }),
	series(func(s *Snapshot) *[]Series[WorkRequestKey, Requests] { return &s.WorkRequests }),
	series(func(s *Snapshot) *[]Series[CompletionErrorKey, Count] { return &s.CompletionErrors }),
	series(func(s *Snapshot) *[]Series[CompletionKey, FineHistogram] { return &s.Completions }),
	byCgroup(func(s *Snapshot) *[]Sampling { return &s.Sampling }, func(f *Sampling) CgroupID { return f.Cgroup }),
	byCgroup(func(s *Snapshot) *[]Budget { return &s.Budgets }, func(f *Budget) CgroupID { return f.Cgroup }),
	series(func(s *Snapshot) *[]Series[SpentKey, CPUTime] { return &s.Spent }),
	list(func(s *Snapshot) *[]VF { return &s.VFs }),
	byCgroup(func(s *Snapshot) *[]Usage { return &s.Usages }, func(f *Usage) CgroupID { return f.Cgroup }),
	byCgroup(func(s *Snapshot) *[]Namespace { return &s.Namespaces }, func(f *Namespace) CgroupID { return f.Cgroup }),
	byCgroup(func(s *Snapshot) *[]GPUProcess { return &s.GPUProcesses }, func(f *GPUProcess) CgroupID { return f.Cgroup }),
	series(func(s *Snapshot) *[]Series[OpenKey, Opens] { return &s.DeviceOpens }),
	byCgroup(func(s *Snapshot) *[]DeviceHandles { return &s.DeviceHandles }, func(f *DeviceHandles) CgroupID { return f.Cgroup }),
	list(func(s *Snapshot) *[]Cgroup { return &s.Cgroups }),
	list(func(s *Snapshot) *[]CgroupID { return &s.Expired }),
	list(func(s *Snapshot) *[]JobStep { return &s.JobSteps }),
	list(func(s *Snapshot) *[]Container { return &s.Containers }),
	list(func(s *Snapshot) *[]Pod { return &s.Pods }),
	list(func(s *Snapshot) *[]Allocation { return &s.Allocations }),
	list(func(s *Snapshot) *[]Allocatable { return &s.Allocatable }),
	list(func(s *Snapshot) *[]PodStorage { return &s.PodStorage }),
	list(func(s *Snapshot) *[]GPU { return &s.GPUs }),
	list(func(s *Snapshot) *[]GPUDriver { return &s.GPUDrivers }),
	list(func(s *Snapshot) *[]DRIDevice { return &s.DRI }),
	list(func(s *Snapshot) *[]Hook { return &s.Hooks }),
	list(func(s *Snapshot) *[]Map { return &s.Maps }),
	list(func(s *Snapshot) *[]Loss { return &s.Losses }),
	list(func(s *Snapshot) *[]DeviceState { return &s.DeviceStates }),
}

// factList is one list of facts of any Snapshot.
type factList interface {
	merge(to, from *Snapshot)
	cgroups(s *Snapshot, add func(CgroupID))
	drop(s *Snapshot)
}

type listOf[T any] struct {
	of     func(*Snapshot) *[]T
	cgroup func(*T) CgroupID // nil for facts that belong to no cgroup
	series bool
}

func list[T any](of func(*Snapshot) *[]T) factList { return listOf[T]{of: of} }

func byCgroup[T any](of func(*Snapshot) *[]T, cgroup func(*T) CgroupID) factList {
	return listOf[T]{of: of, cgroup: cgroup}
}

func series[K comparable, V any](of func(*Snapshot) *[]Series[K, V]) factList {
	return listOf[Series[K, V]]{of, func(f *Series[K, V]) CgroupID { return f.Cgroup }, true}
}

// merge does not copy the first non-empty list. Partial snapshots do not change: a clipped
// list makes append allocate a new array.
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

// DropSeries drops all series, which take most of the memory.
func (s *Snapshot) DropSeries() {
	for _, l := range lists {
		l.drop(s)
	}
}

// Merge adds the facts of o to s. A list that neither collected stays nil.
func (s *Snapshot) Merge(o *Snapshot) {
	for _, l := range lists {
		l.merge(s, o)
	}
	if o.NodeStorage != nil {
		s.NodeStorage = o.NodeStorage
	}
	if o.Node != nil {
		s.Node = o.Node
	}
	if o.Fabric != nil {
		s.Fabric = o.Fabric
	}
	if o.DataPath != nil {
		s.DataPath = o.DataPath
	}
	if o.Events != nil {
		s.Events = o.Events
	}
	if o.UnresolvedCgroups != nil {
		s.UnresolvedCgroups = o.UnresolvedCgroups
	}
}

// CgroupIDs returns the cgroups of all facts, each once.
func (s *Snapshot) CgroupIDs() []CgroupID {
	var ids []CgroupID
	seen := map[CgroupID]struct{}{0: {}}
	last := CgroupID(0)
	for _, l := range lists {
		l.cgroups(s, func(id CgroupID) {
			if id == last { // rows of one cgroup often follow each other
				return
			}
			last = id
			if _, ok := seen[id]; !ok {
				seen[id] = struct{}{}
				ids = append(ids, id)
			}
		})
	}
	return ids
}
