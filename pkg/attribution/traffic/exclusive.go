// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
)

// exclusiveOwner returns the only owner that used the device in the interval that ends now, or
// Unattributed if there were several owners or an unknown user. An invisible device, and a
// virtual function while no objects are counted, belong to their assigned owner, if the
// assignment is older than the previous interval: their counters may be one reading old.
func (l *Ledger) exclusiveOwner(d *device) identity.OwnerID {
	if d.interval.mixed {
		return identity.Unattributed
	}
	if d.isVF || l.facts.Objects == nil {
		if d.given == identity.Unattributed || d.since > d.endedBefore {
			return identity.Unattributed
		}
		for id, u := range d.users {
			if (u.active || u.wasActive || u.held) && id != d.given && !l.owners.SamePod(id, d.given) {
				return identity.Unattributed
			}
		}
		return d.given
	}
	if d.unknownUse || d.wasUnknown {
		return identity.Unattributed
	}
	one, several := identity.Unattributed, false
	for id, u := range d.users {
		switch {
		case !u.active && !u.wasActive:
		case one == identity.Unattributed:
			one = id
		case !l.owners.SamePod(one, id):
			return identity.Unattributed
		default:
			several = true
		}
	}
	if !several {
		return one
	}
	if !l.owners.SamePod(l.assignedTo(d), one) {
		return identity.Unattributed
	}
	return l.podOf(one)
}

// podOf returns the owner of the pod that an owner belongs to.
func (l *Ledger) podOf(id identity.OwnerID) identity.OwnerID {
	o := *l.owners.Owner(id)
	return l.owners.OfPod(o.Namespace, o.Pod, l.owners.Info(id).PodUID)
}

// noteAssigned records since when a device is assigned to an owner, for devices that may be
// attributed without objects.
func (l *Ledger) noteAssigned() {
	for _, d := range l.order {
		given := identity.Unattributed
		if d.isVF || d.hca != nil && d.hca.VF {
			given = l.assignedTo(d)
		}
		if given != d.given {
			d.given, d.since = given, l.refresh
		}
	}
}

// assignedTo returns the exclusive owner by assignment: the kubelet allocated the PCI
// function, or the device is in the owner's network namespace. A device node alone is no
// proof, but it selects the container within a pod; with several containers the pod is the
// owner.
func (l *Ledger) assignedTo(d *device) identity.OwnerID {
	if l.given == nil {
		l.given = make(map[string][]int, len(l.assigned))
		for i := range l.assigned {
			label := labelOf(l.assigned[i].DeviceShare)
			l.given[label] = append(l.given[label], i)
		}
	}
	one := identity.Unattributed
	rows := l.given[d.label()]
	for _, i := range rows {
		owner := l.assigned[i].owner
		switch {
		case !l.assigned[i].Given:
		case one == identity.Unattributed:
			one = owner
		case owner != one && !l.owners.SamePod(owner, one):
			return identity.Unattributed
		}
	}
	for _, i := range rows {
		owner := l.assigned[i].owner
		switch {
		case l.owners.Owner(owner).Container == "" || owner == one || !l.owners.SamePod(owner, one):
		case l.owners.Owner(one).Container != "":
			return l.podOf(one)
		default:
			one = owner
		}
	}
	return one
}

// label returns the device's key among assigned devices.
func (d *device) label() string {
	if d.hca != nil {
		return d.hca.Name
	}
	return d.pci
}

func labelOf(s *attribution.DeviceShare) string {
	if s.HCA != nil {
		return s.HCA.Name
	}
	return s.PCIAddress
}
