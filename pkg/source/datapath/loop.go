// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"errors"
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
	kernel    *kernel // nil while there is no device
	kept      keptFiles
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
	// last are the readings of the last step. The others are buffers.
	last   readings
	loads  []processLoad
	loaded []*locate.Process // of loads

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
		kept:       keptFiles{ids: map[locate.FileID]bool{}},
		processes:  map[int]*watched{},
		files:      map[locate.FileID]*file{},
		schedule:   schedule{limit: opts.Budget, length: opts.SurveyLength, interval: opts.SurveyInterval},
		find:       locate.New(opts.Procfs).Find,
		absent:     map[uint32]bool{},
		last:       readings{spent: map[int][groups]time.Duration{}},
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
		if s.kernel == nil {
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
	return newKernel(*s.opts)
}

func (s *Source) attach(ctx context.Context) {
	k, hooks, err := s.newKernel(ctx)
	s.meter.setKernel(k, hooks, err)
	if err != nil {
		s.retry.Failed(time.Now())
		return
	}
	s.retry = hook.Retry{}
	s.kernel = k
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

// nameDevices reads the names of the HCAs.
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
	s.meter.setNames(names)
}

// nameMissing reads the names again while a series has an HCA without a name.
func (s *Source) nameMissing(ctx context.Context, now time.Time) {
	if now.Sub(s.namedAt) < nameInterval {
		return
	}
	if s.meter.lacksName() {
		s.nameDevices(ctx)
	}
}

// release detaches the hooks and keeps the series. Probes are detached when the Gate does it, at the end of the sensor by shutdown.
func (s *Source) release(reason string) {
	if s.kernel == nil {
		return
	}
	err := s.meter.release(unattached(reason, model.StateAbsent))
	k := s.kernel
	s.kernel = nil
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
	s.waiting, s.retries, s.newContexts, s.last.contexts = nil, nil, nil, nil
	clear(s.retriesOf)
	s.pace = pace{}
}
