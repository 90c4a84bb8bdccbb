// SPDX-License-Identifier: Apache-2.0

// Package probe counts in the kernel what each cgroup does on each HCA: verbs
// system calls with their durations and errors, and live RDMA objects with the
// bytes registered. The programs are in bpf/; bpf/README.md tells what each
// hooks, costs and misses.
//
// The hooks follow the devices. A hook on a module's function pins the module,
// so they are there only while an RDMA device is: they go with the last one,
// which leaves the driver free to be reloaded, and come back with the next.
package probe

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

// Options of a Source.
type Options struct {
	// Sysfs is where sysfs is mounted. The programs always see the running
	// kernel: on another tree the source finds no device that it could name.
	Sysfs string
	// Tier is the only tier to try: fentry, kprobe or tracepoint. Empty tries
	// the tiers of each hook in the order of that hook.
	Tier string
	// MaxEntries bounds the (cgroup, device, verb) and (cgroup, device, type)
	// combinations, MaxObjects the live objects, of which half may be connected queue
	// pairs. Zero takes the defaults.
	MaxEntries, MaxObjects uint32
	// Subsystem is the cgroup v1 controller whose hierarchy tells workloads
	// apart, empty for cgroup v2.
	Subsystem string
	// Objects lists the objects that existed before the hooks, and CgroupOf returns the
	// cgroup of a process (model.ObjectLister, model.CgroupResolver). Either may be nil.
	Objects  func(context.Context) ([]model.Object, error)
	CgroupOf func(pid int) (model.CgroupID, error)
	// DeviceNames returns the names of the devices by index, for those that are renamed
	// (model.DeviceNamer). It may be nil.
	DeviceNames func(context.Context) (map[uint32]string, error)
	// Paths gets the paths of cgroups that are created. It may be nil.
	Paths  *PathLog
	Logger *zap.Logger
}

// Defaults of Options.
const (
	DefaultMaxEntries = 8192
	DefaultMaxObjects = 65536
)

// Source is the probe.
type Source struct {
	opts Options

	mu     sync.Mutex
	sensor *sensor // nil while there is no device
	names  deviceNames
	gone   totals
	lost   losses // of sensors that are gone
	forget map[uint64]bool
	hooks  []model.Hook
	failed error // why there is no sensor though there is a device
	retry  time.Time
	last   lengths // of the last snapshot

	// Of follow alone: class/infiniband, class/infiniband_verbs, and how often
	// their names are still to be read.
	devices, uverbs *listing
	unnamed         int
	renamed         bool                    // a device came, went or has another name: ask netlink
	asking          *hang.Pending[struct{}] // what RDMA netlink is asked for; nil if nothing
	stopAsking      context.CancelFunc      // ends asking

	stop context.CancelFunc
	done chan struct{}
}

type lengths struct{ verbs, errors, objects, registered int }

// New attaches the hooks when there is a device and begins to follow the
// devices. It fails when this kernel or these permissions allow no BPF at all.
func New(opts Options) (*Source, error) {
	if opts.MaxEntries == 0 {
		opts.MaxEntries = DefaultMaxEntries
	}
	if opts.MaxObjects == 0 {
		opts.MaxObjects = DefaultMaxObjects
	}
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
		forget:  map[uint64]bool{},
		stop:    cancel,
		done:    make(chan struct{}),
	}
	s.hooks = unattached("no RDMA device: the hooks come with the first one", model.StateAbsent)
	s.follow(ctx)
	go s.watch(ctx)
	return s, nil
}

// Name is "probe".
func (s *Source) Name() string { return "probe" }

// Close detaches everything.
func (s *Source) Close() error {
	s.stop()
	<-s.done
	s.devices.close()
	s.uverbs.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sensor != nil {
		s.dismiss()
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
func (s *Source) Forget(cgroups []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range cgroups {
		s.forget[id] = true
	}
}

// Read drains the kernel's maps.
func (s *Source) Read(context.Context) (model.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := model.Snapshot{
		Hooks:      s.hooks,
		Verbs:      make([]model.Series[model.VerbKey, model.Histogram], 0, s.last.verbs),
		VerbErrors: make([]model.Series[model.VerbErrorKey, model.Count], 0, s.last.errors),
	}
	s.gone.forget(s.forget)
	counting := s.sensor == nil && s.failed == nil || s.sensor != nil && s.sensor.objects != nil
	if counting {
		snap.Objects = make([]model.Objects, 0, s.last.objects)
		snap.Created = make([]model.Series[model.ObjectKey, model.Count], 0, s.last.objects)
		snap.Registered = make([]model.Registered, 0, s.last.registered)
	}
	s.gone.fill(&snap)
	lost := s.lost
	if s.sensor == nil {
		clear(s.forget)
		lost.fill(&snap)
		return snap, s.failed
	}
	err := s.sensor.read(&snap, s.names, s.forget)
	s.sensor.self(&snap, &lost)
	lost.fill(&snap)
	s.last = lengths{len(snap.Verbs), len(snap.VerbErrors), len(snap.Objects), len(snap.Registered)}
	if err != nil {
		return snap, fmt.Errorf("reading the BPF maps: %w", err)
	}
	clear(s.forget)
	return snap, degraded(s.hooks)
}

// degraded is the error of a probe that lacks a hook it needs.
func degraded(hooks []model.Hook) error {
	var errs []error
	for _, h := range hooks {
		if h.State == model.StateFailed {
			errs = append(errs, hook.Failure(h))
		}
	}
	return errors.Join(errs...)
}
