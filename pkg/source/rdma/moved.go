// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
)

// In the exclusive mode of the RDMA subsystem (rdma system set netns exclusive) sysfs and netlink show a device only in
// its own network namespace. A search in the network namespaces of containers finds devices that were moved into pods.
// The search runs in the background, because there may be a thousand namespaces.
//
// Each Read reads the found devices with the same code as the devices of its own namespace, and another opener: the
// directory of the device is opened once in a sysfs of its namespace, and a socket is created in that namespace for the
// objects of the device. Queue pair counters need another socket. Entering the namespace for a socket takes a thread and
// four system calls, about 100 us.
const (
	// movedEvery is the interval of searches while the namespaces do not change.
	movedEvery = 10 * time.Second
	// movedStuck is the time after which an unfinished search is reported.
	movedStuck = time.Minute
	// maxNamespaces bounds the namespaces that are searched.
	maxNamespaces = 1024
)

// errOther is the error of a process that ended or moved to another namespace.
var errOther = errors.New("the process ended or is in another network namespace")

// search finds the devices in other network namespaces. No Read waits for a search.
type search struct {
	netlink       *Netlink // of the sensor's namespace
	sysfs, procfs string
	in            func(model.Namespace) opener       // opens devices in a namespace
	listCalls     hang.Group[uint64, []nldev.Device] // by the inode of the namespace

	mu      sync.Mutex
	call    hang.Call[[]found]
	pending *hang.Pending[[]found] // the search in progress, or nil
	began   time.Time
	inodes  []uint64 // namespaces of the last search
	found   []found  // of the last completed search
	err     error
}

// latest returns the devices of the last completed search.
func (m *search) latest() []found {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.collect()
	return m.found
}

// collect takes the result of a completed search. It needs mu.
func (m *search) collect() {
	if m.pending.Returned() {
		m.found, m.err = m.pending.Wait(context.Background())
		m.pending = nil
	}
}

// found is a device in another namespace.
type found struct {
	hca  model.HCA // without counters
	node *node     // lists this device only
}

// start starts a search in the network namespaces of containers when one is due. It returns the inodes of the namespaces
// other than the sensor's.
func (m *search) start(all []model.Namespace, now time.Time) []uint64 {
	spaces := m.others(all)
	inodes := make([]uint64, len(spaces))
	for i, n := range spaces {
		inodes[i] = n.Inode
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.collect()
	due := now.Sub(m.began) >= movedEvery || !slices.Equal(inodes, m.inodes)
	if len(spaces) == 0 || !due || m.pending != nil {
		return inodes
	}
	m.began, m.inodes = now, inodes
	m.pending = m.call.Start(movedStuck, func() ([]found, error) { return m.run(spaces) })
	return inodes
}

// others returns the network namespaces other than the sensor's, sorted by inode.
func (m *search) others(all []model.Namespace) []model.Namespace {
	var own unix.Stat_t
	if err := unix.Stat(filepath.Join(m.procfs, "self/ns/net"), &own); err != nil {
		own.Ino = 0
	}
	all = slices.DeleteFunc(slices.Clone(all), func(n model.Namespace) bool {
		return n.Host || n.Inode == own.Ino || n.Inode == 0 || n.PID <= 0
	})
	slices.SortStableFunc(all, func(a, b model.Namespace) int { return cmp.Compare(a.Inode, b.Inode) })
	return slices.CompactFunc(all, func(a, b model.Namespace) bool { return a.Inode == b.Inode })
}

// state reports a search that failed or hangs.
func (m *search) state(inodes []uint64, now time.Time) []model.DeviceState {
	m.mu.Lock()
	defer m.mu.Unlock()
	state, err := model.StateFailed, m.err
	if since := now.Sub(m.began); m.pending != nil && since > movedStuck {
		since = since.Round(time.Second)
		state, err = model.StateStuck, fmt.Errorf("%w: a search of network namespaces started %v ago", hang.ErrStuck, since)
	}
	if err == nil || len(inodes) == 0 {
		return nil
	}
	return []model.DeviceState{{Source: "rdma", Device: "netns", State: state, Reason: err.Error()}}
}

// run searches all namespaces for devices. In the default (shared) mode every namespace
// shows all devices, and no search is needed.
func (m *search) run(spaces []model.Namespace) ([]found, error) {
	limit := m.netlink.deadline
	yes, err := nldev.Shared(m.netlink.dial, time.Now().Add(limit))
	if err != nil || yes {
		return nil, err
	}
	var tooMany error
	if len(spaces) > maxNamespaces {
		tooMany = fmt.Errorf("%d of %d network namespaces were not searched", len(spaces)-maxNamespaces, len(spaces))
		spaces = spaces[:maxNamespaces]
	}
	shown, errs := make([][]nldev.Device, len(spaces)), make([]error, len(spaces))
	safely.Each(len(spaces), sysfs.InFlight, func(i int) {
		shown[i], errs[i] = m.listCalls.Do(context.Background(), spaces[i].Inode, limit, func() ([]nldev.Device, error) {
			return nldev.Devices(m.in(spaces[i]).dial, time.Now().Add(limit))
		})
	})
	var all []found
	r := sysfs.NewReader()
	verbs := sysfs.CharDevices(filepath.Join(m.sysfs, "class/infiniband_verbs"))
	for i, devices := range shown {
		for _, d := range devices {
			if !m.netlink.chosen(d.Name) {
				continue
			}
			all = append(all, found{m.hca(r, d, verbs[d.Name], spaces[i].Inode), &node{
				opener:  m.in(spaces[i]),
				uverbs:  map[string]sysfs.CharDevice{d.Name: verbs[d.Name]},
				devices: map[string]nldev.Device{d.Name: {Index: d.Index, GUID: d.GUID}},
				away:    true,
			}})
		}
	}
	return all, errors.Join(unsearched(errs), tooMany)
}

// unsearched joins the errors of namespaces. It omits namespaces that no longer exist.
func unsearched(errs []error) error {
	var first error
	n := 0
	for _, err := range errs {
		if err == nil || errors.Is(err, errOther) {
			continue
		}
		if n++; first == nil {
			first = err
		}
	}
	if first == nil {
		return nil
	}
	return fmt.Errorf("%d of %d network namespaces could not be searched: %w", n, len(errs), first)
}

// hca returns a device as netlink lists it in its namespace. The PCI function and
// the uverbs device have no namespace.
func (m *search) hca(r *sysfs.Reader, d nldev.Device, verbs sysfs.CharDevice, netns uint64) model.HCA {
	h := model.HCA{
		Name: d.Name, Index: d.Index, Firmware: d.Firmware, NodeType: d.NodeType, NodeGUID: d.GUID, SysImageGUID: d.SysGUID,
		CharDevice: verbs.Name, PCIAddress: verbs.PCI, Netns: netns,
	}
	if h.PCIAddress == "" {
		h.PCIAddress = sysfs.FunctionByGUID(r, m.netlink.root, d.GUID)
	}
	if h.PCIAddress == "" {
		return h
	}
	function := sysfs.FunctionPath(m.sysfs, h.PCIAddress)
	h.VF, h.PF = sysfs.PhysicalFunction(r, function)
	if node := r.Line(unix.AT_FDCWD, function+"/numa_node"); node != "-1" {
		h.NUMANode = node
	}
	return h
}
