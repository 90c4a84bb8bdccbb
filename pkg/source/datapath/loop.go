// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/budget"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

const (
	// watchInterval is how often it is looked whether there is a device. A driver
	// reload waits for this at most.
	watchInterval = 500 * time.Millisecond
	// retryInterval is for how long nothing is tried after the hooks could not be
	// attached.
	retryInterval = 30 * time.Second
	// unsupportedInterval is the same where the kernel cannot: other modules may.
	unsupportedInterval = 10 * time.Minute
	// reapInterval is how often the processes are looked at: what the probes of one
	// that is gone cost others is nothing until then.
	removeInterval = time.Second
	// nameInterval is how often the names of the HCAs are asked for while one is
	// missing: it came later, or was moved to another namespace.
	nameInterval = 2 * time.Second
	// maxEvents are those that wait for the loop.
	maxEvents = 1024
	// maxExisting is how many queue pairs of a process are looked at on a device, of
	// those that were there before.
	maxExisting = 16
)

// loop is what the loop alone touches.
type loop struct {
	processes map[int]*watched
	files     map[locate.FileID]*file
	budget    *budget.Budget
	// look finds the functions of a process, by its queue pair or, without one, as
	// far as they are known.
	find      func(p *locate.Process, qp uint64) (locate.Found, error)
	costs     *trapCosts // nil until measured
	detaching sync.WaitGroup
	readings  []reading

	events      chan event
	results     chan searchResult
	retries     []attempt                // to be tried again
	newContexts []gen.DatapathContextKey // since the last step
	removedAt   time.Time
	namedAt     time.Time
	attachAt    time.Time
}

func newLoop(opts Options) loop {
	return loop{
		processes: map[int]*watched{},
		files:     map[locate.FileID]*file{},
		budget:    budget.New(opts.Budget, switchCost, random),
		find:      locate.New(opts.Procfs).Find,
		events:    make(chan event, maxEvents),
		results:   make(chan searchResult, maxLocating),
	}
}

// run is the loop: once it runs, all that is attached and detached is so by this goroutine.
func (s *Source) run(ctx context.Context) {
	defer close(s.done)
	look := time.NewTicker(watchInterval)
	defer look.Stop()
	step := time.NewTimer(0)
	defer step.Stop()
	for {
		select {
		case <-ctx.Done():
			s.release("")
			return
		case <-look.C:
			s.follow(ctx)
			continue
		case e := <-s.events:
			if s.kernel != nil { // else it is of before the last release
				s.observe(e)
			}
		case a := <-s.results:
			s.handleFound(a)
		case <-step.C:
		}
		if s.kernel == nil { // written by this goroutine alone
			continue
		}
		now := time.Now()
		s.removeEnded(now)
		s.nameMissing(ctx, now)
		next := s.retryDue(now)
		s.startSearches()
		if at := s.step(); at.Before(next) {
			next = at
		}
		s.markFound()
		step.Reset(time.Until(next))
	}
}

// follow attaches the hooks while there is a device and releases them with the
// last one: they, too, would keep a driver from being reloaded.
func (s *Source) follow(ctx context.Context) {
	present := hasEntries(filepath.Join(s.opts.Sysfs, "class/infiniband_verbs"))
	switch {
	case !present && s.kernel != nil:
		s.release("no RDMA device: the hooks come with the next one")
	case present && s.kernel == nil && !time.Now().Before(s.attachAt):
		s.attach(ctx)
	}
}

// hasEntries says whether there are directories in a directory.
func hasEntries(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	names, _ := f.Readdirnames(4)
	return slices.ContainsFunc(names, func(name string) bool { return name != "abi_version" })
}

func (s *Source) attach(ctx context.Context) {
	k, hooks, err := newKernel(s.opts)
	s.mu.Lock()
	s.hooks, s.failed = hooks, err
	s.mu.Unlock()
	if err != nil {
		s.attachAt = time.Now().Add(retryInterval)
		if errors.Is(err, model.ErrUnsupported) {
			s.attachAt = time.Now().Add(unsupportedInterval)
		}
		return
	}
	if s.costs == nil {
		c, err := calibrate(k.calibration)
		s.costs = &c
		s.opts.Logger.Info("what a probe costs, in ns", zap.Uint32("trap", c.emulated),
			zap.Uint32("single step", c.stepped), zap.Uint32("return", c.returned), zap.Error(err))
	}
	s.mu.Lock()
	s.kernel = k
	s.mu.Unlock()
	s.nameDevices(ctx)
	go func() {
		for {
			e, err := k.next()
			if err != nil {
				return // closed
			}
			select {
			case s.events <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	existing, err := k.existing()
	if err != nil {
		s.opts.Logger.Warn("what was connected before is not watched on the data path", zap.Error(err))
	}
	// The queue pairs of a process on a device have the same functions, or one of a
	// few sets.
	of := map[gen.DatapathContextKey]int{}
	for _, e := range existing {
		key := gen.DatapathContextKey{Context: uint64(e.device), Tgid: e.key.Tgid}
		if of[key]++; of[key] <= maxExisting {
			e.existed = true
			s.observe(e)
		}
	}
	s.opts.Logger.Info("data path hooks attached")
}

// nameDevices asks for the names of the HCAs.
func (s *Source) nameDevices(ctx context.Context) {
	if s.opts.DeviceNames == nil {
		return
	}
	s.namedAt = time.Now()
	ctx, cancel := context.WithTimeout(ctx, watchInterval)
	defer cancel()
	names, err := s.opts.DeviceNames(ctx)
	if err != nil {
		s.opts.Logger.Debug("cannot ask for the names of the devices", zap.Error(err))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = names
}

// rename asks again while there are figures of an HCA without a name.
func (s *Source) nameMissing(ctx context.Context, now time.Time) {
	if now.Sub(s.namedAt) < nameInterval {
		return
	}
	s.mu.Lock()
	missing := s.fold.hasUnnamed(s.deviceName)
	s.mu.Unlock()
	if missing {
		s.nameDevices(ctx)
	}
}

// release detaches everything and keeps the totals.
func (s *Source) release(reason string) {
	if s.kernel == nil {
		return
	}
	for _, f := range s.files {
		for c := range budget.Groups {
			if f.on(c) {
				f.detach(c, &s.detaching)
			}
		}
	}
	s.detaching.Wait()
	s.mu.Lock()
	err := s.drain()
	s.fold.endAll()
	s.late = s.stats.Late
	k := s.kernel
	s.kernel = nil
	s.hooks = unattached(reason, model.StateAbsent)
	clear(s.contexts)
	clear(s.samplings)
	s.stats.Probes, s.stats.Processes = 0, 0
	s.mu.Unlock()
	if err != nil && !errors.Is(err, os.ErrClosed) {
		s.opts.Logger.Warn("what was counted last is lost", zap.Error(err))
	}
	k.close()
	for _, w := range s.processes {
		w.release()
	}
	clear(s.processes)
	clear(s.files)
	s.retries, s.newContexts = nil, nil
}
