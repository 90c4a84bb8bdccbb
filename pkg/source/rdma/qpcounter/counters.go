// SPDX-License-Identifier: Apache-2.0

// Package qpcounter reads the counters that mlx5 binds queue pairs to, and credits their bytes to the cgroups of the
// processes that created the queue pairs. A manager makes the kernel bind new queue pairs.
package qpcounter

import (
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
)

// The values of Options.Mode.
const (
	ModeUse    = "use"
	ModeManage = "manage"
)

// Options configure Counters.
type Options struct {
	// Mode is ModeUse to read the counters that queue pairs are bound to, ModeManage to bind new queue pairs, too, or
	// anything else for neither.
	Mode string
	// CgroupOf returns the cgroup of a process; nil if cgroups are not read: then no counter is read, and no queue pair is bound.
	CgroupOf func(pid int) (model.CgroupID, error)
	// Netlink reports whether RDMA netlink is read.
	Netlink bool
	// Class is the directory class/infiniband, and Genuine reports whether it is on a real sysfs.
	Class   string
	Genuine func(path string) bool
	// Chosen selects devices by name.
	Chosen func(name string) bool
	// Deadline is the time limit of the manager for one device.
	Deadline time.Duration
	Now      func() time.Time
	Logger   *zap.Logger
}

// Counters are the counters of queue pairs of all devices.
type Counters struct {
	opt    Options
	totals totals

	mu      sync.Mutex
	manager *manager // nil until Manage starts it, and after Close
	closed  bool
}

// New returns the counters of a node. It starts nothing.
func New(o Options) *Counters { return &Counters{opt: o} }

// enabled reports whether the counters of queue pairs are read.
func (c *Counters) enabled() bool {
	return (c.opt.Mode == ModeUse || c.opt.Mode == ModeManage) && c.opt.Netlink && c.opt.CgroupOf != nil
}

// Forget drops the totals of these cgroups.
func (c *Counters) Forget(cgroups []model.CgroupID) { c.totals.forget(cgroups) }

// Traffic returns the bytes that queue pair counters counted on these devices, nil if they are not read.
func (c *Counters) Traffic(devices []model.DeviceState) []model.Traffic {
	if !c.enabled() {
		return nil
	}
	there := make(map[string]bool, len(devices))
	for _, d := range devices {
		there[d.Device] = true
	}
	return c.totals.traffic(there)
}

// States returns the states of queue pair counters that do not work as configured.
func (c *Counters) States() []model.DeviceState {
	if mode := c.opt.Mode; (mode == ModeUse || mode == ModeManage) && c.opt.CgroupOf == nil {
		return []model.DeviceState{{
			Source: "rdma", Device: "qp-counters", State: model.StateUnsupported,
			Reason: "the cgroups of processes are unknown: no queue pairs are bound to counters and no counters are read",
		}}
	}
	c.mu.Lock()
	m := c.manager
	c.mu.Unlock()
	return m.states()
}

// Device returns the counters of a device, nil if they are not read.
func (c *Counters) Device(name string) *Device {
	if !c.enabled() {
		return nil
	}
	return &Device{
		device: name, totals: &c.totals, cgroupOf: c.opt.CgroupOf,
		stat: sysfs.Attempt{Name: "STAT_GET of queue pairs"}, known: map[counterKey]*counter{},
	}
}

// Manage starts the manager, once. dial opens its sockets.
func (c *Counters) Manage(dial nldev.Dialer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.manager != nil || c.closed || c.opt.Mode != ModeManage || !c.enabled() {
		return
	}
	c.manager = &manager{
		opt: &c.opt, dial: dial, stop: make(chan struct{}), done: make(chan struct{}), devices: map[uint32]*managed{},
	}
	go safely.Do("rdma", c.manager.run)
}

// Close ends the manager. The kernel goes on binding queue pairs.
func (c *Counters) Close() {
	c.mu.Lock()
	m := c.manager
	c.manager, c.closed = nil, true
	c.mu.Unlock()
	if m != nil {
		m.close()
	}
}
