// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"reflect"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// UsageShare is the node resources that one owner uses.
type UsageShare struct {
	Owner int
	*model.Usage
	Since time.Time
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
			out = append(out, UsageShare{Owner: owner, Usage: u, Since: u.Since})
			continue
		}
		both := addUsages(*out[n].Usage, u)
		out[n].Usage, out[n].Since = &both, earlier(out[n].Since, u.Since)
	}
	o.begin(out)
	return out
}

// begin sets the time at which the counters of each share were 0. Counters belong to cgroups: an owner with another
// owner's cgroup, or with changed labels, has no such time. For a container with a cgroup from before the sensor's
// start it is the runtime's creation time, unless the cgroup is older.
func (o *users) begin(shares []UsageShare) {
	created := make(map[int]time.Time, len(o.a.Containers))
	for i := range o.a.Containers {
		c := &o.a.Containers[i]
		created[c.Owner] = c.Created
	}
	for i := range shares {
		s := &shares[i]
		if c := created[s.Owner]; s.Since.IsZero() && !s.Created.Before(c) {
			s.Since = c
		}
		if o.Inherited(o.a.ids[s.Owner]) > 0 {
			s.Since = time.Time{}
		}
	}
}

// earlier returns the earlier time, zero if either is zero.
func earlier(a, b time.Time) time.Time {
	if a.Before(b) { // or a is zero
		return a
	}
	return b
}

// addUsages adds up the usage of two cgroups. Values that cannot be added become the first (quota period) or the larger
// value (waiting times); the common peak is unknown.
func addUsages(a model.Usage, b *model.Usage) model.Usage {
	sum := a
	if !b.Created.IsZero() && (a.Created.IsZero() || b.Created.Before(a.Created)) {
		sum.Created = b.Created
	}
	addOptionals(reflect.ValueOf(&sum).Elem(), reflect.ValueOf(b).Elem())
	sum.CPU.Period, sum.Memory.Peak = a.CPU.Period, model.Optional{}
	sum.CPU.Waiting, sum.CPU.Stalled = larger(a.CPU.Waiting, b.CPU.Waiting), larger(a.CPU.Stalled, b.CPU.Stalled)
	sum.Memory.Waiting, sum.Memory.Stalled = larger(a.Memory.Waiting, b.Memory.Waiting), larger(a.Memory.Stalled, b.Memory.Stalled)
	sum.IOWaiting, sum.IOStalled = larger(a.IOWaiting, b.IOWaiting), larger(a.IOStalled, b.IOStalled)
	sum.IO = addIO(a.IO, b.IO)
	return sum
}

func addOptionals(a, b reflect.Value) {
	for i := range a.NumField() {
		switch n := a.Field(i).Addr().Interface().(type) {
		case *model.Optional:
			*n = add(*n, *b.Field(i).Addr().Interface().(*model.Optional))
		case *model.CPUUsage, *model.MemoryUsage:
			addOptionals(a.Field(i), b.Field(i))
		}
	}
}

func add(a, b model.Optional) model.Optional {
	return model.Optional{Value: a.Value + b.Value, Known: a.Known || b.Known}
}

func larger(a, b model.Optional) model.Optional {
	if b.Known && (!a.Known || b.Value > a.Value) {
		return b
	}
	return a
}

func addIO(a, b []model.DeviceIO) []model.DeviceIO {
	if a == nil {
		return b
	}
	sums := slices.Clone(a)
	for i := range b {
		at := slices.IndexFunc(sums, func(d model.DeviceIO) bool { return d.Major == b[i].Major && d.Minor == b[i].Minor })
		if at < 0 {
			sums = append(sums, b[i])
		} else {
			addOptionals(reflect.ValueOf(&sums[at]).Elem(), reflect.ValueOf(&b[i]).Elem())
		}
	}
	return sums
}

// networks assigns the interfaces of a network namespace to its pod, or to a container outside pods. The node's
// namespace has no owner. Of an owner's two namespaces only the first counts: it belongs to the pod's sandbox, and a
// sum would fall when the other ends.
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
