// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// Exclusive reports whether the last interval of a device with port counters in both directions was credited to this
// owner alone.
func (l *Ledger) Exclusive(owner identity.OwnerID, device string) bool {
	d := l.devices[device]
	if d == nil {
		return false
	}
	for i := range d.directions {
		a := l.accounts[accountKey{owner, &d.directions[i], byPort}]
		if a == nil || a.won != d.ended {
			return false
		}
	}
	return true
}

// assignments are the devices that a refresh assigns to owners.
type assignments struct {
	owners   *identity.Table
	shares   *attribution.Attribution
	byDevice map[string][]assigned // filled at first use
}

type assigned struct {
	owner identity.OwnerID
	given bool // see attribution.DeviceShare
}

// exclusiveOwner returns the only owner that used the device in the interval that ends now, or Unattributed if several
// owners or an unknown user did. An invisible device belongs to its assigned owner, and so does a virtual function
// while no objects are counted. The assignment must be older than the previous interval: the counters may be one
// reading old.
func (a *assignments) exclusiveOwner(d *device, seesObjects bool) identity.OwnerID {
	if d.interval.mixed {
		return identity.Unattributed
	}
	if d.isVF || !seesObjects {
		if d.given == identity.Unattributed || d.since > d.endedBefore {
			return identity.Unattributed
		}
		for id, u := range d.users {
			if (u.active || u.wasActive || u.held) && id != d.given && !a.owners.SamePod(id, d.given) {
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
		case !a.owners.SamePod(one, id):
			return identity.Unattributed
		default:
			several = true
		}
	}
	if !several {
		return one
	}
	if !a.owners.SamePod(a.of(d), one) {
		return identity.Unattributed
	}
	return a.podOf(one)
}

// podOf returns the owner of the pod that an owner belongs to.
func (a *assignments) podOf(id identity.OwnerID) identity.OwnerID {
	o := *a.owners.Owner(id)
	return a.owners.OfPod(o.Namespace, o.Pod, a.owners.Info(id).PodUID)
}

// noteAssigned records since when a device is assigned to an owner, for exclusiveOwner.
func (l *Ledger) noteAssigned() {
	for _, d := range l.order {
		given := identity.Unattributed
		if d.isVF || d.hca != nil && d.hca.VF {
			given = l.assigned.of(d)
		}
		if given != d.given {
			d.given, d.since = given, l.refresh
		}
	}
}

// of returns the exclusive owner by assignment: the kubelet allocated the PCI function, or the device is in the owner's
// network namespace. A device node alone is no proof, but it selects the container within a pod. If it selects several
// containers, the pod is the owner.
func (a *assignments) of(d *device) identity.OwnerID {
	if a.byDevice == nil {
		a.byDevice = make(map[string][]assigned, len(a.shares.Assigned))
		for i := range a.shares.Assigned {
			s := &a.shares.Assigned[i]
			label := labelOf(s.HCA, s.PCIAddress)
			a.byDevice[label] = append(a.byDevice[label], assigned{a.shares.ID(s.Owner), s.Given})
		}
	}
	one := identity.Unattributed
	rows := a.byDevice[labelOf(d.hca, d.pci)]
	for _, r := range rows {
		switch {
		case !r.given:
		case one == identity.Unattributed:
			one = r.owner
		case r.owner != one && !a.owners.SamePod(r.owner, one):
			return identity.Unattributed
		}
	}
	for _, r := range rows {
		switch {
		case a.owners.Owner(r.owner).Container == "" || r.owner == one || !a.owners.SamePod(r.owner, one):
		case a.owners.Owner(one).Container != "":
			return a.podOf(one)
		default:
			one = r.owner
		}
	}
	return one
}

func labelOf(hca *model.HCA, pci string) string {
	if hca != nil {
		return hca.Name
	}
	return pci
}
