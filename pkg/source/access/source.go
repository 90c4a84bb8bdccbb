// SPDX-License-Identifier: Apache-2.0

// Package access counts in the kernel who opens the device nodes of HCAs and GPUs,
// who may not, and who has them open. The programs are in bpf/devices.bpf.c;
// bpf/README.md tells what each hooks, costs and misses.
//
// The hooks come with the first driver whose devices are watched, and stay: they
// pin no module. Which numbers those are, and how they are called, is looked up
// every two seconds; the programs know numbers only. Open files are listed in the
// background, by an iterator of the kernel over all open files.
package access

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

// Options configure a Source.
type Options struct {
	Sysfs  string // where sysfs is mounted: /sys
	Procfs string // /proc
	// Tier is the only tier to try: fentry or kprobe. Empty tries them in this order.
	Tier string
	// Subsystem is the cgroup v1 controller whose ids tell workloads apart; empty for
	// version 2.
	Subsystem string
	// MaxEntries bounds the map: one per cgroup and device node. Zero is 8192.
	MaxEntries uint32
	// Interval is how often open files are listed; zero is 5 s.
	Interval time.Duration
	Logger   *zap.Logger
}

const (
	defaultMaxEntries = 8192
	defaultInterval   = 5 * time.Second

	// lookInterval is how often the drivers are looked at.
	lookInterval = 2 * time.Second
	// retryInterval is how long after a failure the hooks are tried again, as long as
	// none of them could be attached.
	retryInterval = 30 * time.Second
	// idleFactor: listing open files takes this part of one CPU at most.
	idleFactor = 20
	// stuckAfter is when what was listed before is not told any more.
	stuckAfter = 30 * time.Second
)

// Source counts the opens of device nodes.
type Source struct {
	o Options

	mu     sync.Mutex
	sensor *sensor // nil until there is a device
	nodes  nodes
	totals model.Totals[model.OpenKey, model.Opens, *model.Opens] // of numbers that have another device now
	forget map[uint64]bool
	open   handles
	listed bool      // open is known
	began  time.Time // when the listing under way began; zero when none is
	lost   uint64
	hooks  []model.Hook
	failed error // why there is no sensor though there are devices
	files  error // why open files could not be listed last
	retry  time.Time
	full   bool // not all devices could be told to the programs

	stop    context.CancelFunc
	looking sync.WaitGroup
	listing chan struct{} // closed when the listing has ended
}

// closeLimit is how long Close waits for the listing of open files: a file that is
// closed meanwhile is released by who lists it, and its driver may hang.
const closeLimit = time.Second

// New attaches the hooks if a driver is there, and begins to look for drivers.
// It fails when this kernel or these permissions allow no BPF at all.
func New(o Options) (*Source, error) {
	if err := hook.Usable(); err != nil {
		return nil, err
	}
	if o.MaxEntries == 0 {
		o.MaxEntries = defaultMaxEntries
	}
	if o.Interval <= 0 {
		o.Interval = defaultInterval
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Source{
		o: o, nodes: newNodes(), forget: map[uint64]bool{}, stop: cancel,
		listing: make(chan struct{}),
		hooks:   unattached("no driver of HCAs or GPUs: the hooks come with the first one", model.StateAbsent),
	}
	look := func() time.Duration { s.look(); return lookInterval }
	look()
	s.looking.Go(func() { every(ctx, look) })
	go func() {
		defer close(s.listing)
		every(ctx, s.list)
	}()
	return s, nil
}

// every calls f until the end, and waits between as long as f says.
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

// look reads which devices there are and tells the programs, which are attached
// when it finds the first.
func (s *Source) look() {
	now, err := list(s.o.Procfs, s.o.Sysfs)
	if err != nil {
		s.o.Logger.Debug("cannot list the device numbers", zap.Error(err))
		return
	}
	s.mu.Lock()
	made, waiting := s.sensor != nil, time.Now().Before(s.retry)
	s.mu.Unlock()
	if !made && (waiting || !now.any() || !s.attach()) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.nodes.clone()
	if s.nodes.add(now) {
		err = s.retire(&before)
	}
	if err = errors.Join(err, s.sensor.watch(&now)); err != nil {
		// The same every two seconds, where there are more devices than the map has room for.
		if !s.full {
			s.o.Logger.Warn("a device is not watched", zap.Error(err))
		}
	}
	s.full = err != nil
}

// attach makes the sensor, which takes a moment that nobody is to wait for.
func (s *Source) attach() bool {
	sensor, hooks, err := newSensor(s.o)
	s.mu.Lock()
	defer s.mu.Unlock()
	again := s.failed != nil && err != nil && s.failed.Error() == err.Error()
	s.sensor, s.hooks, s.failed = sensor, hooks, err
	if err != nil {
		s.retry = time.Now().Add(retryInterval)
		if !again {
			s.o.Logger.Warn("opens of devices are not counted", zap.Error(err))
		}
		return false
	}
	s.o.Logger.Info("opens of devices are counted")
	return true
}

// retire keeps, under the name that a number had before, what was counted for
// it when the number is another device's now.
func (s *Source) retire(before *nodes) error {
	return s.sensor.each(func(k gen.DevicesAccessKey, v *gen.DevicesAccessCount) bool {
		old := before.of(k.Rdev)
		if old.class == "" || old == s.nodes.of(k.Rdev) {
			return false
		}
		s.totals.Add(k.Cgroup, old.key(), model.Opens{Allowed: v.Allowed, Denied: v.Denied})
		return true
	})
}

// list lists the open files, and says when to list them next.
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

// Forget drops what is kept of cgroups that are gone.
func (s *Source) Forget(cgroups []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range cgroups {
		s.forget[id] = true
	}
}

// Close removes the programs.
func (s *Source) Close() error {
	s.stop()
	s.looking.Wait()
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
