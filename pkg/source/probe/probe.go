// SPDX-License-Identifier: Apache-2.0

// Package probe counts in the kernel what each cgroup does on each HCA: verbs system calls with their durations and
// errors, and live RDMA objects with their registered bytes. The programs are in bpf/. bpf/README.md lists their hooks
// and limits.
//
// The hooks follow the devices. A hook on a function of a module pins the module. So hooks are attached only while an
// RDMA device exists, and the driver can be reloaded after the last device is removed.
package probe

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/hotplug"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// Options configure a Source.
type Options struct {
	// Sysfs is the mount point of sysfs. The programs always see the running kernel, so devices have no names in
	// another tree.
	Sysfs string
	// Tier is the only tier to try: fentry, kprobe or tracepoint. If it is empty, each hook tries its tiers in its own
	// order.
	Tier string
	// BTFDir has a file of type information for each RDMA module without BTF in the kernel. It may be empty.
	BTFDir string
	// MaxEntries limits the (workload, device, verb) and (workload, device, type) combinations. MaxObjects limits the
	// live objects, and half of it limits the connected queue pairs. Zero selects limits by the CPUs and devices of the
	// node.
	MaxEntries, MaxObjects uint32
	// Subsystem is the cgroup v1 controller with the cgroups of workloads, or "" for cgroup v2.
	Subsystem string
	// Objects lists the objects of some types, or of all types, that are older than the hooks. CgroupOf returns the
	// cgroup of a process (model.ObjectLister, model.CgroupResolver). Both may be nil.
	Objects  func(context.Context, ...model.ObjectType) ([]model.Object, error)
	CgroupOf func(pid int) (model.CgroupID, error)
	// OwnerOf returns the owner for which the programs count a cgroup (model.OwnerResolver). If it is nil, they count
	// by cgroup.
	OwnerOf func(model.CgroupID) (workload, share model.CgroupID)
	// Workloads has the cgroups that belong together. If it is nil, each cgroup is counted by itself.
	Workloads *hook.Workloads
	// ObjectCounts returns the number of objects that the kernel tracks, including its own (model.ObjectLister). If it
	// is nil, the numbers are not compared.
	ObjectCounts func(context.Context) (map[model.ObjectTable]uint64, error)
	// DeviceNames returns the current names of the devices by index (model.DeviceNamer). It may be nil.
	DeviceNames func(context.Context) (map[uint32]string, error)
	// Paths receives the paths of created cgroups. It may be nil.
	Paths   *PathLog
	Hotplug *hotplug.Watcher // may be nil
	Logger  *zap.Logger

	devices int // number of devices when the hooks are attached
}

// Source attaches the hooks and reads the maps.
type Source struct {
	opts Options

	mu       sync.Mutex
	sensor   *sensor // nil without a device
	names    deviceNames
	former   totals  // counters of removed devices and former device names
	lost     losses  // losses of closed sensors
	repaired repairs // repairs by closed sensors
	forget   map[model.CgroupID]bool
	hooks    []model.Hook
	failed   error // why there is no sensor despite a device
	retry    hook.Retry
	last     lengths // of the last snapshot

	// Only follow uses these: class/infiniband, class/infiniband_verbs, and how often their names must still be read.
	devices, uverbs *listing
	unnamed         int
	renamed         bool                    // a device was added, removed or renamed: query netlink
	query           *hang.Pending[struct{}] // RDMA netlink query in progress, or nil
	cancelQuery     context.CancelFunc
	read            bool // there was a Read since the last comparison with RDMA netlink

	reads chan struct{} // has a value after a Read

	stop context.CancelFunc
	done chan struct{}
}

type lengths struct{ verbs, errors, objects, registered int }

// New attaches the hooks if there is a device, and starts to follow the devices. It fails if the kernel or the
// permissions do not allow BPF.
func New(opts Options) (*Source, error) {
	if opts.Logger == nil {
		opts.Logger = zap.NewNop()
	}
	if opts.Paths == nil {
		opts.Paths = &PathLog{}
	}
	if err := hook.Usable(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Source{
		opts:    opts,
		devices: newListing(filepath.Join(opts.Sysfs, "class/infiniband")),
		uverbs:  newListing(filepath.Join(opts.Sysfs, "class/infiniband_verbs")),
		forget:  map[model.CgroupID]bool{},
		reads:   make(chan struct{}, 1),
		stop:    cancel,
		done:    make(chan struct{}),
	}
	s.hooks = unattached("no RDMA device: the hooks come with the first one", model.StateAbsent)
	changes := opts.Hotplug.Devices("infiniband")
	s.follow(ctx)
	go safely.Do("probe", func() {
		defer close(s.done)
		s.watch(ctx, changes.Changed(), changes.Interval)
	})
	return s, nil
}

// Name returns "probe".
func (s *Source) Name() string { return "probe" }

// Close detaches all hooks.
func (s *Source) Close() error {
	s.stop()
	<-s.done
	s.devices.close()
	s.uverbs.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sensor != nil {
		s.closeSensor()
	}
	return nil
}

// Counting reports whether objects are counted in the kernel.
func (s *Source) Counting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sensor != nil && s.sensor.objects != nil
}

// Forget drops the counters of these cgroups at the next Read.
func (s *Source) Forget(cgroups []model.CgroupID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range cgroups {
		s.forget[id] = true
	}
}

// Read reads the maps.
func (s *Source) Read(context.Context) (model.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := model.Snapshot{
		Hooks:      s.hooks,
		Verbs:      make([]model.Series[model.VerbKey, model.Histogram], 0, s.last.verbs),
		VerbErrors: make([]model.Series[model.VerbErrorKey, model.Count], 0, s.last.errors),

		OwnerLosses: []model.Series[model.LossKey, model.Count]{},
	}
	s.former.forget(s.forget)
	counting := s.sensor == nil && s.failed == nil || s.sensor != nil && s.sensor.objects != nil
	if counting {
		snap.Objects = make([]model.Objects, 0, s.last.objects)
		snap.Created = make([]model.Series[model.ObjectKey, model.Count], 0, s.last.objects)
		snap.Registered = make([]model.Registered, 0, s.last.registered)
	}
	s.former.fill(&snap)
	if s.sensor != nil && s.sensor.verbs == nil {
		snap.Verbs, snap.VerbErrors = nil, nil
	}
	lost := s.lost
	if s.sensor == nil {
		clear(s.forget)
		lost.fill(&snap)
		s.repaired.fill(&snap)
		return snap, s.failed
	}
	select {
	case s.reads <- struct{}{}:
	default: // a value is waiting already
	}
	err := s.sensor.read(&snap, s.names, s.forget)
	s.sensor.self(&snap, &lost)
	lost.fill(&snap)
	s.repaired.plus(s.sensor.repairs()).fill(&snap)
	s.last = lengths{len(snap.Verbs), len(snap.VerbErrors), len(snap.Objects), len(snap.Registered)}
	if err != nil {
		return snap, fmt.Errorf("reading the BPF maps: %w", err)
	}
	clear(s.forget)
	return snap, hook.Failures(s.hooks)
}
