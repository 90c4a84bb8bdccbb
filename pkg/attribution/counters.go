// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// CounterShares are the counters of owners. A list is nil if the counter was not collected.
type CounterShares struct {
	Created          []Share[model.ObjectKey, model.Count]
	Verbs            []Share[model.VerbKey, model.Histogram]
	VerbErrors       []Share[model.VerbErrorKey, model.Count]
	DeviceOpens      []Share[model.OpenKey, model.Opens]
	WorkRequests     []Share[model.WorkRequestKey, model.Requests]
	CompletionErrors []Share[model.CompletionErrorKey, model.Count]
	Completions      []Share[model.CompletionKey, model.FineHistogram]
	Late             []Share[model.DeviceKey, model.Count]
	Unread           []Share[model.DeviceKey, model.Count]
	ReceiveWaits     []Share[model.DeviceKey, model.WaitTime]
	Spent            []Share[model.SpentKey, model.CPUTime]
	DriverCalls      []Share[model.DriverCallKey, model.Histogram]
	Faults           []Share[model.FaultKey, model.Count] // see FaultShares

	FailedAllocations []Share[model.AllocationKey, model.Allocations]
	Collectives       []Share[model.CollectiveKey, model.Launches] // of communicators that are not in Communicators
	OwnerLosses       []Share[model.LossKey, model.Count]
}

// Counters holds a Tracker for each counter. The zero Counters is ready to use. It is not safe for concurrent use.
type Counters struct {
	// IdleToNobody leaves the idle part of the energy of GPUs unattributed. It does not change.
	IdleToNobody bool

	all       []counter
	faults    faultLedger
	energy    energyLedger
	cpuEnergy cpuLedger
}

func newCounters() []counter {
	type (
		s = *model.Snapshot
		a = *CounterShares
	)
	return []counter{
		count(func(s s) []model.Series[model.ObjectKey, model.Count] { return s.Created },
			func(a a) *[]Share[model.ObjectKey, model.Count] { return &a.Created }),
		count(func(s s) []model.Series[model.VerbKey, model.Histogram] { return s.Verbs },
			func(a a) *[]Share[model.VerbKey, model.Histogram] { return &a.Verbs }),
		count(func(s s) []model.Series[model.VerbErrorKey, model.Count] { return s.VerbErrors },
			func(a a) *[]Share[model.VerbErrorKey, model.Count] { return &a.VerbErrors }),
		count(func(s s) []model.Series[model.OpenKey, model.Opens] { return s.DeviceOpens },
			func(a a) *[]Share[model.OpenKey, model.Opens] { return &a.DeviceOpens }),
		count(func(s s) []model.Series[model.WorkRequestKey, model.Requests] { return s.WorkRequests },
			func(a a) *[]Share[model.WorkRequestKey, model.Requests] { return &a.WorkRequests }),
		count(func(s s) []model.Series[model.CompletionErrorKey, model.Count] { return s.CompletionErrors },
			func(a a) *[]Share[model.CompletionErrorKey, model.Count] { return &a.CompletionErrors }),
		count(func(s s) []model.Series[model.CompletionKey, model.FineHistogram] { return s.Completions },
			func(a a) *[]Share[model.CompletionKey, model.FineHistogram] { return &a.Completions }),
		count(func(s s) []model.Series[model.DeviceKey, model.Count] { return s.Late },
			func(a a) *[]Share[model.DeviceKey, model.Count] { return &a.Late }),
		count(func(s s) []model.Series[model.DeviceKey, model.Count] { return s.Unread },
			func(a a) *[]Share[model.DeviceKey, model.Count] { return &a.Unread }),
		count(func(s s) []model.Series[model.DeviceKey, model.WaitTime] { return s.ReceiveWaits },
			func(a a) *[]Share[model.DeviceKey, model.WaitTime] { return &a.ReceiveWaits }),
		count(func(s s) []model.Series[model.SpentKey, model.CPUTime] { return s.Spent },
			func(a a) *[]Share[model.SpentKey, model.CPUTime] { return &a.Spent }),
		count(func(s s) []model.Series[model.AllocationKey, model.Allocations] { return s.FailedAllocations },
			func(a a) *[]Share[model.AllocationKey, model.Allocations] { return &a.FailedAllocations }),
		count(func(s s) []model.Series[model.CollectiveKey, model.Launches] { return s.Collectives },
			func(a a) *[]Share[model.CollectiveKey, model.Launches] { return &a.Collectives }),
		count(func(s s) []model.Series[model.DriverCallKey, model.Histogram] { return s.DriverCalls },
			func(a a) *[]Share[model.DriverCallKey, model.Histogram] { return &a.DriverCalls }),
		count(func(s s) []model.Series[model.LossKey, model.Count] { return s.OwnerLosses },
			func(a a) *[]Share[model.LossKey, model.Count] { return &a.OwnerLosses }),
	}
}

// counter is a Tracker with its input and output.
type counter interface {
	credit(s *model.Snapshot, owners *identity.Table)
	share(a *CounterShares, owners *identity.Table, use func(identity.OwnerID) int)
	Merge(m identity.Merge)
	Forget(ids map[model.CgroupID]bool)
	Expire(ids map[identity.OwnerID]bool)
}

type counterOf[K, V comparable, P model.Cumulative[V]] struct {
	Tracker[K, V, P]
	facts  func(*model.Snapshot) []model.Series[K, V]
	shares func(*CounterShares) *[]Share[K, V]
}

func count[K, V comparable, P model.Cumulative[V]](
	facts func(*model.Snapshot) []model.Series[K, V], shares func(*CounterShares) *[]Share[K, V],
) counter {
	return &counterOf[K, V, P]{facts: facts, shares: shares}
}

func (c *counterOf[K, V, P]) credit(s *model.Snapshot, owners *identity.Table) {
	c.Credit(c.facts(s), owners, s.Counted)
}

func (c *counterOf[K, V, P]) share(a *CounterShares, owners *identity.Table, use func(identity.OwnerID) int) {
	*c.shares(a) = c.Shares(owners, use)
}

// Credit applies merges and then credits the series of a refresh.
func (c *Counters) Credit(s *model.Snapshot, owners *identity.Table, merges []identity.Merge) {
	if c.all == nil {
		faults := &counterOf[model.FaultKey, model.Count, *model.Count]{
			facts:  func(s *model.Snapshot) []model.Series[model.FaultKey, model.Count] { return s.Faults },
			shares: func(a *CounterShares) *[]Share[model.FaultKey, model.Count] { return &a.Faults },
		}
		c.all, c.faults.shares = append(newCounters(), faults), &faults.Tracker
	}
	for _, m := range merges {
		c.energy.merge(m)
		c.cpuEnergy.merge(m)
	}
	for _, t := range c.all {
		for _, m := range merges {
			t.Merge(m)
		}
		t.credit(s, owners)
	}
}

// Forget marks cgroups as forgotten.
func (c *Counters) Forget(ids []model.CgroupID) {
	set := setOf(ids)
	for _, t := range c.all {
		t.Forget(set)
	}
}

// Expire drops the counters of expired owners.
func (c *Counters) Expire(ids []identity.OwnerID) {
	if len(ids) == 0 {
		return
	}
	set := setOf(ids)
	c.energy.expire(set)
	c.cpuEnergy.expire(set)
	for _, t := range c.all {
		t.Expire(set)
	}
}

func setOf[T comparable](ids []T) map[T]bool {
	set := make(map[T]bool, len(ids))
	for _, id := range ids {
		set[id] = true
	}
	return set
}
