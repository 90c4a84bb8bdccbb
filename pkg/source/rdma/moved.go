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
// Each Read reads the found devices with the same code as the devices of its own namespace. This needs the directory of
// the device, opened once in a sysfs of its namespace, and a socket created in that namespace for the objects of the
// device. Queue pair counters need another socket. Entering the namespace for a socket takes a thread and four system
// calls, about 100 us.
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

// movedDevices is the result of the last search. No Read waits for a search.
type movedDevices struct {
	listCalls hang.Group[uint64, []nldev.Device] // by the inode of the namespace
	devices   map[string]*movedDevice            // by name; under Source.mu

	mu      sync.Mutex
	search  hang.Call[[]found]
	pending *hang.Pending[[]found] // the search in progress, or nil
	began   time.Time
	inodes  []uint64 // namespaces of the last search
	found   []found
	err     error
}

// latest returns the devices of the last completed search.
func (m *movedDevices) latest() []found {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.collect()
	return m.found
}

// collect takes the result of a completed search. It needs mu.
func (m *movedDevices) collect() {
	if m.pending.Returned() {
		m.found, m.err = m.pending.Wait(context.Background())
		m.pending = nil
	}
}

// found is a device and the namespace that shows it.
type found struct {
	hca   model.HCA // without counters
	space model.Namespace
}

// startSearch starts a search when one is due, and returns the inodes of the namespaces.
func (s *Source) startSearch(now time.Time) []uint64 {
	if !s.searches() {
		return nil
	}
	spaces := s.otherNamespaces()
	inodes := make([]uint64, len(spaces))
	for i, n := range spaces {
		inodes[i] = n.Inode
	}
	m := &s.moved
	m.mu.Lock()
	defer m.mu.Unlock()
	m.collect()
	due := now.Sub(m.began) >= movedEvery || !slices.Equal(inodes, m.inodes)
	if len(spaces) == 0 || !due || m.pending != nil {
		return inodes
	}
	m.began, m.inodes = now, inodes
	m.pending = m.search.Start(movedStuck, func() ([]found, error) { return s.search(spaces) })
	return inodes
}

// otherNamespaces returns the network namespaces other than the sensor's, sorted by inode.
func (s *Source) otherNamespaces() []model.Namespace {
	var own unix.Stat_t
	if err := unix.Stat(filepath.Join(s.opt.Procfs, "self/ns/net"), &own); err != nil {
		own.Ino = 0
	}
	all := slices.DeleteFunc(slices.Clone(s.opt.Namespaces()), func(n model.Namespace) bool {
		return n.Host || n.Inode == own.Ino || n.Inode == 0 || n.PID <= 0
	})
	slices.SortStableFunc(all, func(a, b model.Namespace) int { return cmp.Compare(a.Inode, b.Inode) })
	return slices.CompactFunc(all, func(a, b model.Namespace) bool { return a.Inode == b.Inode })
}

// movedState reports a search that failed or hangs.
func (s *Source) movedState(inodes []uint64, now time.Time) []model.DeviceState {
	m := &s.moved
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
	return []model.DeviceState{{Source: s.Name(), Device: "netns", State: state, Reason: err.Error()}}
}

// search searches all namespaces for devices. In the default (shared) mode every namespace
// shows all devices, and no search is needed.
func (s *Source) search(spaces []model.Namespace) ([]found, error) {
	deadline := time.Now().Add(s.opt.Deadline)
	yes, err := nldev.Shared(s.dial, deadline)
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
		n := spaces[i]
		shown[i], errs[i] = s.moved.listCalls.Do(context.Background(), n.Inode, s.opt.Deadline, func() ([]nldev.Device, error) {
			return s.devicesIn(n)
		})
	})
	var all []found
	r := sysfs.NewReader()
	verbs := sysfs.CharDevices(filepath.Join(s.opt.Sysfs, "class/infiniband_verbs"))
	for i, devices := range shown {
		for _, d := range devices {
			if s.chosen(d.Name) {
				all = append(all, found{s.movedHCA(r, d, verbs[d.Name], spaces[i].Inode), spaces[i]})
			}
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
