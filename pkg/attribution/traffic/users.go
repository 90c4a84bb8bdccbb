// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"slices"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// use describes how one owner uses a device, by the objects that can move bytes (moves).
type use struct {
	held, holds        bool   // has such objects at the last refresh, and now
	created, createdBy uint64 // number created until the last refresh, and until now: never decrease
	opened, openedBy   uint64 // number of verbs contexts of mlx5 opened until the last refresh, and until now: never decrease
	active, wasActive  bool   // in this interval, and in the previous one
}

func (u *use) add(o *use) {
	u.held, u.holds = u.held || o.held, u.holds || o.holds
	u.created, u.createdBy = u.created+o.created, u.createdBy+o.createdBy
	u.opened, u.openedBy = u.opened+o.opened, u.openedBy+o.openedBy
	u.active, u.wasActive = u.active || o.active, u.wasActive || o.wasActive
}

func (d *device) use(id identity.OwnerID) *use {
	u := d.users[id]
	if u == nil {
		u = &use{}
		d.users[id] = u
	}
	return u
}

// used reports whether an owner uses the device in this interval or used it in the previous one: port counters are read
// slightly before or after the objects.
func (d *device) used(id identity.OwnerID) bool {
	u := d.users[id]
	return u != nil && (u.active || u.wasActive)
}

// unknownUsers are the users of a device without a known owner.
type unknownUsers struct {
	listed  bool   // the kernel listed the protection domains of the device
	objects uint64 // objects that can move bytes, of processes without an owner
	// domains are the protection domains of processes. counted are the domains of known cgroups among them, ipoib the
	// domains of IPoIB interfaces.
	domains, counted, ipoib uint64
	created, nowMade        uint64 // number of objects created until the last refresh, and until now
}

// list adds a line of the kernel's list of protection domains. Each queue pair of the kernel has a protection domain,
// even if the kernel does not count the queue pair: so a consumer in the kernel (NVMe-oF, NFS, …) holds the device.
func (d *device) list(f *model.Domains, owners *identity.Table) {
	switch {
	case f.Module == "":
		d.unknown.listed, d.unknown.domains = true, f.Count
	case f.Module == model.IPoIBModule:
		d.unknown.ipoib = f.Count
	case f.IsConsumer():
		d.use(owners.OfKernel(f.Module)).holds = true
	}
}

// exist reports whether an unknown user may move bytes: a process without an owner, or a process that only the kernel's
// list shows.
func (u *unknownUsers) exist() bool {
	made := u.nowMade > u.created
	u.created = u.nowMade
	return made || !u.listed || u.objects > 0 || u.domains > u.counted
}

// moveIPoIB reports whether IPoIB may have moved bytes of the device since the last refresh: the packets of its
// interfaces changed, or the kernel has more interfaces than the sensor sees, such as interfaces in other network
// namespaces. The kernel does not list the IPoIB queue pairs of mlx5. The bytes are not subtracted, because the size of
// their headers is unknown. A device in another network namespace has its IPoIB interfaces there, too: they belong to
// the owner of the namespace.
func (d *device) moveIPoIB() bool {
	if d.hca == nil {
		return false
	}
	moved := d.ipoibRead && !slices.Equal(d.ipoib, d.hca.IPoIB)
	d.ipoib, d.ipoibRead = append(d.ipoib[:0], d.hca.IPoIB...), true
	return moved || d.hca.Netns == 0 && d.unknown.ipoib > uint64(len(d.hca.IPoIB))
}

// moves reports whether objects of a type can move bytes: queue pairs, and DEVX objects of mlx5, which may be queue
// pairs. A process that only opens an HCA moves no bytes: health checks and librdmacm open each HCA.
func moves(kind model.ObjectType) bool { return kind == model.QP || kind == model.DEVXObj }

// devxHooks are the hooks of pkg/source/probe that see DEVX objects: the hook of the uobject layer counts new objects,
// and an iterator lists older ones. If either is missing, a verbs context of mlx5 may have DEVX objects that nothing
// shows.
var devxHooks = []string{"rdma_alloc_commit_uobject", "uobjects_existing"}

// seesDEVX reports whether all DEVX objects are counted.
func seesDEVX(hooks []model.Hook) bool {
	return !slices.ContainsFunc(devxHooks, func(name string) bool {
		return !slices.ContainsFunc(hooks, func(h model.Hook) bool { return h.Name == name && h.State == model.StateOK })
	})
}

// objectUses finds the owners that may move bytes, by their objects.
type objectUses struct {
	unknownHCAs uint64 // number created on HCAs without a known name
	devxSeen    bool   // all DEVX objects are counted in this refresh
}

// note records the owners that may have moved bytes of a device since the last refresh: they held objects that can
// (moves) then, created some since, or hold some now. The object exists before the first byte is sent.
func (o *objectUses) note(s *model.Snapshot, a *attribution.Attribution, owners *identity.Table, l *deviceList) {
	if s.Objects == nil {
		for _, d := range l.order {
			d.unknownUse = true
		}
		return
	}
	o.devxSeen = seesDEVX(s.Hooks)
	o.noteUnknown(s, owners, l)
	var d *device
	var unknownHCAs uint64
	for i := range a.Objects {
		r := &a.Objects[i]
		if r.Device == "" {
			if moves(r.Type) {
				unknownHCAs += r.Created
			}
			continue
		}
		if d == nil || d.name != r.Device {
			if d = l.devices[r.Device]; d == nil {
				continue
			}
		}
		context := r.Type == model.Context && d.isMLX5()
		if !moves(r.Type) && !context {
			continue
		}
		owner := a.ID(r.Owner)
		if owner == identity.Unattributed {
			if !context || !o.devxSeen {
				d.unknown.nowMade += r.Created
			}
			continue
		}
		u := d.use(owner)
		u.holds = u.holds || r.Current > 0 && (!context || !o.devxSeen)
		if context {
			u.openedBy += r.Created
		} else {
			u.createdBy += r.Created
		}
	}
	// New objects on an HCA without a known name may be on any device. Earlier objects are not on a device that has
	// users here.
	anywhere := unknownHCAs > o.unknownHCAs
	o.unknownHCAs = unknownHCAs
	for _, d := range l.order {
		unknown, ipoib := d.unknown.exist(), d.moveIPoIB()
		d.unknownUse = d.unknownUse || unknown || ipoib || anywhere
		for id, u := range d.users {
			u.active = u.active || u.held || u.holds || u.createdBy > u.created || !o.devxSeen && u.openedBy > u.opened
			u.held, u.created, u.holds, u.createdBy = u.holds, max(u.created, u.createdBy), false, 0
			u.opened, u.openedBy = max(u.opened, u.openedBy), 0
			if !u.held && !u.active && !u.wasActive && u.created == 0 && u.opened == 0 {
				delete(d.users, id)
			}
		}
	}
}

// noteUnknown records the users of each device without a known owner, and the consumers in the kernel.
func (o *objectUses) noteUnknown(s *model.Snapshot, owners *identity.Table, l *deviceList) {
	for _, d := range l.order {
		d.unknown = unknownUsers{created: d.unknown.created}
	}
	for i := range s.Domains {
		if d := l.devices[s.Domains[i].Device]; d != nil {
			d.list(&s.Domains[i], owners)
		}
	}
	for i := range s.Objects {
		f := &s.Objects[i]
		d := l.devices[f.Device]
		switch {
		case d == nil:
		case f.Type == model.PD:
			d.unknown.counted += f.Current
		case !moves(f.Type) && (f.Type != model.Context || o.devxSeen || !d.isMLX5()):
		case owners.Of(f.Cgroup) == identity.Unattributed:
			d.unknown.objects += f.Current
		}
	}
}

// isMLX5 recognizes the driver by the PCI device id in hca_type, such as MT4123: ids below Connect-IB's, 4113, belong
// to mlx4.
func (d *device) isMLX5() bool {
	h := d.hca
	if h == nil {
		return false
	}
	id, err := strconv.Atoi(strings.TrimPrefix(h.Type, "MT"))
	return err == nil && strings.HasPrefix(h.Type, "MT") && id >= 4113 && id < 10000
}
