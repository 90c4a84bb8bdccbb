// SPDX-License-Identifier: Apache-2.0

package attribution

import "github.com/accelscope/accelscope/pkg/attribution/internal/before/model"

// DeviceOpenShare is how often one owner opened a device node, and how often its
// device cgroup did not let it.
type DeviceOpenShare struct {
	Owner           int
	Device          string
	Class           model.DeviceClass
	Allowed, Denied uint64
}

// DeviceHandleShare is how many open files of a device node one owner has.
type DeviceHandleShare struct {
	Owner  int
	Device string
	Class  model.DeviceClass
	Count  uint64
}

func deviceOpenShares(s model.Snapshot, o *owners) []DeviceOpenShare {
	if s.DeviceOpens == nil {
		return nil
	}
	t := newTable[DeviceOpenShare](len(s.DeviceOpens))
	for _, f := range s.DeviceOpens {
		owner := o.ofCgroup(f.Cgroup)
		share := t.at(t.key(owner, f.Device, string(f.Class), ""),
			DeviceOpenShare{Owner: owner, Device: f.Device, Class: f.Class})
		share.Allowed += f.Allowed
		share.Denied += f.Denied
	}
	return t.rows
}

func deviceHandleShares(s model.Snapshot, o *owners) []DeviceHandleShare {
	if s.DeviceHandles == nil {
		return nil
	}
	t := newTable[DeviceHandleShare](len(s.DeviceHandles))
	for _, f := range s.DeviceHandles {
		owner := o.ofCgroup(f.Cgroup)
		t.at(t.key(owner, f.Device, string(f.Class), ""),
			DeviceHandleShare{Owner: owner, Device: f.Device, Class: f.Class}).Count += f.Count
	}
	return t.rows
}
