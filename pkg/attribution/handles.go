// SPDX-License-Identifier: Apache-2.0

package attribution

import "github.com/accelscope/accelscope/pkg/model"

// DeviceHandleShare is the number of open files of a device node of one owner.
type DeviceHandleShare struct {
	Owner  int
	Device string
	Class  model.DeviceClass
	Count  uint64
}

func (o *users) deviceHandles(s *model.Snapshot) []DeviceHandleShare {
	if s.DeviceHandles == nil {
		return nil
	}
	t := newTable[DeviceHandleShare](len(s.DeviceHandles))
	for _, f := range s.DeviceHandles {
		owner := o.ofCgroup(f.Cgroup)
		t.at(t.key(owner, f.Device, string(f.Class)),
			DeviceHandleShare{Owner: owner, Device: f.Device, Class: f.Class}).Count += f.Count
	}
	return t.rows
}
