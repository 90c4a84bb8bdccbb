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

	listings drm.Lister[map[string]bool]
	meter    drm.Meter

	mu    sync.Mutex
	cards []*card
}

// listing is the list of GPU processes, with the UUIDs of the GPUs that were awake.
type listing = drm.Listing[map[string]bool]

// New returns a Source. It calls no driver yet.
func New(o Options) (*Source, error) {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Interval <= 0 {
		o.Interval = drm.DefaultInterval
	}
	if o.Cards == nil {
		o.Cards = drm.NewCards(o.Sysfs, nil)
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Source{o: o, all: o.Cards.Reader(), lister: newLister(o), stop: stop}
	s.listings.Interval, s.listings.Logger = o.Interval, o.Logger
	safely.Go(&s.ended, "intel", func() {
		s.listings.Run(ctx, func(context.Context) func() *listing { return s.prepare() }, func() {})
	})
	return s, nil
}

// Name returns "intel".
func (s *Source) Name() string { return "intel" }

// Forget drops the uses of cgroups.
func (s *Source) Forget(ids []model.CgroupID) { s.meter.Forget(ids) }

// Read returns GPUs, GPUDrivers, GPUProcesses, GPUUses and DeviceStates. The error wraps model.ErrAbsent if there is no Intel
// GPU. It waits for the drivers for at most drm.ScrapeTimeout.
func (s *Source) Read(ctx context.Context) (model.Snapshot, error) {
	cards := s.discover()
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
	listed := s.listings.Last()
	old := listed.Old(s.o.Interval)
	for i, c := range cards {
		g, state := c.calls.Last(s.Name(), c.PCIAddress, time.Now())
		g.ID, g.Nodes = strconv.Itoa(i), slices.Clone(c.Nodes)
		if g.Unlisted = listed == nil || old || !listed.GPUs[g.UUID]; !g.Unlisted {
			g.Listed = listed.At
		}
		snap.GPUs = append(snap.GPUs, g)
		snap.DeviceStates = append(snap.DeviceStates, state)
	}
	listed.Add(&snap, s.Name(), old)
	snap.GPUUses = s.meter.Facts()
	return snap, nil
}

// discover updates the list of GPUs.
func (s *Source) discover() []*card {
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
		s.listings.Forget()
	}
	return slices.Clone(cards)
}

// maxCards is the maximum number of GPUs that are read.
const maxCards = 64

// devices returns the GPUs with an Intel driver by PCI address.
func (s *Source) devices() []drm.Card {
	all, _ := s.all.List() // without an error from source/drm
	return drm.Driven(all, maxCards, "i915", "xe")
}

// prepare returns what lists the processes of the GPUs that are awake: reading fdinfo wakes a GPU of xe.
func (s *Source) prepare() func() *listing {
	cards := s.devices()
	if len(cards) == 0 {
		return nil
	}
	return func() *listing {
		l := &listing{At: time.Now(), GPUs: map[string]bool{}}
		uuids := map[uint32]string{}
		for _, c := range cards {
			if drm.ReadPower(&drm.Directory{Path: c.Path}).Asleep {
				continue
			}
			l.GPUs[c.PCIAddress] = true
			for _, minor := range c.Minors {
				uuids[minor] = c.PCIAddress
			}
		}
		l.Processes, l.Err = s.lister.list(uuids, l.At)
		awake := make([]model.GPU, 0, len(l.GPUs))
		for uuid := range l.GPUs {
			awake = append(awake, model.GPU{UUID: uuid})
		}
		s.meter.Add(l.At, s.o.Interval, awake, l.Processes, l.Err, busiest)
		return l
	}
}

// Close stops the background goroutine, except calls that hang in a driver.
func (s *Source) Close() error {
	s.stop()
	s.ended.Wait()
	return nil
}
