// SPDX-License-Identifier: Apache-2.0

package qpcounter

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
)

// manageEvery is the interval at which the manager lists the devices and checks the
// modes that it set.
const manageEvery = 10 * time.Second

// manager makes the kernel bind new queue pairs of mlx5 devices to one counter per thread that
// creates them, with the byte counters of the port. It changes only ports with mode off, and
// adopts those that are in this mode already, as an earlier sensor left them. It does not change
// another mode, which another tool set.
//
// When it ends it leaves mode, optional counters and queue pairs as they are, as a sensor that is
// killed does. If it unbound the queue pairs, queue pairs of running jobs would stay unbound for the
// next sensor: auto mode binds only new ones. To bind them by number instead excludes auto mode:
// the kernel rejects auto mode while a queue pair is bound (EBUSY), and in auto mode it rejects a
// binding by number (EINVAL).
//
// It runs in its own goroutine: a Read changes nothing in the kernel.
type manager struct {
	opt  *Options
	dial nldev.Dialer

	listing hang.Call[[]nldev.Device]
	stop    chan struct{}
	done    chan struct{}

	mu      sync.Mutex
	devices map[uint32]*managed // by netlink index
}

// managed is a device of a driver that binds queue pairs.
type managed struct {
	index uint32
	call  hang.Call[struct{}]
	ports []*managedPort

	// Under the lock of the manager.
	name  string
	stuck bool
	away  bool // not listed by netlink, while a call for it has not returned
}

// managedPort belongs to the call for its device. state and reason are also read elsewhere and
// need the lock of the manager.
type managedPort struct {
	number uint32
	auto   bool // in the mode of the manager
	final  bool // no more attempts
	pause  hang.Backoff

	state  model.State // empty before the first try
	reason string
}

// close ends the manager, without a device that hangs.
func (m *manager) close() {
	close(m.stop)
	timer := time.NewTimer(m.opt.Deadline)
	defer timer.Stop()
	select {
	case <-m.done:
	case <-timer.C:
	}
}

// run manages until close.
func (m *manager) run() {
	defer close(m.done)
	ticker := time.NewTicker(manageEvery)
	defer ticker.Stop()
	for {
		m.tick()
		select {
		case <-m.stop:
			return
		case <-ticker.C:
		}
	}
}

func (m *manager) stopped() bool {
	select {
	case <-m.stop:
		return true
	default:
		return false
	}
}

// tick sets the mode of ports with mode off and checks the ports set before.
func (m *manager) tick() {
	devices, err := m.list()
	if err != nil {
		return // Read reports it
	}
	safely.Each(len(devices), sysfs.InFlight, func(i int) {
		d := devices[i]
		_, err := d.call.Do(context.Background(), m.opt.Deadline, func() (struct{}, error) { return struct{}{}, m.visit(d) })
		m.mu.Lock()
		defer m.mu.Unlock()
		d.stuck = errors.Is(err, hang.ErrStuck)
	})
}

// list updates the set of devices. A device that moves to another network namespace keeps its mode
// and counters, and is adopted when it comes back.
func (m *manager) list() ([]*managed, error) {
	var all []nldev.Device
	// A netlink request would load ib_core.
	if names, _ := os.ReadDir(m.opt.Class); len(names) > 0 && m.opt.Genuine(m.opt.Class) {
		deadline := time.Now().Add(m.opt.Deadline)
		var err error
		all, err = m.listing.Do(context.Background(), m.opt.Deadline, func() ([]nldev.Device, error) {
			return nldev.Devices(m.dial, deadline)
		})
		if err != nil {
			return nil, err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	there := map[uint32]bool{}
	for _, n := range all {
		if !m.opt.Chosen(n.Name) || !m.binds(n.Name) {
			continue
		}
		there[n.Index] = true
		d := m.devices[n.Index]
		if d == nil {
			d = &managed{index: n.Index, ports: m.ports(n.Name)}
			m.devices[n.Index] = d
		}
		d.name = n.Name
	}
	var devices []*managed
	for index, d := range m.devices {
		if d.away = !there[index]; !d.away {
			devices = append(devices, d)
			continue
		}
		if !d.call.Running() || len(m.devices) > sysfs.MaxDevices {
			delete(m.devices, index)
		}
	}
	return devices, nil
}

// nameOf returns the name of a device, which list may change.
func (m *manager) nameOf(d *managed) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return d.name
}

// binds reports whether the device driver binds queue pairs to byte counters.
// The kernel accepts auto mode for other drivers, too, so the name of the driver
// decides (device/driver, of a function or of a subfunction).
func (m *manager) binds(name string) bool {
	driver, err := os.Readlink(filepath.Join(m.opt.Class, name, "device/driver"))
	if err != nil {
		return false
	}
	base := filepath.Base(driver)
	return base == "mlx5_core" || base == "mlx5_core.sf"
}

func (m *manager) ports(name string) []*managedPort {
	var all []*managedPort
	for _, n := range sysfs.PortNumbers(filepath.Join(m.opt.Class, name)) {
		all = append(all, &managedPort{number: uint32(n)})
	}
	return all
}

// visit is the call for a device at each tick.
func (m *manager) visit(d *managed) error {
	c, err := m.dial()
	if err != nil {
		return err
	}
	defer c.Close()
	deadline := time.Now().Add(m.opt.Deadline)
	name := m.nameOf(d)
	for _, p := range d.ports {
		if p.final || p.pause.Waiting(m.opt.Now()) || m.stopped() {
			continue
		}
		if p.auto {
			state, reason := m.check(c, d.index, p, deadline)
			m.setState(d, p, state, reason)
		} else {
			state, reason := m.take(c, name, d.index, p, deadline)
			m.setState(d, p, state, reason)
		}
	}
	return nil
}

func (m *manager) setState(d *managed, p *managedPort, state model.State, reason string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if state == model.StateOK && p.state != state {
		m.opt.Logger.Info("new queue pairs are bound to counters, also when the sensor ends",
			zap.String("device", d.name), zap.Uint32("port", p.number))
	}
	p.state, p.reason = state, reason
}

// states returns the ports that cannot be managed.
func (m *manager) states() []model.DeviceState {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []model.DeviceState
	for _, d := range m.devices {
		if d.away {
			continue
		}
		for _, p := range d.ports {
			state, reason := p.state, p.reason
			if d.stuck {
				state, reason = model.StateStuck, hang.ErrStuck.Error()+": its driver may hang"
			}
			if state != "" && state != model.StateOK {
				all = append(all, model.DeviceState{
					Source: "rdma", Device: d.name + "/" + strconv.Itoa(int(p.number)) + "/qp-counters", State: state, Reason: reason,
				})
			}
		}
	}
	slices.SortFunc(all, func(a, b model.DeviceState) int { return strings.Compare(a.Device, b.Device) })
	return all
}
