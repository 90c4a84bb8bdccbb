// SPDX-License-Identifier: Apache-2.0

// Package gpudriver measures how long tasks of each cgroup are in the ioctls of GPU drivers, and finds the tasks that
// do not return. The programs are in bpf/gpudriver.bpf.c; bpf/README.md describes their hooks and limits.
//
// The hooks are kprobes, which do not pin a module: a driver can be unloaded while they are attached, and they are then
// gone. So the modules are watched, and a reloaded module gets its hooks again.
package gpudriver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/hotplug"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// Options configure a Source.
type Options struct {
	Sysfs  string // mount point of sysfs: /sys
	Procfs string // mount point of procfs: /proc
	// Subsystem is the cgroup v1 controller that identifies workloads, or "" for version 2.
	Subsystem string
	// Workloads has the cgroups that belong together. If it is nil, each cgroup is counted by itself.
	Workloads *hook.Workloads
	// MaxEntries bounds the counted combinations of a workload, a driver and a kind; MaxCalls bounds the calls in
	// progress. Zero selects the defaults.
	MaxEntries, MaxCalls uint32
	// StuckAfter is the time in an ioctl after which a task is stuck. Zero is 30 s.
	StuckAfter time.Duration
	Hotplug    *hotplug.Watcher // may be nil
	Logger     *zap.Logger
}

const (
	// defaultMaxEntries does not depend on the number of GPUs: a workload has two entries per driver. With four drivers
	// it is enough for 1,000 workloads.
	defaultMaxEntries = 8192
	defaultMaxCalls   = 8192
	defaultStuckAfter = 30 * time.Second

	// watchInterval is the interval between looks at the modules if new ones may not be announced, and the longest time
	// without counts after a driver was loaded.
	watchInterval = 2 * time.Second
)

// Source measures the ioctls of GPU drivers.
type Source struct {
	o Options

	mu      sync.Mutex
	sensor  *sensor // nil before the first driver
	modules map[string]uint64
	hooks   []model.Hook // one for each of functions
	failed  error        // why the sensor is nil despite a driver
	retry   hook.Retry   // pending unless all hooks are attached
	forget  map[model.CgroupID]bool

	stop     context.CancelFunc
	watching sync.WaitGroup
}

// New attaches the hooks of the loaded drivers, and watches the modules. It fails if the kernel or the permissions do
// not allow BPF.
func New(o Options) (*Source, error) {
	if err := hook.Usable(); err != nil {
		return nil, err
	}
	o.MaxEntries = cmp.Or(o.MaxEntries, defaultMaxEntries)
	o.MaxCalls = cmp.Or(o.MaxCalls, defaultMaxCalls)
	o.StuckAfter = cmp.Or(o.StuckAfter, defaultStuckAfter)
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	ctx, cancel := context.WithCancel(context.Background())
	s := &Source{o: o, modules: map[string]uint64{}, forget: map[model.CgroupID]bool{}, stop: cancel}
	for _, f := range functions {
		s.hooks = append(s.hooks, f.state(model.StateAbsent, f.notLoaded()))
	}
	modules := o.Hotplug.Devices("module")
	s.follow()
	safely.Go(&s.watching, "gpudriver", func() { modules.Follow(ctx, watchInterval, s.follow) })
	return s, nil
}

// Name returns "gpudriver".
func (s *Source) Name() string { return "gpudriver" }

// Close detaches the programs.
func (s *Source) Close() error {
	s.stop()
	s.watching.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sensor != nil {
		s.sensor.close()
		s.sensor = nil
	}
	return nil
}

// Forget drops the counts of removed cgroups.
func (s *Source) Forget(cgroups []model.CgroupID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range cgroups {
		s.forget[id] = true
	}
}

// Read returns DriverCalls, DriverUses, DriverTasks, Hooks, Maps and Losses.
func (s *Source) Read(context.Context) (model.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := model.Snapshot{Hooks: slices.Clone(s.hooks)}
	if s.sensor == nil {
		clear(s.forget)
		if s.failed != nil {
			return snap, s.failed
		}
		return snap, fmt.Errorf("no driver of GPUs is loaded: %w", model.ErrAbsent)
	}
	uses := map[use]*model.DriverUse{}
	snap.DriverCalls = []model.Series[model.DriverCallKey, model.Histogram]{}
	err := s.sensor.each(func(k *gen.GPUDriverDriverKey, v *gen.GPUDriverDriverStat) bool {
		cgroup := model.CgroupID(k.Cgroup)
		if s.forget[cgroup] {
			return true
		}
		snap.DriverCalls = append(snap.DriverCalls, model.Series[model.DriverCallKey, model.Histogram]{
			Cgroup: cgroup, Key: model.DriverCallKey{Driver: driverName(k), Kind: kindOf(k)}, Value: histogram(v),
		})
		at(uses, k)
		return false
	})
	snap.Hooks = append(snap.Hooks, s.sensor.check)
	if err == nil && s.sensor.check.State == model.StateOK {
		snap.DriverTasks, err = s.stuck(uses)
		snap.DriverUses = make([]model.DriverUse, 0, len(uses))
		for _, u := range uses {
			snap.DriverUses = append(snap.DriverUses, *u)
		}
	}
	if err != nil {
		return model.Snapshot{Hooks: snap.Hooks}, err
	}
	err = errors.Join(s.sensor.object.Owners.Settle(s.forget), s.sensor.self(&snap))
	clear(s.forget)
	return snap, errors.Join(err, hook.Failures(s.hooks))
}
