// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
)

const (
	// readTimeout is the maximum duration of Read for all devices together, and of Close for
	// calls in progress.
	readTimeout = 500 * time.Millisecond
	// defaultInterval is used if Options has no Interval.
	defaultInterval = 5 * time.Second
	// Opening the library is retried after one second, then after twice the previous pause, up
	// to a minute.
	shortestPause = time.Second
	longestPause  = time.Minute
)

// Source reads the NVIDIA GPUs of the node.
type Source struct {
	o     Options
	open  func(Options) (*library, error)
	xids  *xids
	nodes missingNodes
	again chan struct{} // wakes the keeper
	ready chan struct{} // closed after the first attempt of the keeper
	stop  chan struct{}
	done  chan struct{}
	once  sync.Once

	// Used by the keeper: the earliest time to open the library, the pause after that, and the
	// devices since the driver was loaded.
	earliest time.Time
	pause    time.Duration
	shortest time.Duration
	before   map[string]knownDevice

	mu      sync.Mutex
	session *session // nil while the library is not open
	err     error    // why session is nil
	reopen  error    // why the session must be replaced
}

// New returns a Source and looks for the driver in the background. The error wraps
// model.ErrUnsupported in a build without cgo.
func New(o Options) (*Source, error) {
	return newSource(o, openLibrary, shortestPause), nil
}

func newSource(o Options, open func(Options) (*library, error), shortest time.Duration) *Source {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Interval <= 0 {
		o.Interval = defaultInterval
	}
	s := &Source{
		o: o, open: open, xids: newXIDs(), nodes: newMissingNodes("/dev", o.Procfs), shortest: shortest, err: errors.New("opening NVML"),
		again: make(chan struct{}, 1), ready: make(chan struct{}), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go s.keep()
	return s
}

// Name returns "nvidia".
func (s *Source) Name() string { return "nvidia" }

// keep opens the library, and reopens it when necessary, until Close.
func (s *Source) keep() {
	defer close(s.done)
	for {
		timer := time.NewTimer(s.maintain())
		s.once.Do(func() { close(s.ready) })
		select {
		case <-timer.C:
		case <-s.again:
		case <-s.stop:
			timer.Stop()
			s.tearDown()
			return
		}
		timer.Stop()
	}
}

// maintain opens the library if there is a driver and reopens it when necessary. It returns
// the time until the next call.
func (s *Source) maintain() time.Duration {
	missing := s.nodes.create()
	addresses, there := bound(s.o.Sysfs)
	s.mu.Lock()
	current, why := s.session, s.reopen
	s.mu.Unlock()
	if current != nil {
		if why == nil && slices.Equal(addresses, current.addresses) {
			current.watch(s.xids)
			return s.o.Interval
		}
		if why == nil {
			why = fmt.Errorf("the driver's GPUs changed from %v to %v", current.addresses, addresses)
		}
		if wait := time.Until(s.earliest); wait > 0 {
			return wait
		}
		if !s.tearDown() {
			return s.o.Interval // a call has not returned: the library must stay open
		}
		s.o.Logger.Info("reopening NVML", zap.Error(why))
	}
	o := s.o
	if o.Library == "" {
		o.Library = platformLibrary(o.Root)
	}
	if !there && o.Library == "" && attribute(filepath.Join(s.o.Procfs, "driver/nvidia/version")) == "" {
		s.before = nil
		s.set(nil, fmt.Errorf("no NVIDIA driver is loaded: %w", model.ErrAbsent))
		return s.o.Interval
	}
	if wait := time.Until(s.earliest); wait > 0 {
		return wait
	}
	s.backOff(time.Now())
	l, err := s.open(o)
	if err != nil {
		err = model.WithReason(errors.Join(err, missing), model.ErrLibrary)
		s.logOnce(err)
		s.set(nil, err)
		return time.Until(s.earliest)
	}
	s.set(newSession(s.o, l, addresses, s.before, s.xids, s.wake), nil)
	return s.o.Interval
}

// backOff sets the earliest time of the next attempt. The pause grows if attempts follow each
// other quickly.
func (s *Source) backOff(now time.Time) {
	if now.Sub(s.earliest) > longestPause {
		s.pause = 0
	}
	s.pause = min(max(s.shortest, 2*s.pause), longestPause)
	s.earliest = now.Add(s.pause)
}

// logOnce logs a failure once.
func (s *Source) logOnce(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil || s.err.Error() != err.Error() {
		s.o.Logger.Warn("cannot open NVML", zap.Error(err))
	}
}

func (s *Source) set(current *session, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session, s.err, s.reopen = current, err, nil
}

// wake is called by a device that has answered for the first time, or with a reason to reopen
// the library.
func (s *Source) wake(why error) {
	if why != nil {
		s.mu.Lock()
		s.reopen = why
		s.mu.Unlock()
	}
	select {
	case s.again <- struct{}{}:
	default:
	}
}

// tearDown ends the session, unless one of its calls hangs.
func (s *Source) tearDown() bool {
	s.mu.Lock()
	current := s.session
	s.mu.Unlock()
	if current == nil {
		return true
	}
	if !current.end() {
		return false
	}
	s.mu.Lock()
	reloaded := s.reopen != nil
	s.mu.Unlock()
	if s.before = nil; !reloaded {
		s.before = current.identities()
	}
	s.set(nil, errors.New("reopening NVML"))
	return true
}

// Read returns GPUs, GPUDrivers, GPUProcesses and DeviceStates. The error wraps
// model.ErrAbsent if there is no NVIDIA driver.
func (s *Source) Read(ctx context.Context) (model.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	select {
	case <-s.ready:
	case <-ctx.Done():
	}
	s.mu.Lock()
	current, err := s.session, s.err
	s.mu.Unlock()
	if current == nil {
		return model.Snapshot{}, err
	}
	return current.read(ctx), nil
}

// Close closes NVML, unless a call into it hangs: then that call is abandoned.
func (s *Source) Close() error {
	close(s.stop)
	select {
	case <-s.done:
	case <-time.After(2 * readTimeout):
		s.o.Logger.Warn("abandoning a call into NVML that has not returned")
	}
	return nil
}
