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

// use describes how one owner uses a device, by the objects that can move bytes.
type use struct {
	held, holds        bool   // has such objects at the last refresh, and now
	created, createdBy uint64 // created such objects until the last refresh, and until now: never decrease
	opened, openedBy   uint64 // opened verbs contexts of mlx5 until the last refresh, and until now: never decrease
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

// used reports whether an owner uses the device in this interval or did in the previous one:
// port counters are read slightly before or after the objects.
func (d *device) used(id identity.OwnerID) bool {
	u := d.users[id]
	return u != nil && (u.active || u.wasActive)
}

// unknownUsers are the objects on a device without a known owner.
type unknownUsers struct {
	counted          bool   // by the kernel
	qps, others      uint64 // queue pairs, and other objects that can move bytes
	created, nowMade uint64 // until the last refresh, and until now
}

func (u *unknownUsers) add(r *attribution.ObjectShare) {
	if r.Type == model.QP { // some of the kernel's move no bytes of users
		u.qps = r.Current
	} else {
		u.others += r.Current
	}
	u.nowMade += r.Created
}

// exist reports whether an unknown user may move bytes: a process without an owner, or a
// kernel consumer (IPoIB, NVMe-oF, …).
func (u *unknownUsers) exist(managementQPs uint64) bool {
	made := u.nowMade > u.created
	u.created = u.nowMade
	return made || !u.counted || u.others > 0 || u.qps > managementQPs
}

// moves reports whether objects of a type can move bytes: queue pairs, and DEVX objects of mlx5, which may be queue pairs. A
// process that only opens an HCA, as health checks and librdmacm do on each HCA, moves none.
func moves(kind model.ObjectType) bool { return kind == model.QP || kind == model.DEVXObj }

// devxHooks are the hooks of pkg/source/probe that see DEVX objects: the hook of the uobject layer counts them, and an iterator lists
// the DEVX objects from before that hook. Without both, a verbs context of mlx5 may have DEVX objects that nothing shows.
var devxHooks = []string{"rdma_alloc_commit_uobject", "uobjects_existing"}

// seesDEVX reports whether all DEVX objects are counted.
func seesDEVX(hooks []model.Hook) bool {
	return !slices.ContainsFunc(devxHooks, func(name string) bool {
		return !slices.ContainsFunc(hooks, func(h model.Hook) bool { return h.Name == name && h.State == model.StateOK })
	})
}

// noteUse records the owners that may have moved bytes of a device since the last refresh: they held objects that can (moves)
// then, created some since, or hold some now. Such an object is made before the first byte is sent.
func (l *Ledger) noteUse(s *model.Snapshot, a *attribution.Attribution) {
	if s.Objects == nil {
		for _, d := range l.order {
			d.unknownUse = true
		}
		return
	}
	l.devxSeen = seesDEVX(s.Hooks)
	for _, d := range l.order {
		d.unknown = unknownUsers{created: d.unknown.created}
	}
	for i := range a.Devices {
		if r := &a.Devices[i]; r.Type == model.QP && s.Resources != nil {
			if d := l.devices[r.Device]; d != nil {
				d.unknown.counted = true
			}
		}
	}
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
		context := r.Type == model.Context && d.hca != nil && isMLX5(d.hca)
		if !moves(r.Type) && !context {
			continue
		}
		owner := a.ID(r.Owner)
		if owner == identity.Unattributed {
			if !context || !l.devxSeen {
				d.unknown.add(r)
			}
			continue
		}
		u := d.use(owner)
		u.holds = u.holds || r.Current > 0 && (!context || !l.devxSeen)
		if context {
			u.openedBy += r.Created
		} else {
			u.createdBy += r.Created
		}
	}
	// New objects on an HCA without a known name may be on any device. Earlier ones are on no
	// device that has users here.
	anywhere := unknownHCAs > l.unknownHCAs
	l.unknownHCAs = unknownHCAs
	for _, d := range l.order {
		d.unknownUse = d.unknown.exist(d.managementQPs) || d.unknownUse || anywhere
		for id, u := range d.users {
			u.active = u.active || u.held || u.holds || u.createdBy > u.created || !l.devxSeen && u.openedBy > u.opened
			u.held, u.created, u.holds, u.createdBy = u.holds, max(u.created, u.createdBy), false, 0
			u.opened, u.openedBy = max(u.opened, u.openedBy), 0
			if !u.held && !u.active && !u.wasActive && u.created == 0 && u.opened == 0 {
				delete(d.users, id)
			}
		}
	}
}

// managementQPs returns the number of queue pairs that the kernel uses for management
// datagrams: the GSI of each port and on InfiniBand the SMI. mlx5 sends datagrams of the GSI of
// an InfiniBand port through one more for each P_Key (setup_qp of drivers/infiniband/hw/mlx5/gsi.c).
// While the P_Keys are not known, that is one: then a device with several never appears to have an
// exclusive owner, nor does a bond of RoCE ports, with one for each of its ports.
func managementQPs(h *model.HCA) (n uint64) {
	for i := range h.Ports {
		switch h.Ports[i].LinkLayer {
		case "Ethernet":
			n++
		case "InfiniBand":
			n += 2
			if isMLX5(h) {
				n += uint64(max(len(h.Ports[i].PKeys), 1))
			}
		}
	}
	return n
}

// isMLX5 recognizes the driver by the PCI device id in hca_type, MT4123: ids below that of
// Connect-IB, 4113, belong to mlx4.
func isMLX5(h *model.HCA) bool {
	id, err := strconv.Atoi(strings.TrimPrefix(h.Type, "MT"))
	return err == nil && strings.HasPrefix(h.Type, "MT") && id >= 4113 && id < 10000
}
