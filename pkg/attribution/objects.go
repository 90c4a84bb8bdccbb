// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"cmp"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

type objectTable struct{ *shareTable[ObjectShare] }

func (t objectTable) of(owner int, device string, typ model.ObjectType) *ObjectShare {
	return t.at(t.key(owner, device, string(typ)), ObjectShare{Owner: owner, Device: device, Type: typ})
}

// objects returns the objects of each owner: counted by the probe, or else listed by netlink. Kernel modules have
// protection domains, connection manager ids, and the queue pairs of these ids: to list other queue pairs would query
// the firmware for each queue pair of the device.
func (o *users) objects(s *model.Snapshot) objectTable {
	t := objectTable{newTable[ObjectShare](len(s.Objects) + len(s.Holdings) + len(s.Resources))}
	for _, f := range s.Objects {
		t.of(o.ofCgroup(f.Cgroup), f.Device, f.Type).Current += f.Current
	}
	if s.Objects == nil {
		for _, f := range s.Holdings {
			t.of(o.ofCgroup(f.Cgroup), f.Device, f.Type).Current += f.Count
		}
	}
	for i := range s.Domains {
		if d := &s.Domains[i]; d.IsConsumer() || d.Module == model.IPoIBModule && d.Used > 0 {
			t.addKernel(o.a.Use(o.OfKernel(d.Module)), d.Device, model.PD, d.Count)
		}
	}
	for i := range s.KernelIDs {
		id := &s.KernelIDs[i]
		owner := o.a.Use(o.OfKernel(id.Module))
		t.addKernel(owner, id.Device, model.CMID, 1)
		if id.QPN != 0 {
			t.addKernel(owner, id.Device, model.QP, 1)
		}
	}
	return t
}

func (t objectTable) addKernel(owner int, device string, typ model.ObjectType, n uint64) {
	share := t.of(owner, device, typ)
	share.Current, share.Method = share.Current+n, MethodNetlink
}

// settle makes the shares of a device add up to its total: the remainder is unattributed. A total below the sum is
// raised: both are not read at the same instant, and the kernel does not count some objects (no_track) and types.
func (t objectTable) settle(s *model.Snapshot, created []Share[model.ObjectKey, model.Count]) ([]ObjectShare, []model.Resource) {
	method := MethodProbe
	if s.Objects == nil {
		method = MethodNetlink
	}
	for _, c := range created {
		o := t.of(c.Owner, c.Key.Device, c.Key.Type)
		o.Created, o.Since = uint64(c.Value), c.Since
	}
	sums := make(map[key]uint64, len(s.Resources))
	for i := range t.rows {
		sums[t.key(unattributed, t.rows[i].Device, string(t.rows[i].Type))] += t.rows[i].Current
	}
	devices := make([]model.Resource, 0, len(s.Resources))
	counted := make(map[key]bool, len(s.Resources))
	for _, f := range s.Resources {
		k := t.key(unattributed, f.Device, string(f.Type))
		if counted[k] {
			continue
		}
		counted[k], counted[t.key(unattributed, f.Device, "")] = true, true
		rest := f.Count - min(f.Count, sums[k])
		t.of(unattributed, f.Device, f.Type).Current += rest
		devices = append(devices, model.Resource{Device: f.Device, Type: f.Type, Count: sums[k] + rest})
	}
	for i := range len(t.rows) {
		f := t.rows[i]
		k := t.key(unattributed, f.Device, string(f.Type))
		if counted[k] || !counted[t.key(unattributed, f.Device, "")] {
			continue
		}
		counted[k] = true
		t.of(unattributed, f.Device, f.Type)
		devices = append(devices, model.Resource{Device: f.Device, Type: f.Type, Count: sums[k]})
	}
	for i := range t.rows {
		t.rows[i].Method = cmp.Or(t.rows[i].Method, method)
	}
	if s.Resources == nil {
		devices = nil
	}
	return t.rows, devices
}

// registered returns the registered memory: counted by the probe, or else listed by netlink, which does not report the
// kind of memory.
func (o *users) registered(s *model.Snapshot) []RegisteredShare {
	t := newTable[RegisteredShare](len(s.Registered) + len(s.Holdings) + 2*len(s.HCAs))
	at := func(owner int, device string, m model.Memory) *RegisteredShare {
		return t.at(t.key(owner, device, string(m)), RegisteredShare{Owner: owner, Device: device, Memory: m})
	}
	switch {
	case s.Objects != nil && s.Registered != nil:
		for _, f := range s.Registered {
			at(o.ofCgroup(f.Cgroup), f.Device, f.Memory).Bytes += f.Bytes
		}
		for _, d := range s.HCAs {
			at(unattributed, d.Name, model.HostMemory)
			at(unattributed, d.Name, model.GPUMemory)
		}
	case s.Objects == nil && s.Holdings != nil:
		for _, f := range s.Holdings {
			if f.Type == model.MR {
				at(o.ofCgroup(f.Cgroup), f.Device, f.Memory).Bytes += f.Bytes
			}
		}
		for _, d := range s.HCAs {
			at(unattributed, d.Name, model.UnknownMemory)
		}
	default:
		return nil
	}
	return t.rows
}

// rdmaCgroups adds up the charges of an owner's topmost cgroups, because the controller charges a cgroup for its
// descendants, too. An unattributed cgroup may be the parent of owners' cgroups and has no share.
func (o *users) rdmaCgroups(s *model.Snapshot) []RDMACgroupShare {
	facts := slices.Clone(s.RDMACgroups)
	slices.SortStableFunc(facts, func(a, b model.RDMACgroup) int {
		return strings.Compare(string(o.Path(a.Cgroup)), string(o.Path(b.Cgroup)))
	})
	t := newTable[RDMACgroupShare](len(facts))
	tops := make(map[key][]model.CgroupPath)
	for _, f := range facts {
		owner, path := o.ofCgroup(f.Cgroup), o.Path(f.Cgroup)
		if owner == unattributed {
			continue
		}
		k := t.key(owner, f.Device, "")
		below := func(top model.CgroupPath) bool { return top != "" && path != top && identity.Within(path, top) }
		if slices.ContainsFunc(tops[k], below) {
			continue
		}
		tops[k] = append(tops[k], path)
		share := t.at(k, RDMACgroupShare{Owner: owner, Device: f.Device})
		share.Handles += f.Handles
		share.Objects += f.Objects
	}
	return t.rows
}
