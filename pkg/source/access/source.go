// SPDX-License-Identifier: Apache-2.0

// Package access counts opens, denied opens and open files of the device nodes of HCAs and GPUs in the kernel. The
// programs are in bpf/devices.bpf.c; bpf/README.md describes their hooks and limits.
//
// The hooks are attached with the first driver of watched devices, and stay attached, because they do not pin a module.
// Device numbers and names are read when the kernel announces a device (package hotplug); the programs know only
// numbers. An iterator of the kernel lists all open files in the background.
package access

import (
	"cmp"
	"context"
	"errors"
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
	// Tier is the only tier to try: fentry or kprobe. If it is empty, both are tried in this order.
	Tier string
	// Subsystem is the cgroup v1 controller that identifies workloads, or "" for version 2.
	Subsystem string
	// Workloads has the cgroups that belong together. If it is nil, each cgroup is counted by itself.
	Workloads *hook.Workloads
	// MaxEntries bounds the map, which has an entry per cgroup and device node. Zero selects 8192 to 32768, by CPUs and
	// device nodes.
	MaxEntries uint32
	// Interval is how often open files are listed; zero is 5 s.
	Interval time.Duration
	Hotplug  *hotplug.Watcher // may be nil
	Logger   *zap.Logger
}

const (
	// Bounds of Options.MaxEntries if the node selects it.
	minMaxEntries, maxMaxEntries = 8192, 32768

	defaultInterval = 5 * time.Second

	// scanInterval is the interval between scans of the drivers if new ones may not be announced.
	scanInterval = 2 * time.Second
	// idleFactor limits listing of open files to 1/idleFactor of a CPU.
	idleFactor = 20
	// stuckAfter is the duration of a listing after which the previous listing is no longer reported.
	stuckAfter = 30 * time.Second
)

// Source counts the opens of device nodes.
type Source struct {
	o Options

	mu     sync.Mutex
	sensor *sensor // nil before the first device
	nodes  nodes
	totals model.Totals[model.OpenKey, model.Opens, *model.Opens] // of numbers that belong to another device now
	forget map[model.CgroupID]bool
	open   handles
	listed bool      // open is known
	began  time.Time // start of the listing in progress, or zero
	lost   uint64
	hooks  []model.Hook
	failed error // why the sensor is nil although there are devices
	files  error // error of the last listing of open files
	retry  hook.Retry
	full   bool // the map of the programs has no room for all devices

	stop     context.CancelFunc
	scanning sync.WaitGroup
	listing  chan struct{} // closed when the listing has ended
}

// closeLimit is how long Close waits for the listing of open files. The listing may have to release a file that was
// closed meanwhile, and the file's driver may hang.
const closeLimit = time.Second

// New attaches the hooks if there is a driver, and scans for drivers periodically. It fails if the kernel or the
// permissions do not allow BPF.
func New(o Options) (*Source, error) {
	if err := hook.Usable(); err != nil {
		return nil, err
	}
	if o.Interval <= 0 {
		o.Interval = defaultInterval
	}
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	ctx, cancel := context.WithCancel(context.Background())
	s := &Source{
		o: o, nodes: newNodes(), forget: map[model.CgroupID]bool{}, stop: cancel,
		listing: make(chan struct{}),
		hooks:   unattached("no driver of HCAs or GPUs: the hooks come with the first one", model.StateAbsent),
	}
	// pci: NVIDIA's GPUs, which have no class; kfd: AMD's; module: rdma_cm and other drivers without a device yet.
	devices := o.Hotplug.Devices("infiniband", "drm", "misc", "kfd", "nvidia", "pci", "module")
	s.scan()
	safely.Go(&s.scanning, "access", func() { devices.Follow(ctx, scanInterval, s.scan) })
	go safely.Do("access", func() {
		defer close(s.listing)
		every(ctx, s.list)
	})
	return s, nil
}

// every calls f until ctx ends, with pauses that f returns.
func every(ctx context.Context, f func() time.Duration) {
	for {
		wait := time.NewTimer(f())
		select {
		case <-ctx.Done():
			wait.Stop()
			return
		case <-wait.C:
		}
	}
}

// Name returns "access".
func (s *Source) Name() string { return "access" }

// scan reads the existing devices and updates the programs, which it attaches when it finds the first device.
func (s *Source) scan() {
	now, err := list(s.o.Procfs, s.o.Sysfs)
	if err != nil {
		s.o.Logger.Debug("cannot list the device numbers", zap.Error(err))
		return
	}
	s.mu.Lock()
	made, waiting := s.sensor != nil, s.retry.Waiting(time.Now())
	s.mu.Unlock()
	if !made && (waiting || !now.any() || !s.attach(len(now.named))) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.nodes.clone()
	if s.nodes.add(now) {
		err = s.retire(&before)
	}
	if err = errors.Join(err, s.sensor.watch(&now)); err != nil {
		// Logged once: if the map has no room, this repeats at every scan.
		if !s.full {
			s.o.Logger.Warn("adding device numbers to the BPF map failed", zap.Error(err))
		}
	}
	s.full = err != nil
}

// sized returns the options with the limit for a number of CPUs and device nodes: a workload with its own CPU may open
// all nodes.
func (o Options) sized(cpus, nodes int) Options {
	if o.MaxEntries == 0 {
		o.MaxEntries = uint32(min(max(cpus*nodes, minMaxEntries), maxMaxEntries))
	}
	return o
}

// attach creates the sensor for a number of device nodes. It takes some time, so the lock is not held.
func (s *Source) attach(nodes int) bool {
	sensor, hooks, err := newSensor(s.o.sized(hook.CPUs(), nodes))
	s.mu.Lock()
	defer s.mu.Unlock()
	again := s.failed != nil && err != nil && s.failed.Error() == err.Error()
	s.sensor, s.hooks, s.failed = sensor, hooks, err
	if err != nil {
		s.retry.Failed(time.Now())
		if !again {
			s.o.Logger.Warn("opens of devices are not counted", zap.Error(err))
		}
		return false
	}
	if sensor.counts {
		s.o.Logger.Info("opens of devices are counted")
	} else {
		s.o.Logger.Warn("opens of devices are not counted, open files are", zap.String("reason", hooks[0].Reason))
	}
	return true
}

// retire keeps the counts of device numbers that now belong to another device, under the previous names.
func (s *Source) retire(before *nodes) error {
	return s.sensor.each(func(k gen.DevicesAccessKey, v *gen.DevicesAccessCount) bool {
		old := before.of(k.Rdev)
		if old.class == "" || old == s.nodes.of(k.Rdev) {
			return false
		}
		s.totals.Add(model.CgroupID(k.Cgroup), old.key(), model.Opens{Allowed: v.Allowed, Denied: v.Denied})
		return true
	})
}

// list lists the open files and returns the time until the next listing.
func (s *Source) list() time.Duration {
	begin := time.Now()
	s.mu.Lock()
	sensor := s.sensor
	if sensor == nil || sensor.files == nil {
		s.mu.Unlock()
		return s.o.Interval
	}
	s.began = begin
	s.mu.Unlock()
	open, err := sensor.listFiles(func(rdev uint32) bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.nodes.of(rdev).class != model.ClassRDMA
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lost += open.lost
	s.open, s.listed, s.files, s.began = open, err == nil, err, time.Time{}
	return max(s.o.Interval, idleFactor*time.Since(begin))
}

// Forget drops the counts of removed cgroups.
func (s *Source) Forget(cgroups []model.CgroupID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range cgroups {
		s.forget[id] = true
	}
}

// Close detaches the programs.
func (s *Source) Close() error {
	s.stop()
	s.scanning.Wait()
	select {
	case <-s.listing:
	case <-time.After(closeLimit):
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sensor != nil {
		s.sensor.close()
		s.sensor = nil
	}
	return nil
}
