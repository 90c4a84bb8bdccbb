// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"slices"
)

// Merge adds the facts of o to s. A slice that neither collected stays nil.
func (s *Snapshot) Merge(o Snapshot) {
	s.HCAs = join(s.HCAs, o.HCAs)
	s.Resources = join(s.Resources, o.Resources)
	s.Holdings = join(s.Holdings, o.Holdings)
	s.Objects = join(s.Objects, o.Objects)
	s.Registered = join(s.Registered, o.Registered)
	s.Verbs = join(s.Verbs, o.Verbs)
	s.VerbErrors = join(s.VerbErrors, o.VerbErrors)
	s.RDMACgroups = join(s.RDMACgroups, o.RDMACgroups)
	s.Traffic = join(s.Traffic, o.Traffic)
	s.WorkRequests = join(s.WorkRequests, o.WorkRequests)
	s.CompletionErrors = join(s.CompletionErrors, o.CompletionErrors)
	s.Completions = join(s.Completions, o.Completions)
	s.Sampling = join(s.Sampling, o.Sampling)
	s.Budgets = join(s.Budgets, o.Budgets)
	s.VFs = join(s.VFs, o.VFs)
	s.Expired = join(s.Expired, o.Expired)
	s.JobSteps = join(s.JobSteps, o.JobSteps)
	s.Containers = join(s.Containers, o.Containers)
	s.Pods = join(s.Pods, o.Pods)
	s.Allocations = join(s.Allocations, o.Allocations)
	s.Allocatable = join(s.Allocatable, o.Allocatable)
	s.PodStorage = join(s.PodStorage, o.PodStorage)
	s.Usages = join(s.Usages, o.Usages)
	s.Namespaces = join(s.Namespaces, o.Namespaces)
	s.GPUs = join(s.GPUs, o.GPUs)
	s.GPUDrivers = join(s.GPUDrivers, o.GPUDrivers)
	s.GPUProcesses = join(s.GPUProcesses, o.GPUProcesses)
	s.DRI = join(s.DRI, o.DRI)
	s.DeviceOpens = join(s.DeviceOpens, o.DeviceOpens)
	s.DeviceHandles = join(s.DeviceHandles, o.DeviceHandles)
	s.Hooks = join(s.Hooks, o.Hooks)
	s.Maps = join(s.Maps, o.Maps)
	s.Losses = join(s.Losses, o.Losses)
	s.DeviceStates = join(s.DeviceStates, o.DeviceStates)
	s.Tasks = joinMaps(s.Tasks, o.Tasks)
	s.Entities = joinMaps(s.Entities, o.Entities)
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

// join does not copy the first slice that has anything: partial snapshots are
// not changed either, so a clipped slice keeps append off its array.
func join[T any](a, b []T) []T {
	switch {
	case a == nil:
		return b
	case len(b) == 0:
		return a
	}
	return append(slices.Clip(a), b...)
}

func joinMaps[K comparable, V any](a, b map[K]V) map[K]V {
	switch {
	case a == nil:
		return b
	case len(b) == 0:
		return a
	}
	m := make(map[K]V, len(a)+len(b))
	maps.Copy(m, a)
	maps.Copy(m, b)
	return m
}
