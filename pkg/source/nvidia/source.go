// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/gpuuse"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/nvidia/nvml" // makes this program the child if it is started as one
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

const (
	// firstTimeout is how long after New a Read waits for the first attempt to open the library.
	firstTimeout = time.Second
	// closeTimeout is the maximum duration of Close.
	closeTimeout = 1500 * time.Millisecond
	// longestPoll is the maximum time between looks at the GPUs in sysfs while the library is open.
	longestPoll = time.Second
	// defaultInterval is used if Options has no Interval.
	defaultInterval = 5 * time.Second
	// Opening the library is retried after a second, then after twice the previous pause, up to a minute.
	shortestPause = time.Second
	longestPause  = time.Minute
)

var (
	errOpening = errors.New("opening NVML")
	errChanged = errors.New("the driver's GPUs changed")
)

// Source reads the NVIDIA GPUs of the node.
type Source struct {
	o        Options
	open     func(context.Context, start) (session, error)
	xids     *wire.XIDs
	nodes    missingNodes
	manager  fabricManager
	children children
	uses     gpuuse.Table
	hangs    hangs
	reader   instanceReader
	again    chan struct{} // wakes the keeper
	ready    chan struct{} // closed after the first attempt of the keeper
	created  time.Time
	stop     chan struct{}
	done     chan struct{}
	once     sync.Once

	// Used by the keeper: the earliest time to open the library, the pause after that, the devices since the driver was loaded, and the
	// addresses of the session.
	earliest  time.Time
	pause     time.Duration
	shortest  time.Duration
	before    map[string]wire.KnownDevice
	loaded    time.Time // when the driver was loaded again
	operator  bool      // an operator has reset GPUs since the last session
	addresses []string

	mu       sync.Mutex
	session  session            // nil while the library is not open
	err      error              // why session is nil
	reopen   error              // why the session must be replaced
	known    []model.GPU        // identities of the devices, while session is nil
	released *release           // nil if the library may be open
	cancel   context.CancelFunc // ends the attempt to open the library
}

// New returns a Source and looks for the driver in the background. In a build without cgo the error wraps
// model.ErrUnsupported, or model.ErrAbsent if there is no NVIDIA driver.
func New(o Options) (*Source, error) {
	if nvml.Available {
		return newSource(o, openRemote, shortestPause), nil
	}
	if _, err := os.Stat(filepath.Join(o.Procfs, "driver/nvidia/version")); err != nil && o.Library == "" {
		return nil, fmt.Errorf("no NVIDIA driver is loaded: %w", model.ErrAbsent)
	}
	return nil, fmt.Errorf("built without cgo, which NVML needs (CGO_ENABLED=1): %w", model.ErrUnsupported)
}

func newSource(o Options, open func(context.Context, start) (session, error), shortest time.Duration) *Source {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Interval <= 0 {
		o.Interval = defaultInterval
	}
	if o.hangLimit == 0 {
		o.hangLimit = hangLimit
	}
	if o.Library == "" {
		o.Library = platformLibrary(o.Root)
	}
	s := &Source{
		o: o, open: open, xids: wire.NewXIDs(), nodes: newMissingNodes("/dev", o.Procfs),
		manager: fabricManager{sysfs: o.Sysfs, procfs: o.Procfs}, shortest: shortest, err: errOpening, cancel: func() {},
		children: children{ends: map[string]uint64{}}, created: time.Now(),
		again: make(chan struct{}, 1), ready: make(chan struct{}), stop: make(chan struct{}), done: make(chan struct{}),
	}
	s.hangs = hangs{children: &s.children, firstFault: o.FirstFault, limit: o.hangLimit, devices: map[string]hungDevice{}}
	go safely.Do("nvidia", s.keep)
	return s
}

// Name returns "nvidia".
func (s *Source) Name() string { return "nvidia" }

// Forget drops the uses of cgroups.
func (s *Source) Forget(ids []model.CgroupID) { s.uses.Forget(ids) }

// keep opens the library, and reopens it when necessary, until Close.
func (s *Source) keep() {
	defer close(s.done)
	defer s.tearDown()
	for {
		timer := time.NewTimer(s.maintain())
		s.once.Do(func() { close(s.ready) })
		select {
		case <-timer.C:
		case <-s.again:
		case <-s.stop:
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// maintain opens the library if there is a GPU, reopens it when necessary, and returns the time until the next call.
func (s *Source) maintain() time.Duration {
	// A GPU is unbound from the driver only after the library is closed. The kernel removes it
	// from sysfs first.
	poll := min(s.o.Interval, longestPoll)
	if s.stayReleased() {
		return poll
	}
	missing := s.nodes.create()
	addresses, there := bound(s.o.Sysfs)
	s.mu.Lock()
	current, why := s.session, s.reopen
	s.mu.Unlock()
	if current != nil {
		if why == nil && slices.Equal(addresses, s.addresses) {
			current.tend()
			s.manager.look(time.Now())
			if split := current.split(); len(split) > 0 {
				s.reader.begin(s.start(split, wire.OneRound), s.open)
			}
			return poll
		}
		if why == nil {
			why = fmt.Errorf("%w from %v to %v", errChanged, s.addresses, addresses)
		}
		ended := errors.Is(why, errEnded) || errors.Is(why, errHung)
		if wait := time.Until(s.earliest); wait > 0 && !ended && len(addresses) > 0 {
			return min(wait, poll)
		}
		s.tearDown()
		s.failed(why)
		s.o.Logger.Info("reopening NVML", zap.Error(why))
	}
	switch {
	case there && len(addresses) == 0:
		s.unloaded()
		s.set(nil, fmt.Errorf("no GPU is bound to the NVIDIA driver: %w", model.ErrAbsent))
		return s.o.Interval
	case !there && s.o.Library == "" && wire.Attribute(filepath.Join(s.o.Procfs, "driver/nvidia/version")) == "":
		s.unloaded()
		s.set(nil, fmt.Errorf("no NVIDIA driver is loaded: %w", model.ErrAbsent))
		return s.o.Interval
	}
	if wait := time.Until(s.earliest); wait > 0 {
		return min(wait, poll)
	}
	s.backOff(time.Now())
	switch err := s.openSession(addresses); {
	case err == nil:
		return poll
	case errors.Is(err, context.Canceled): // by Release or Close
		s.earliest = time.Time{}
		return 0
	default:
		s.failed(err)
		err = errors.Join(err, missing)
		s.logOnce(err)
		s.set(nil, err)
		return min(time.Until(s.earliest), poll)
	}
}

// start returns the parameters of a session of these devices.
func (s *Source) start(addresses []string, i wire.Instances) start {
	return start{
		Start: wire.Start{
			Options: s.o.Options, Addresses: addresses, Before: s.before, Loaded: s.loaded, Operator: s.operator,
			Skip: s.hangs.skip(time.Now()), HangLimit: s.o.hangLimit, Instances: i,
		},
		logger: s.o.Logger, xids: s.xids, notify: s.wake, cgroupOf: s.o.CgroupOf, children: &s.children, uses: &s.uses,
	}
}

// openSession opens the library in a new session. Release and Close end the attempt.
func (s *Source) openSession(addresses []string) error {
	if n := len(s.children.remaining()); n >= maxStuck {
		return fmt.Errorf("%d %w", n, errRemaining)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.mu.Lock()
	s.cancel = cancel
	released := s.released != nil
	s.mu.Unlock()
	select {
	case <-s.stop:
		return context.Canceled
	default:
	}
	if released {
		return context.Canceled
	}
	s.children.begin()
	session, err := s.open(ctx, s.start(addresses, wire.WithGPU))
	if err != nil {
		return err
	}
	s.addresses, s.operator = addresses, false
	s.set(session, nil)
	return nil
}

// unloaded forgets the devices: the driver was unloaded, or will be loaded again.
func (s *Source) unloaded() {
	if s.before != nil {
		s.before, s.loaded = nil, time.Now()
	}
}

// backOff sets the earliest time of the next attempt. The pause grows if attempts follow each other quickly.
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
	if (s.err == nil || s.err.Error() != err.Error()) && !errors.Is(err, model.ErrAbsent) {
		s.o.Logger.Warn("cannot open NVML", zap.Error(err))
	}
}

func (s *Source) set(current session, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.session, s.err, s.reopen, s.known = current, err, nil, identities(s.before)
}

// identities returns the devices by their addresses.
func identities(known map[string]wire.KnownDevice) []model.GPU {
	gpus := make([]model.GPU, 0, len(known))
	for _, key := range slices.Sorted(maps.Keys(known)) {
		gpus = append(gpus, known[key].GPU)
	}
	return gpus
}

// wake is called by a device that answered for the first time, or with a reason to reopen the library.
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

func (s *Source) tearDown() {
	s.mu.Lock()
	current := s.session
	s.mu.Unlock()
	s.reader.stop()
	if current == nil {
		return
	}
	current.end()
	s.mu.Lock()
	why := s.reopen
	s.mu.Unlock()
	if s.before = current.known(); why != nil && !errors.Is(why, errEnded) && !errors.Is(why, errHung) && !errors.Is(why, errChanged) {
		s.unloaded()
	}
	reopening := errors.New("reopening NVML")
	if why != nil {
		reopening = fmt.Errorf("%w: %w", reopening, why)
	}
	s.set(nil, reopening)
}

// failed counts the unexpected end of a session.
func (s *Source) failed(why error) {
	s.children.ended(why)
	var hung *hungError
	if errors.As(why, &hung) && len(hung.keys) > 0 {
		s.hangs.ended(hung, s.before)
	}
}

// Read returns GPUs, GPUDrivers, GPUProcesses, DeviceStates, FabricManager on a node with NVSwitches and, once there was a driver,
// Children. The error wraps model.ErrAbsent without a GPU, and model.ErrReleased after Release. With an error, GPUs have only their
// identity and their XIDs.
func (s *Source) Read(ctx context.Context) (model.Snapshot, error) {
	first := time.NewTimer(time.Until(s.created.Add(firstTimeout)))
	defer first.Stop()
	select {
	case <-s.ready:
	case <-first.C:
	case <-ctx.Done():
	}
	s.mu.Lock()
	current, err, known := s.session, s.err, s.known
	s.mu.Unlock()
	var snapshot model.Snapshot
	if current != nil {
		snapshot, err = current.read(ctx)
		if err != nil {
			known = identities(current.known())
		}
	}
	if current != nil {
		s.reader.add(&snapshot, s.xids, s.o.hangLimit)
		s.manager.inFabric.Store(slices.ContainsFunc(snapshot.GPUs, func(g model.GPU) bool { return g.Fabric != "" }))
		snapshot.FabricManager = s.manager.facts.Load()
	}
	if err != nil && snapshot.GPUs == nil {
		for _, g := range known {
			g.Unlisted, g.XIDs = true, s.xids.OfGPU(&g)
			snapshot.GPUs = append(snapshot.GPUs, g)
		}
		s.hangs.unopened(&snapshot, err)
	} else {
		s.excuse(&snapshot)
		s.hangs.block(&snapshot)
	}
	snapshot.Children = s.children.facts()
	return snapshot, err
}

// Close closes NVML. It abandons a call that hangs.
func (s *Source) Close() error {
	close(s.stop)
	s.mu.Lock()
	s.cancel()
	s.mu.Unlock()
	select {
	case <-s.done:
	case <-time.After(closeTimeout):
		s.o.Logger.Warn("abandoning a call into NVML that has not returned")
	}
	return nil
}
