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
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// In the exclusive mode of the RDMA subsystem (rdma system set netns exclusive)
// a device is seen in its own network namespace only, neither in sysfs nor
// through netlink of any other. What was given to a pod is found by looking into
// the namespaces that containers are in, in the background: there may be a
// thousand of them.
//
// Those that were found are read with each Read, as the devices in sight are, by
// the same reader and under the same rules. All it takes is the directory of the
// device, opened once in a sysfs of its namespace, where the files are kept open,
// and a socket made there, for what this device has, and another one for counters of
// queue pairs where those are read: a thread and four system calls, some 100 us each,
// beside what the device itself costs.
const (
	// movedEvery is how often they are looked into, unless they change.
	movedEvery = 10 * time.Second
	// movedStuck is after what time a look that has not ended is told.
	movedStuck = time.Minute
	// maxNamespaces is how many are looked into, maxHanging after how many that
	// hang, and cost a thread each, a look gives up.
	maxNamespaces = 1024
	maxHanging    = 16
)

// errOther says that a process is not in the namespace that it was in.
var errOther = errors.New("the process is gone or in another network namespace")

// movedDevices is what the last look found. Looks are an errand of their own:
// no Read waits for one.
type movedDevices struct {
	flights map[uint64]*flight      // of the last look, by namespace; a look alone touches them
	devices map[string]*movedDevice // by name; held as Source.mu says

	mu     sync.Mutex
	busy   bool
	began  time.Time
	inodes []uint64 // of the namespaces looked into
	found  []found
	err    error
}

// found is a device and the namespace that shows it.
type found struct {
	hca   model.HCA // without figures
	space model.Namespace
}

// lookForMoved begins a look when one is due and returns the namespaces.
func (s *Source) lookForMoved(now time.Time) []uint64 {
	// Without a class/infiniband asking netlink would load ib_core.
	if s.opt.Namespaces == nil || !s.opt.Netlink || !s.genuine || s.class < 0 {
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
	due := now.Sub(m.began) >= movedEvery || !slices.Equal(inodes, m.inodes)
	if len(spaces) == 0 || !due || m.busy {
		return inodes
	}
	m.busy, m.began, m.inodes = true, now, inodes
	go func() {
		all, err := s.look(spaces)
		m.mu.Lock()
		defer m.mu.Unlock()
		m.busy, m.found, m.err = false, all, err
	}()
	return inodes
}

// otherNamespaces are the namespaces that may hold devices which are not seen
// here, by their inodes.
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

// movedState says what was wrong with the last look, or that one hangs.
func (s *Source) movedState(inodes []uint64, now time.Time) []model.DeviceState {
	m := &s.moved
	m.mu.Lock()
	defer m.mu.Unlock()
	state, err := model.StateFailed, m.err
	if since := now.Sub(m.began); m.busy && since > movedStuck {
		state, err = model.StateStuck, fmt.Errorf("%w: a look into network namespaces began %v ago", errStuck, since.Round(time.Second))
	}
	if err == nil || len(inodes) == 0 {
		return nil
	}
	return []model.DeviceState{{Source: s.Name(), Device: "netns", State: state, Reason: err.Error()}}
}

// look asks all namespaces for their devices. In the mode that is the default
// each shows all devices, and there is nothing to ask.
func (s *Source) look(spaces []model.Namespace) ([]found, error) {
	deadline := time.Now().Add(s.opt.Deadline)
	shared, err := sharedMode(s.dial, deadline)
	if err != nil || shared {
		return nil, err
	}
	var tooMany error
	if len(spaces) > maxNamespaces {
		tooMany = fmt.Errorf("%d of %d network namespaces are not looked into", len(spaces)-maxNamespaces, len(spaces))
		spaces = spaces[:maxNamespaces]
	}
	if s.moved.flights == nil {
		s.moved.flights = map[uint64]*flight{}
	}
	flights, stuck := s.movedFlights(spaces)
	shown, errs := make([][]nlDevice, len(spaces)), make([]error, len(spaces))
	var hanging atomic.Int64
	hanging.Store(stuck)
	each(len(spaces), func(i int) {
		if errs[i] = errStuck; flights[i] == nil || hanging.Load() >= maxHanging {
			return
		}
		shown[i], errs[i] = do(context.Background(), flights[i], s.opt.Deadline, func() ([]nlDevice, error) {
			return s.devicesIn(spaces[i])
		})
		if errors.Is(errs[i], errStuck) {
			hanging.Add(1)
		}
	})
	var all []found
	r := reader{buffer: make([]byte, bufferSize), kept: new(atomic.Int64)}
	verbs := charDevices(filepath.Join(s.opt.Sysfs, "class/infiniband_verbs"))
	for i, devices := range shown {
		for _, d := range devices {
			if s.chosen(d.name) {
				all = append(all, found{s.movedHCA(&r, d, verbs[d.name], spaces[i].Inode), spaces[i]})
			}
		}
	}
	return all, errors.Join(unseen(errs), tooMany)
}

// movedFlights are those of the namespaces, nil for one that hangs. Those that
// hang, of these and of others, are counted and kept.
func (s *Source) movedFlights(spaces []model.Namespace) (flights []*flight, hanging int64) {
	for inode, f := range s.moved.flights {
		if f.begin() {
			f.end()
			delete(s.moved.flights, inode)
		}
	}
	hanging = int64(len(s.moved.flights))
	flights = make([]*flight, len(spaces))
	for i, n := range spaces {
		if s.moved.flights[n.Inode] == nil {
			flights[i] = &flight{}
			s.moved.flights[n.Inode] = flights[i]
		}
	}
	return flights, hanging
}

// unseen joins what was wrong with namespaces, but for those that are gone.
func unseen(errs []error) error {
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
	return fmt.Errorf("%d of %d network namespaces could not be looked into: %w", n, len(errs), first)
}

// sharedMode asks whether all namespaces show all devices (SYS_GET). Kernels
// before 5.2 know no other mode.
func sharedMode(dial func() (*conn, error), deadline time.Time) (shared bool, err error) {
	c, err := dial()
	if err != nil {
		return false, err
	}
	defer c.close()
	shared = true
	err = c.request(request{cmd: cmdSysGet}, deadline, func(payload []byte) (err error) {
		shared, err = parseShared(payload)
		return err
	})
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		return true, nil
	}
	return shared, err
}
