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
	// patience is how long Read waits, for all devices together, and Close for what
	// is under way.
	patience = 500 * time.Millisecond
	// defaultInterval is that of Options without one.
	defaultInterval = 5 * time.Second
	// A library that cannot be opened is tried again after one second, then after
	// twice as long each time, up to a minute.
	shortestPause = time.Second
	longestPause  = time.Minute
)

// Source reads the NVIDIA GPUs of the node.
type Source struct {
	o     Options
	open  func(Options) (*library, error)
	xids  *xids
	again chan struct{} // wakes the keeper
	ready chan struct{} // closed when the keeper has looked once
	stop  chan struct{}
	done  chan struct{}
	once  sync.Once

	// Of the keeper: when it opens the library at the earliest, how long it pauses
	// after that, and who was there since the driver was loaded.
	earliest time.Time
	pause    time.Duration
	shortest time.Duration
	before   map[string]acquaintance

	mu      sync.Mutex
	session *session // nil while the library is not open
	err     error    // why
	reopen  error    // why the session is of no use any more
}

// New makes a Source, which looks for the driver in the background. The error wraps
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
		o: o, open: open, xids: newXIDs(), shortest: shortest, err: errors.New("NVML is being opened"),
		again: make(chan struct{}, 1), ready: make(chan struct{}), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go s.keep()
	return s
}

// Name returns "nvidia".
func (s *Source) Name() string { return "nvidia" }

// keep opens the library and keeps it fit, until Close.
func (s *Source) keep() {
	defer close(s.done)
	for {
		timer := time.NewTimer(s.tend())
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

// tend opens the library when there is a driver, and again when it has to be. It
// returns when to look again.
func (s *Source) tend() time.Duration {
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
			why = fmt.Errorf("the driver had the GPUs %v and has %v", current.addresses, addresses)
		}
		if wait := time.Until(s.earliest); wait > 0 {
			return wait
		}
		if !s.tearDown() {
			return s.o.Interval // a call has not returned: nobody may close the library below it
		}
		s.o.Logger.Info("NVML is opened again", zap.Error(why))
	}
	if !there && s.o.Library == "" && attribute(filepath.Join(s.o.Procfs, "driver/nvidia/version")) == "" {
		s.before = nil
		s.set(nil, fmt.Errorf("no NVIDIA driver is loaded: %w", model.ErrAbsent))
		return s.o.Interval
	}
	if wait := time.Until(s.earliest); wait > 0 {
		return wait
	}
	s.backOff(time.Now())
	l, err := s.open(s.o)
	if err != nil {
		err = model.WithReason(err, model.ErrLibrary)
		s.tell(err)
		s.set(nil, err)
		return time.Until(s.earliest)
	}
	s.set(newSession(s.o, l, addresses, s.before, s.xids, s.wake), nil)
	return s.o.Interval
}

// backOff has the next opening wait: the longer, the sooner it comes after this one.
func (s *Source) backOff(now time.Time) {
	if now.Sub(s.earliest) > longestPause {
		s.pause = 0
	}
	s.pause = min(max(s.shortest, 2*s.pause), longestPause)
	s.earliest = now.Add(s.pause)
}

// tell logs a failure once.
func (s *Source) tell(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil || s.err.Error() != err.Error() {
		s.o.Logger.Warn("NVML cannot be opened", zap.Error(err))
	}
}

func (s *Source) set(current *session, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session, s.err, s.reopen = current, err, nil
}

// wake is what a device calls when it has been found, and with a reason when the
// library is of no use any more.
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

// tearDown ends the session, if no call of it hangs.
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
	s.set(nil, errors.New("NVML is being opened again"))
	return true
}

// Read returns GPUs, GPUDrivers, GPUProcesses and DeviceStates. The error wraps
// model.ErrAbsent where there is no NVIDIA driver.
func (s *Source) Read(ctx context.Context) (model.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
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

// Close gives NVML back, unless a call into it hangs: that one is left behind.
func (s *Source) Close() error {
	close(s.stop)
	select {
	case <-s.done:
	case <-time.After(2 * patience):
		s.o.Logger.Warn("a call into NVML has not returned and is left behind")
	}
	return nil
}
