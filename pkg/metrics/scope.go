// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"maps"
	"slices"
	"sync/atomic"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
)

// Scope selects the workloads with series of CPU, memory, I/O, networks and container state.
type Scope string

// The scopes. ScopeAccelerated are the workloads that hold, or were allocated, an HCA or a GPU.
const (
	ScopeAll         Scope = "all"
	ScopeAccelerated Scope = "accelerated"
	ScopeNone        Scope = "none"
)

// Accelerated are the owners that the last refresh selected under ScopeAccelerated: sources need not read the usage of
// other owners. It may be used concurrently.
type Accelerated struct{ last atomic.Pointer[accelerated] }

type accelerated struct {
	owners map[identity.Owner]uint64 // scope.accelerated
	pods   map[pod]bool              // pods with a selected container
}

// Has reports whether the usage of an owner may be exported. Any container of a pod may have the pod's network. Before
// the first refresh, Has returns true.
func (a *Accelerated) Has(o identity.Owner) bool {
	last := a.last.Load()
	if last == nil {
		return true
	}
	_, selected := last.owners[o]
	return selected || o.Pod != "" && last.pods[pod{o.Namespace, o.Pod}]
}

func (a *Accelerated) set(owners map[identity.Owner]uint64, pods map[pod]bool) {
	if a != nil {
		a.last.Store(&accelerated{maps.Clone(owners), maps.Clone(pods)})
	}
}

// scope selects the shares of a refresh by its Scope. It keeps its buffers.
type scope struct {
	Scope
	published *Accelerated // may be nil
	// accelerated are the owners that have held or were allocated a device since they exist: their series stay. The
	// value is the last refresh with the owner.
	accelerated map[identity.Owner]uint64
	refresh     uint64

	selected   []bool // by index of the owner
	described  []bool // the owners with accelscope_workload_info: all with other series
	pods       map[pod]bool
	usages     []attribution.UsageShare
	networks   []attribution.NetworkShare
	containers []attribution.ContainerShare
	energy     []attribution.CPUEnergyShare // of all read workloads: the shares add up
}

type pod struct{ namespace, name string }

func (s *scope) fill(a *attribution.Attribution) {
	if s.Scope == ScopeNone {
		return
	}
	s.energy = a.CPUEnergy
	if s.Scope != ScopeAccelerated {
		s.usages, s.networks, s.containers = a.Usages, a.Networks, a.Containers
		return
	}
	s.selectOwners(a)
	s.published.set(s.accelerated, s.pods)
	s.describe(a)
	s.usages = leaveOut(s.usages, a.Usages, func(u attribution.UsageShare) bool { return !s.selected[u.Owner] })
	s.networks = leaveOut(s.networks, a.Networks, func(n attribution.NetworkShare) bool { return !s.selected[n.Owner] })
	s.containers = leaveOut(s.containers, a.Containers, func(c attribution.ContainerShare) bool { return !s.selected[c.Owner] })
}

// leaveOut copies list into buffer without the unwanted elements.
func leaveOut[T any](buffer, list []T, unwanted func(T) bool) []T {
	return slices.DeleteFunc(append(buffer[:0], list...), unwanted)
}

// selectOwners selects the accelerated owners, and their pods: the network belongs to the pod.
func (s *scope) selectOwners(a *attribution.Attribution) {
	if s.accelerated == nil {
		s.accelerated, s.pods = map[identity.Owner]uint64{}, map[pod]bool{}
	}
	s.refresh++
	s.selected = append(s.selected[:0], make([]bool, len(a.Owners))...)
	for i := range a.Objects {
		s.selected[a.Objects[i].Owner] = true
	}
	for i := range a.RDMACgroups {
		s.selected[a.RDMACgroups[i].Owner] = true
	}
	for i := range a.DeviceHandles {
		s.selected[a.DeviceHandles[i].Owner] = s.selected[a.DeviceHandles[i].Owner] || a.DeviceHandles[i].Count > 0
	}
	for i := range a.GPUs {
		s.selected[a.GPUs[i].Owner] = true
	}
	for i := range a.Assigned {
		if d := &a.Assigned[i]; d.HCA != nil || d.GPU != nil {
			s.selected[d.Owner] = true
		}
	}
	s.selected[0] = false // the unattributed share
	clear(s.pods)
	for i, o := range a.Owners {
		if _, before := s.accelerated[o]; before || s.selected[i] {
			s.selected[i] = true
			s.accelerated[o] = s.refresh
			s.pods[pod{o.Namespace, o.Pod}] = true
		}
	}
	for i, o := range a.Owners {
		if o.Pod != "" && o.Container == "" && s.pods[pod{o.Namespace, o.Pod}] {
			s.selected[i] = true
		}
	}
	maps.DeleteFunc(s.accelerated, func(_ identity.Owner, last uint64) bool { return s.refresh-last > maxAbsence })
}

// describe selects the owners that have series.
func (s *scope) describe(a *attribution.Attribution) {
	s.described = append(s.described[:0], s.selected...)
	for i := range a.DeviceOpens {
		s.described[a.DeviceOpens[i].Owner] = true
	}
	for i := range a.DeviceHandles {
		s.described[a.DeviceHandles[i].Owner] = true
	}
	for i := range a.DriverShares {
		s.described[a.DriverShares[i].Owner] = true
	}
	for i := range a.FaultShares {
		s.described[a.FaultShares[i].Owner] = true
	}
	for i := range a.FailedAllocations {
		s.described[a.FailedAllocations[i].Owner] = true
	}
	for i := range a.CollectiveGaps {
		s.described[a.CollectiveGaps[i].Owner] = true
	}
	for i := range a.Assigned {
		s.described[a.Assigned[i].Owner] = true
	}
	for i := range a.CPUEnergy {
		s.described[a.CPUEnergy[i].Owner] = true
	}
}

func (s *scope) describes(owner int) bool { return s.Scope != ScopeAccelerated || s.described[owner] }

func (s *scope) hasPod(namespace, name string) bool {
	return s.Scope != ScopeAccelerated || s.pods[pod{namespace, name}]
}

// maxAbsence is the number of refreshes that may lack an accelerated owner, for example while a runtime does not
// answer.
const maxAbsence = 60
