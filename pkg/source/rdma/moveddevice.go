// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"maps"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
)

// readableMoved returns the devices that the last search found, sorted by name. It omits a device whose namespace no
// longer exists, and a device that came back to the namespace of the sensor.
func (s *Source) readableMoved(inodes []uint64) []*device {
	all := s.search.latest()
	devices := make(map[string]*device, len(all))
	for i := range all {
		f := &all[i]
		name := f.hca.Name
		_, there := slices.BinarySearch(inodes, f.hca.Netns)
		if !there || s.known[name] != nil || devices[name] != nil {
			continue
		}
		d := s.moved[name]
		if d == nil || d.found.hca.Netns != f.hca.Netns || d.found.hca.Index != f.hca.Index ||
			d.found.hca.PCIAddress != f.hca.PCIAddress {
			// The PCI function does not move: sysfs shows PCI functions in every namespace.
			d = s.newDevice(name, "", sysfs.FunctionPath(s.opt.Sysfs, f.hca.PCIAddress))
		}
		d.found = f
		devices[name] = d
	}
	for name, d := range s.moved {
		if devices[name] != d {
			d.release()
		}
	}
	s.moved = devices
	return slices.SortedFunc(maps.Values(devices), func(a, b *device) int { return strings.Compare(a.name, b.name) })
}
