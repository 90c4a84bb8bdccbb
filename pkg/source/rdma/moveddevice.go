// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
)

// movedDevice is a device in another network namespace.
type movedDevice struct {
	*device
	found found
	node  *node
}

// readableMoved returns the devices that the last search found, sorted by name. It omits a device whose namespace no
// longer exists, and a device that came back to the namespace of the sensor.
func (s *Source) readableMoved(inodes []uint64) []*movedDevice {
	m := &s.moved
	all := m.latest()
	devices := make(map[string]*movedDevice, len(all))
	for _, f := range all {
		name := f.hca.Name
		_, there := slices.BinarySearch(inodes, f.hca.Netns)
		if !there || s.known[name] != nil || devices[name] != nil {
			continue
		}
		d := m.devices[name]
		if d == nil || d.found.hca.Netns != f.hca.Netns || d.found.hca.Index != f.hca.Index ||
			d.found.hca.PCIAddress != f.hca.PCIAddress {
			d = &movedDevice{device: s.newMoved(f)}
		}
		if d.node == nil || d.found.space.PID != f.space.PID || d.found.hca.CharDevice != f.hca.CharDevice {
			d.node = s.nodeOf(f)
		}
		d.found = f
		devices[name] = d
	}
	for name, d := range m.devices {
		if devices[name] != d {
			d.release()
		}
	}
	m.devices = devices
	return slices.SortedFunc(maps.Values(devices), func(a, b *movedDevice) int { return strings.Compare(a.name, b.name) })
}

// newMoved creates the device for a search result. Its PCI function does not move: sysfs shows PCI functions in every
// namespace.
func (s *Source) newMoved(f found) *device {
	d := newDevice(f.hca.Name, "", sysfs.FunctionPath(s.opt.Sysfs, f.hca.PCIAddress), &s.kept)
	d.bound = s.qps.Device(f.hca.Name)
	return d
}

// nodeOf returns the netlink view of one device in its namespace.
func (s *Source) nodeOf(f found) *node {
	name := f.hca.Name
	return &node{
		uverbs:  map[string]sysfs.CharDevice{name: {Name: f.hca.CharDevice}},
		devices: map[string]nldev.Device{name: {Index: f.hca.Index, GUID: f.hca.NodeGUID}},
		open:    func(name string) (int, error) { return s.openIn(f.space, name) },
		dial:    func() (*nldev.Conn, error) { return s.dialIn(f.space) },
		away:    true,
	}
}

// readMoved reads a device in another namespace. For an unreadable device it returns a reading
// without counters.
func (s *Source) readMoved(ctx context.Context, d *movedDevice, now time.Time) *reading {
	r := s.readDevice(ctx, d.device, now, d.node)
	if r == nil {
		return &reading{hca: d.found.hca}
	}
	r.hca.Index, r.hca.Netns = d.found.hca.Index, d.found.hca.Netns
	return r
}

// movedHCA returns a device as netlink lists it in its namespace. The PCI function and
// the uverbs device have no namespace.
func (s *Source) movedHCA(r *sysfs.Reader, d nldev.Device, verbs sysfs.CharDevice, netns uint64) model.HCA {
	h := model.HCA{
		Name: d.Name, Index: d.Index, Firmware: d.Firmware, NodeType: d.NodeType, NodeGUID: d.GUID, SysImageGUID: d.SysGUID,
		CharDevice: verbs.Name, PCIAddress: verbs.PCI, Netns: netns,
	}
	if h.PCIAddress == "" {
		h.PCIAddress = sysfs.FunctionByGUID(r, s.root, d.GUID)
	}
	if h.PCIAddress == "" {
		return h
	}
	function := sysfs.FunctionPath(s.opt.Sysfs, h.PCIAddress)
	h.VF, h.PF = sysfs.PhysicalFunction(r, function)
	if node := r.Line(unix.AT_FDCWD, function+"/numa_node"); node != "-1" {
		h.NUMANode = node
	}
	return h
}
