// SPDX-License-Identifier: Apache-2.0

// Package intel reads Intel GPUs from the sysfs files of the i915 and xe drivers, and from the fdinfo of processes.
//
// A scrape reads the sensors, clocks and throttle reasons of each GPU: one to three dozen files, in one call for each
// GPU, so that a hung driver affects only the values of its GPU. Processes are listed every Interval in the background.
//
// The utilization of a GPU is not read: only performance counters (PMU) report it, and an open counter keeps the
// driver's module from being unloaded. Files of sysfs, hwmon and fdinfo do not.
//
// A suspended GPU is not woken. A GPU that suspends itself when idle is left alone for longer than it needs to do so,
// because reading delays the suspension.
package intel

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// Options configure a Source.
type Options struct {
	Root   string // root of the node: /
	Sysfs  string // mount point of sysfs: /sys
	Procfs string // mount point of procfs: /proc
	// Interval is how often processes are listed.
	Interval time.Duration
	// CgroupOf returns the cgroup ID of a process; may be nil.
	CgroupOf func(pid int) (model.CgroupID, error)
	// Holders returns the processes that have a device node of a GPU open. It returns false if
	// they are unknown: then all processes are read.
	Holders func() ([]int, bool)
	// Cards are the cards of the node, which sources share. Default: the source lists them itself.
	Cards  *drm.Cards
	Logger *zap.Logger
}

// Source reads the Intel GPUs of the node.
type Source struct {
	o      Options
	all    *drm.Reader
	lister *lister
	stop   context.CancelFunc
	ended  sync.WaitGroup

	mu     sync.Mutex
	cards  []*card
	listed *listing
}

// listing is the list of GPU processes, of the GPUs that were awake.
type listing struct {
	at        time.Time
	processes []model.GPUProcess
	gpus      map[string]bool // by UUID
	err       error
}

const defaultInterval = 5 * time.Second

// New returns a Source. It calls no driver yet.
func New(o Options) (*Source, error) {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Interval <= 0 {
		o.Interval = defaultInterval
	}
	if o.Cards == nil {
		o.Cards = drm.NewCards(o.Sysfs)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Source{o: o, all: o.Cards.Reader(), lister: newLister(o), stop: stop}
	safely.Go(&s.ended, "intel", func() { s.run(ctx) })
	return s, nil
}

// Name returns "intel".
func (s *Source) Name() string { return "intel" }

// Read returns GPUs, GPUDrivers, GPUProcesses and DeviceStates. The error wraps model.ErrAbsent if there is no Intel
// GPU. It waits for the drivers for at most scrapeTimeout.
func (s *Source) Read(ctx context.Context) (model.Snapshot, error) {
	cards, listed := s.discover()
	if len(cards) == 0 {
		return model.Snapshot{}, fmt.Errorf("no GPU with the i915 or xe driver: %w", model.ErrAbsent)
	}
	asked := make([]*hang.Pending[model.GPU], len(cards))
	for i, c := range cards {
		asked[i] = c.start()
	}
	for i := range cards {
		_, _ = asked[i].Wait(ctx)
	}
	snap := model.Snapshot{GPUs: make([]model.GPU, 0, len(cards)), GPUDrivers: drivers(cards, s.o.Sysfs, s.o.Procfs)}
	old := listed != nil && time.Since(listed.at) > 3*s.o.Interval+scrapeTimeout
	for i, c := range cards {
		g, state := c.report(s.Name())
		g.ID, g.Nodes = strconv.Itoa(i), slices.Clone(c.Nodes)
		if g.Unlisted = listed == nil || old || !listed.gpus[g.UUID]; !g.Unlisted {
			g.Listed = listed.at
		}
		snap.GPUs = append(snap.GPUs, g)
		snap.DeviceStates = append(snap.DeviceStates, state)
	}
	if listed == nil {
		return snap, nil
	}
	if !old {
		snap.GPUProcesses = listed.processes
	}
	snap.BoundGPUs()
	processes := model.DeviceState{Source: s.Name(), Device: "processes", State: model.StateFailed}
	switch {
	case old:
		processes.State, processes.Reason = model.StateStuck, "listing processes has not returned"
	case listed.err != nil:
		processes.Reason = listed.err.Error()
	}
	if processes.Reason != "" {
		snap.DeviceStates = append(snap.DeviceStates, processes)
	}
	return snap, nil
}

// report returns the last values and the state of a GPU.
func (c *card) report(source string) (model.GPU, model.DeviceState) {
	g, silent, stuck := c.last(time.Now())
	state := model.DeviceState{Source: source, Device: c.PCIAddress, State: model.StateOK}
	switch {
	case stuck:
		g = stuckGPU(g)
		state.State, state.Reason = model.StateStuck, "the driver does not answer"
	case active(g.Problems, model.ProblemLost):
		state.State, state.Reason = model.StateFailed, "the device is gone"
	case silent != nil:
		state.State, state.Reason = model.StateFailed, "the driver answers no read: "+silent.Error()
	}
	return g, state
}

// discover updates the list of GPUs.
func (s *Source) discover() ([]*card, *listing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	devices := s.devices()
	cards := make([]*card, 0, len(devices))
	for _, p := range devices {
		if i := slices.IndexFunc(s.cards, func(c *card) bool { return c.Equal(p) }); i >= 0 {
			cards = append(cards, s.cards[i])
		} else {
			cards = append(cards, newCard(p, s.o.Root))
		}
	}
	s.cards = cards
	if len(cards) == 0 {
		s.listed = nil // nothing is listed, and the listing is not stuck
	}
	return slices.Clone(cards), s.listed
}

// maxCards is the maximum number of GPUs that are read.
const maxCards = 64

// devices returns the GPUs with an Intel driver by PCI address.
func (s *Source) devices() []drm.Card {
	all, _ := s.all.List() // without an error from source/drm
	return drm.Driven(all, maxCards, "i915", "xe")
}

// run lists processes in the background, every Interval.
func (s *Source) run(ctx context.Context) {
	ticker := time.NewTicker(s.o.Interval)
	defer ticker.Stop()
	var calls hang.Call[*listing]
	var pending *hang.Pending[*listing] // the listing in progress
	var logged string
	for {
		if cards := s.devices(); pending == nil && len(cards) > 0 {
			pending = calls.Start(scrapeTimeout, func() (*listing, error) { return s.list(cards), nil })
		}
		_, _ = pending.Wait(ctx)
		if ctx.Err() != nil {
			return
		}
		if pending.Returned() { // a late listing is used, too
			l, err := pending.Wait(ctx)
			if err != nil {
				l = &listing{at: time.Now(), err: err}
			}
			s.publish(l, &logged)
			pending = nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// list lists the processes of the GPUs that are awake: reading fdinfo wakes a GPU of xe.
func (s *Source) list(cards []drm.Card) *listing {
	l := &listing{at: time.Now(), gpus: map[string]bool{}}
	uuids := map[uint32]string{}
	for _, p := range cards {
		if asleep, _ := sleeps(&drm.Directory{Path: p.Path}); asleep {
			continue
		}
		l.gpus[p.PCIAddress] = true
		for _, minor := range p.Minors {
			uuids[minor] = p.PCIAddress
		}
	}
	l.processes, l.err = s.lister.list(uuids, l.at)
	return l
}

// publish publishes a listing and logs a new error once.
func (s *Source) publish(l *listing, logged *string) {
	s.mu.Lock()
	s.listed = l
	s.mu.Unlock()
	if l.err == nil {
		*logged = ""
	} else if l.err.Error() != *logged {
		*logged = l.err.Error()
		s.o.Logger.Warn("listing the users of GPUs", zap.Error(l.err))
	}
}

// Close stops the background goroutine, except calls that hang in a driver.
func (s *Source) Close() error {
	s.stop()
	s.ended.Wait()
	return nil
}
