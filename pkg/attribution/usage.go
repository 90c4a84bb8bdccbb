// SPDX-License-Identifier: Apache-2.0

package attribution

import "github.com/accelscope/accelscope/pkg/model"

// UsageShare is the node resources that one owner uses.
type UsageShare struct {
	Owner int
	*model.Usage
}

// NetworkShare is the interface counters of one owner's network namespace.
type NetworkShare struct {
	Owner      int
	Interfaces []model.Interface
}

// usages credits each cgroup's values to its owner. An unattributed cgroup has no share.
func (o *users) usages(s *model.Snapshot) []UsageShare {
	if s.Usages == nil {
		return nil
	}
	out := make([]UsageShare, 0, len(s.Usages))
	at := make(map[int]int, len(s.Usages))
	for i := range s.Usages {
		u := &s.Usages[i]
		owner := o.ofCgroup(u.Cgroup)
		if owner == unattributed {
			continue
		}
		n, ok := at[owner]
		if !ok {
			at[owner] = len(out)
			out = append(out, UsageShare{owner, u})
			continue
		}
		both := addUsages(*out[n].Usage, u)
		out[n].Usage = &both
	}
	return out
}

// addUsages returns the sum of the usage of two cgroups. For values that cannot be added it
// returns the first one (quota period) or the larger one (waiting times); the common peak is
// unknown.
func addUsages(a model.Usage, b *model.Usage) model.Usage {
	if !b.Created.IsZero() && (a.Created.IsZero() || b.Created.Before(a.Created)) {
		a.Created = b.Created
	}
	for _, f := range [][2]*model.Optional{
		{&a.CPU.Total, &b.CPU.Total},
		{&a.CPU.User, &b.CPU.User},
		{&a.CPU.System, &b.CPU.System},
		{&a.CPU.Periods, &b.CPU.Periods},
		{&a.CPU.ThrottledPeriods, &b.CPU.ThrottledPeriods},
		{&a.CPU.Throttled, &b.CPU.Throttled},
		{&a.CPU.Quota, &b.CPU.Quota},
		{&a.CPU.Shares, &b.CPU.Shares},
		{&a.Memory.Usage, &b.Memory.Usage},
		{&a.Memory.WorkingSet, &b.Memory.WorkingSet},
		{&a.Memory.RSS, &b.Memory.RSS},
		{&a.Memory.Cache, &b.Memory.Cache},
		{&a.Memory.Swap, &b.Memory.Swap},
		{&a.Memory.MappedFile, &b.Memory.MappedFile},
		{&a.Memory.Kernel, &b.Memory.Kernel},
		{&a.Memory.Limit, &b.Memory.Limit},
		{&a.Memory.SwapLimit, &b.Memory.SwapLimit},
		{&a.Memory.Reservation, &b.Memory.Reservation},
		{&a.Memory.LimitHits, &b.Memory.LimitHits},
		{&a.Memory.Faults, &b.Memory.Faults},
		{&a.Memory.MajorFaults, &b.Memory.MajorFaults},
		{&a.Memory.FaultsBelow, &b.Memory.FaultsBelow},
		{&a.Memory.MajorFaultsBelow, &b.Memory.MajorFaultsBelow},
		{&a.Memory.OOMKills, &b.Memory.OOMKills},
		{&a.Processes, &b.Processes},
		{&a.Threads, &b.Threads},
		{&a.ThreadsMax, &b.ThreadsMax},
	} {
		*f[0] = add(*f[0], *f[1])
	}
	a.Memory.Peak = model.Optional{}
	for _, f := range [][2]*model.Optional{
		{&a.CPU.Waiting, &b.CPU.Waiting},
		{&a.CPU.Stalled, &b.CPU.Stalled},
		{&a.Memory.Waiting, &b.Memory.Waiting},
		{&a.Memory.Stalled, &b.Memory.Stalled},
		{&a.IOWaiting, &b.IOWaiting},
		{&a.IOStalled, &b.IOStalled},
	} {
		if f[1].Known && (!f[0].Known || f[1].Value > f[0].Value) {
			*f[0] = *f[1]
		}
	}
	a.IO = addIO(a.IO, b.IO)
	return a
}

func add(a, b model.Optional) model.Optional {
	return model.Optional{Value: a.Value + b.Value, Known: a.Known || b.Known}
}

func addIO(a, b []model.DeviceIO) []model.DeviceIO {
	if a == nil {
		return b
	}
	out := append(make([]model.DeviceIO, 0, len(a)+len(b)), a...)
next:
	for _, d := range b {
		for i := range out {
			if e := &out[i]; e.Major == d.Major && e.Minor == d.Minor {
				e.ReadBytes = add(e.ReadBytes, d.ReadBytes)
				e.WriteBytes = add(e.WriteBytes, d.WriteBytes)
				e.DiscardBytes = add(e.DiscardBytes, d.DiscardBytes)
				e.Reads = add(e.Reads, d.Reads)
				e.Writes = add(e.Writes, d.Writes)
				continue next
			}
		}
		out = append(out, d)
	}
	return out
}

// networks assigns the interfaces of a network namespace to its pod, or to a container outside
// any pod. The node's namespace has no owner. If an owner has two namespaces, the first one is
// used: it belongs to the pod's sandbox, and the sum would fall when the other one ends.
func (o *users) networks(s *model.Snapshot) []NetworkShare {
	if s.Namespaces == nil {
		return nil
	}
	out := make([]NetworkShare, 0, len(s.Namespaces))
	seen := make(map[int]bool, len(s.Namespaces))
	for _, n := range s.Namespaces {
		if n.Host || len(n.Interfaces) == 0 {
			continue
		}
		owner := o.a.Use(o.PodOf(n.Cgroup))
		if owner == unattributed || seen[owner] {
			continue
		}
		seen[owner] = true
		out = append(out, NetworkShare{owner, n.Interfaces})
	}
	return out
}
