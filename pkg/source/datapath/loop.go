// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

const (
	// watchInterval is the time between checks for a device. A driver reload waits
	// for this at most.
	watchInterval = 500 * time.Millisecond
	// retryInterval is the time until the next attempt after a site could not be probed.
	retryInterval = 30 * time.Second
	// removeInterval is the time between checks for processes that have ended.
	removeInterval = time.Second
	// nameInterval is the time between reads of the names of HCAs while one is
	// missing: it appeared later, or moved to another network namespace.
	nameInterval = 2 * time.Second
	// maxEvents is the number of events that wait for the loop, while it attaches probes
	// to a file that thousands of processes map: two for each context of a large job.
	maxEvents = 16384
	// maxExisting is the number of queue pairs per process and device that are
	// searched, of those that existed before the hooks.
	maxExisting = 16
)

// loop is the state that only the loop uses.
type loop struct {
	processes map[int]*watched
	files     map[locate.FileID]*file
	schedule  schedule
	// find finds the functions of a process: locate.Locator.Find.
	find     func(p *locate.Process, qp, context uint64) (locate.Found, error)
	safety   *safety      // nil until determined
	former   []*file      // with probes from before the last release
	changes  chan changed // operations of the Gate that have ended
	changing int          // that are in progress
	closing  []*kernel    // from before the last release, the programs of which an operation may still attach
	// readings and spent are those of the last step: the counters of all contexts, and the
	// cost of probes by process. The others are buffers.
	readings []reading
	spent    map[int][groups]time.Duration
	loads    []processLoad
	loaded   []*locate.Process // of loads

	events      chan event
	results     chan searchResult
	waiting     []*watched             // processes with events in their queue and no search
	searching   int                    // searches that run
	searchesOf  map[model.CgroupID]int // of these, by owner
	retries     []attempt              // wait for another attempt
	retriesOf   map[model.CgroupID]int // of these, by owner
	retryAt     time.Time              // of the first of them
	newContexts []newContext           // not marked yet
	absent      map[uint32]bool        // processes that had ended before their event was handled
	pace        pace
	removedAt   time.Time
	namedAt     time.Time
	retry       hook.Retry
}

// newContext is a context whose functions were found, and where these are probed.
type newContext struct {
	key   gen.DatapathContextKey
	sites []locate.Site
}

func newLoop(opts Options) loop {
	return loop{
		processes:  map[int]*watched{},
		files:      map[locate.FileID]*file{},
		schedule:   schedule{limit: opts.Budget, length: opts.SurveyLength, interval: opts.SurveyInterval},
		find:       locate.New(opts.Procfs).Find,
		absent:     map[uint32]bool{},
		spent:      map[int][groups]time.Duration{},
		searchesOf: map[model.CgroupID]int{},
		retriesOf:  map[model.CgroupID]int{},
		events:     make(chan event, maxEvents),
		results:    make(chan searchResult, maxLocating),
		changes:    make(chan changed),
	}
}

// run is the loop. Only this goroutine decides what is attached and detached; the Gate does it.
func (s *Source) run(ctx context.Context) {
	defer close(s.done)
	defer s.release("")
	defer s.shutdown() // also after a panic: nothing else limits what probes cost
	look := time.NewTicker(watchInterval)
	defer look.Stop()
	wake := time.NewTimer(0)
	defer wake.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			s.follow(ctx)
			s.changeFormer(time.Now())
		case e := <-s.events:
			s.handleEvent(e)
		case a := <-s.results:
			s.handleFound(a)
		case c := <-s.changes:
			s.handleChange(&c)
		case <-wake.C:
		}
		s.handleQueued()
		if s.kernel == nil { // only this goroutine sets it
			continue
		}
		now := time.Now()
		s.nameMissing(ctx, now)
		next := s.retryDue(now)
		s.startSearches()
		s.markFound(false)
		if !now.Before(s.pace.next()) {
			s.pace.due = s.step()
			s.markFound(true)
			s.removeEnded(now)
		}
		if at := s.pace.next(); at.Before(next) {
			next = at
		}
		wake.Reset(time.Until(next))
	}
}

func (s *Source) handleEvent(e event) {
	if s.kernel != nil { // otherwise it is older than the last release
		s.observe(e)
	}
}

// handleQueued handles the events and results that wait.
func (s *Source) handleQueued() {
	for range len(s.events) {
		s.handleEvent(<-s.events)
	}
	for range len(s.results) {
		s.handleFound(<-s.results)
	}
}

// follow attaches the hooks while there is a device and releases them with the
// last one: they would keep a driver from being reloaded.
func (s *Source) follow(ctx context.Context) {
	present := hasEntries(filepath.Join(s.opts.Sysfs, "class/infiniband_verbs"))
	switch {
	case !present && s.kernel != nil:
		s.release("no RDMA device: the hooks come with the next one")
	case !present:
		s.retry = hook.Retry{} // the modules of the next device may be others
	case present && s.kernel == nil && !s.retry.Waiting(time.Now()):
		s.attach(ctx)
	}
}

// hasEntries reports whether a directory has entries other than abi_version.
func hasEntries(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	names, _ := f.Readdirnames(4)
	return slices.ContainsFunc(names, func(name string) bool { return name != "abi_version" })
}

// newKernel is newKernel where return probes are safe.
func (s *Source) newKernel(ctx context.Context) (*kernel, []model.Hook, error) {
	if s.safety == nil {
		result := determineSafety(ctx, s.opts.Logger)
		s.safety = &result
	}
	if err := s.safety.refused; err != nil {
		return nil, unattached(err.Error(), model.StateUnsupported), err
	}
	return newKernel(s.opts)
}

func (s *Source) attach(ctx context.Context) {
	k, hooks, err := s.newKernel(ctx)
	s.mu.Lock()
	s.hooks, s.failed = hooks, err
	s.mu.Unlock()
	if err != nil {
		s.retry.Failed(time.Now())
		return
	}
	s.retry = hook.Retry{}
	s.mu.Lock()
	s.kernel = k
	s.mu.Unlock()
	s.nameDevices(ctx)
	go safely.Do(s.Name(), func() { s.receive(ctx, k) })
	existing, err := k.existing()
	if err != nil {
		s.opts.Logger.Warn("existing connections are not counted on the data path", zap.Error(err))
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

// receive passes events to the loop until the kernel's maps are closed.
func (s *Source) receive(ctx context.Context, k *kernel) {
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
}

// nameDevices reads the names of the HCAs. The counts of a removed HCA stay under its name, and
// those of a renamed one under the former name: an HCA that is added again may get that name.
func (s *Source) nameDevices(ctx context.Context) {
	if s.opts.DeviceNames == nil {
		return
	}
	s.namedAt = time.Now()
	ctx, cancel := context.WithTimeout(ctx, watchInterval)
	defer cancel()
	names, err := s.opts.DeviceNames(ctx)
	if err != nil {
		s.opts.Logger.Debug("cannot read the names of the devices", zap.Error(err))
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for index, former := range s.names {
		if name := names[index]; name != "" && name != former {
			s.formerDevices++
			s.fold.split(index, s.formerDevices)
			s.names[s.formerDevices] = former
		}
	}
	maps.DeleteFunc(s.names, func(index uint32, _ string) bool {
		return !s.fold.hasDevice(func(i uint32) bool { return i == index })
	})
	maps.Copy(s.names, names)
}

// nameMissing reads the names again while a series has an HCA without a name.
func (s *Source) nameMissing(ctx context.Context, now time.Time) {
	if now.Sub(s.namedAt) < nameInterval {
		return
	}
	s.mu.Lock()
	missing := s.fold.hasDevice(func(i uint32) bool { return s.deviceName(i) == "" })
	s.mu.Unlock()
	if missing {
		s.nameDevices(ctx)
	}
}

// release detaches the hooks and keeps the series. Probes are detached when the Gate does it, at the end of the sensor by shutdown.
func (s *Source) release(reason string) {
	if s.kernel == nil {
		return
	}
	s.mu.Lock()
	s.limited = false // no context is located any more
	err := s.drain()
	s.fold.endAll()
	k := s.kernel
	s.kernel = nil
	s.hooks = unattached(reason, model.StateAbsent)
	clear(s.contexts)
	clear(s.places)
	clear(s.kept)
	clear(s.tracedSince)
	clear(s.unlocated)
	s.unprobed, s.unprobeable, s.excluded, s.off = nil, nil, nil, nil
	s.stats.Probes, s.stats.Processes = 0, 0
	s.mu.Unlock()
	if err != nil && !errors.Is(err, os.ErrClosed) {
		s.opts.Logger.Warn("the last counts are lost", zap.Error(err))
	}
	k.detach()
	s.closing = append(s.closing, k)
	s.closeFormer()
	for _, w := range s.processes {
		w.release()
	}
	for _, f := range s.files {
		s.unkeep(f)
		f.wanted, f.on, f.survey = [groups]bool{}, [groups]bool{}, survey{}
		if f.hasProbes() {
			s.former = append(s.former, f)
		} else {
			f.close()
		}
	}
	clear(s.processes)
	clear(s.files)
	clear(s.absent)
	s.waiting, s.retries, s.newContexts, s.readings = nil, nil, nil, nil
	clear(s.retriesOf)
	s.pace = pace{}
}
