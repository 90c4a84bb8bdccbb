// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/attribution/internal/before/model"
)

// use is what one owner does with a device.
type use struct {
	held, holds        bool   // objects at the last refresh, and now
	created, createdBy uint64 // made until the last refresh, and until now
	active, was        bool   // in this interval, and in the one before
}

// noteUse notes who used which device since the last refresh: who held objects of
// any type then, made some since, or holds some now. A context is opened long
// before the first byte is sent.
func (l *Ledger) noteUse(s *model.Snapshot, a *Attribution) {
	if s.Objects == nil {
		for _, d := range l.order {
			d.strange = true
		}
		return
	}
	l.probed = l.refresh
	for _, d := range l.order {
		d.strangers = strangers{created: d.strangers.created}
	}
	var d *meter
	var unplaced uint64
	for i := range a.Devices {
		if r := &a.Devices[i]; r.Type == model.QP && s.Resources != nil {
			if d := l.meters[r.Device]; d != nil {
				d.strangers.counted = true
			}
		}
	}
	for i := range a.Objects {
		r := &a.Objects[i]
		if r.Device == "" {
			unplaced += r.Created
			continue
		}
		if d == nil || d.name != r.Device {
			if d = l.meters[r.Device]; d == nil {
				continue
			}
		}
		if r.Owner == nobody {
			d.strangers.note(r)
			continue
		}
		u := d.use(l.holder(r.Owner))
		u.holds = u.holds || r.Current > 0
		u.createdBy += r.Created
	}
	// Of which HCA is not known. Those that were there before are on none of which the
	// probe knows the name, and so on none that has users here.
	strange := unplaced > l.unplaced
	l.unplaced = unplaced
	for _, d := range l.order {
		d.strange = d.strangers.there(d.management) || d.strange || strange
		for h, u := range d.users {
			u.active = u.active || u.held || u.holds || u.createdBy > u.created
			u.held, u.created, u.holds, u.createdBy = u.holds, u.createdBy, false, 0
			if !u.held && !u.active && !u.was && u.created == 0 {
				delete(d.users, h)
			}
		}
	}
}

func (d *meter) use(h *holder) *use {
	u := d.users[h]
	if u == nil {
		u = &use{}
		d.users[h] = u
	}
	return u
}

// used says whether an owner uses the device, or did in the interval before: the
// counters of a port are read a moment before or after the objects.
func (d *meter) used(h *holder) bool {
	u := d.users[h]
	return u != nil && (u.active || u.was)
}

// strangers are the objects on a device that no known owner has.
type strangers struct {
	counted       bool // by the kernel
	qps, contexts uint64
	created, made uint64 // until the last refresh, and until now
}

func (s *strangers) note(r *ObjectShare) {
	switch r.Type {
	case model.QP:
		s.qps = r.Current
	case model.Context:
		s.contexts = r.Current
	}
	s.made += r.Created
}

// there says whether anything that is not known may move bytes: a process without
// an owner, or a consumer in the kernel (IPoIB, NVMe-oF, …).
func (s *strangers) there(management uint64) bool {
	made := s.made > s.created
	s.created = s.made
	return made || !s.counted || s.contexts > 0 || s.qps > management
}

// managementQPs is how many queue pairs the kernel has for management datagrams:
// the GSI of each port and on InfiniBand the SMI, for which mlx5 sends through one
// more. With more partitions it has more of them: then a device is never seen to
// belong to one owner alone.
func managementQPs(h *model.HCA) (n uint64) {
	for i := range h.Ports {
		switch h.Ports[i].LinkLayer {
		case "Ethernet":
			n++
		case "InfiniBand":
			n += 2
			if isMLX5(h) {
				n++
			}
		}
	}
	return n
}

// isMLX5 knows the driver by the PCI device id in hca_type, MT4123: those before
// Connect-IB, 4113, are of mlx4.
func isMLX5(h *model.HCA) bool {
	id, err := strconv.Atoi(strings.TrimPrefix(h.Type, "MT"))
	return err == nil && strings.HasPrefix(h.Type, "MT") && id >= 4113 && id < 10000
}

// noteGiven notes since when the devices of which the objects need not be known are
// whose.
func (l *Ledger) noteGiven() {
	for _, d := range l.order {
		given := Owner{}
		if d.out || d.hca != nil && d.hca.VF {
			given = l.givenTo(d)
		}
		if given != d.given {
			d.given, d.since = given, l.refresh
		}
	}
}

// sole is whose alone the device was in the interval that ends now, nil when it
// had several users or one that is not known. Of a device out of sight, and of a
// virtual function while nobody counts objects, it is the one to whom it is given,
// if that was so from before the beginning of the interval on: figures may be a
// look old.
func (l *Ledger) sole(d *meter) *holder {
	if d.first {
		return nil
	}
	if d.out || l.facts.Objects == nil {
		if d.given == (Owner{}) || d.since > d.before {
			return nil
		}
		for h, u := range d.users {
			if (u.active || u.was || u.held) && h.Owner != d.given && !samePod(h.Owner, d.given) {
				return nil
			}
		}
		return l.named(d.given)
	}
	if d.strange || d.wasStrange {
		return nil
	}
	var one *holder
	several := false
	for h, u := range d.users {
		switch {
		case !u.active && !u.was:
		case one == nil:
			one = h
		case !samePod(one.Owner, h.Owner):
			return nil
		default:
			several = true
		}
	}
	if several {
		if owner := l.givenTo(d); !samePod(owner, one.Owner) {
			return nil
		}
		pod := l.named(podOwner(one.Owner))
		if one.number != nobody {
			info := &l.o.infos[pod.number-1]
			info.PodUID = max(info.PodUID, l.o.infos[one.number-1].PodUID)
		}
		return pod
	}
	return one
}

func samePod(a, b Owner) bool {
	return a.Pod != "" && a.Pod == b.Pod && a.Namespace == b.Namespace
}

func podOwner(o Owner) Owner {
	return Owner{Workload: o.Namespace + "/" + o.Pod, Namespace: o.Namespace, Pod: o.Pod}
}

// givenTo is who has the device to itself: to whom the kubelet has given its PCI
// function, or in whose network namespace it is. That a container has a device's
// node is no proof, but says which container of a pod it is. Of several it is the
// pod.
func (l *Ledger) givenTo(d *meter) Owner {
	if l.given == nil {
		l.given = make(map[string][]int, len(l.assigned))
		for i := range l.assigned {
			label := l.assigned[i].label()
			l.given[label] = append(l.given[label], i)
		}
	}
	var one Owner
	rows := l.given[d.label()]
	for _, i := range rows {
		owner := l.o.list[l.assigned[i].Owner]
		switch {
		case !l.assigned[i].Given:
		case one == (Owner{}):
			one = owner
		case owner != one && !samePod(owner, one):
			return Owner{}
		}
	}
	for _, i := range rows {
		owner := l.o.list[l.assigned[i].Owner]
		switch {
		case owner.Container == "" || owner == one || !samePod(owner, one):
		case one.Container != "":
			return podOwner(one)
		default:
			one = owner
		}
	}
	return one
}

// label is how a device is found in what was given away.
func (d *meter) label() string {
	if d.hca != nil {
		return d.hca.Name
	}
	return d.pci
}

func (s *DeviceShare) label() string {
	if s.HCA != nil {
		return s.HCA.Name
	}
	return s.PCIAddress
}
