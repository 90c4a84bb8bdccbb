// SPDX-License-Identifier: Apache-2.0

// Package amdgpu reads AMD GPUs from the sysfs files of the amdgpu driver, from KFD and from
// the fdinfo of processes.
//
// Each card has a goroutine, which makes all calls into its driver: a hung driver affects only
// the values of its card. A scrape reads gpu_metrics, a binary table with most changing
// values, and the hwmon sensors: six to a dozen files. The other values (memory, errors,
// links, limits) are read every Interval, directly followed by the list of processes.
//
// A suspended GPU is not woken. A GPU that suspends itself when idle is left alone for longer
// than it needs to do so, because reading delays the suspension.
//
// A partitioned accelerator is listed as a GPU with all values, followed by its partitions
// with their nodes: the first partition has the nodes of the card.
package amdgpu

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
)

// Options configure a Source.
type Options struct {
	Root   string // root of the node: /
	Sysfs  string // mount point of sysfs: /sys
	Procfs string // mount point of procfs: /proc
	// Interval is how often processes and other slow values are read.
	Interval time.Duration
	// SMI is the path of amd-smi, which fills in values that the kernel lacks; empty for none.
	SMI string
	// CgroupOf returns the cgroup ID of a process; may be nil.
	CgroupOf func(pid int) (model.CgroupID, error)
	// Holders returns the processes that have a device node of a GPU open. It returns false if
	// they are unknown: then all processes are read.
	Holders func() ([]int, bool)
	// Cards are the cards of the node, which sources share. Default: the source lists them itself.
	Cards  *drm.Cards
	Logger *zap.Logger
}

// Source reads the AMD GPUs of the node.
type Source struct {
	o      Options
	all    *drm.Reader
	lister *lister
	kfd    *kfd
	smi    *smi
	stop   context.CancelFunc
	ended  sync.WaitGroup
	first  chan struct{} // closed after the first full read, or when a Read stopped waiting for it
	begun  sync.Once     // closes first

	listings drm.Lister[measured]
	meter    drm.Meter

	mu      sync.Mutex
	cards   []found
	parents map[int]string
	closed  bool
}

// found is a card and its location.
type found struct {
	*card
	place
}

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
	s := &Source{o: o, all: o.Cards.Reader(), lister: newLister(o), kfd: newKFD(o.Sysfs), stop: stop, first: make(chan struct{})}
	s.listings.Interval, s.listings.Logger = o.Interval, o.Logger
	if o.SMI != "" {
		s.smi = newSMI(o.SMI, o.Logger)
		go safely.Do("amdgpu", func() { s.smi.run(ctx, s.awake) }) // not waited for: amd-smi may be unkillable
	}
	safely.Go(&s.ended, "amdgpu", func() { s.listings.Run(ctx, s.prepare, s.begin) })
	return s, nil
}

// Name returns "amdgpu".
func (s *Source) Name() string { return "amdgpu" }

// Forget drops the uses of cgroups.
func (s *Source) Forget(ids []model.CgroupID) { s.meter.Forget(ids) }

// Read returns GPUs, GPUDrivers, GPUProcesses, GPUUses and DeviceStates. The error wraps
// model.ErrAbsent if there is no AMD GPU. It waits for the drivers for at most drm.ScrapeTimeout.
func (s *Source) Read(ctx context.Context) (model.Snapshot, error) {
	all, _ := s.all.List() // without an error from source/drm
	if len(s.discover(all)) == 0 {
		return model.Snapshot{}, fmt.Errorf("no GPU with the amdgpu driver: %w", model.ErrAbsent)
	}
	timer := time.NewTimer(drm.ScrapeTimeout)
	defer timer.Stop()
	out := wait(ctx, timer, s.first)
	if !out { // do not wait again
		s.begin()
	}
	cards := s.discover(all) // partitions are known now
	late := make([]bool, len(cards))
	asked := make([]<-chan struct{}, len(cards))
	for i, c := range cards {
		if late[i] = c.overdue(time.Now()); !late[i] {
			asked[i] = c.ask(quick)
		}
	}
	for i := range cards {
		if !late[i] {
			late[i] = !wait(ctx, timer, asked[i])
		}
	}
	for i, c := range cards {
		if !out { // a hung card is late even if it is not stuck yet
			late[i] = c.overdue(time.Now()) || !c.last().read
		}
		if late[i] {
			c.giveUp()
		}
	}
	return s.snapshot(cards, late, s.listings.Last()), nil
}

func (s *Source) begin() { s.begun.Do(func() { close(s.first) }) }

// wait waits until done is closed or the time is up.
func wait(ctx context.Context, timer *time.Timer, done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
	}
	select {
	case <-done:
		return true
	case <-timer.C:
		timer.Reset(0) // for the others
	case <-ctx.Done():
	}
	return false
}

func (s *Source) snapshot(cards []found, late []bool, listed *listing) model.Snapshot {
	snap := model.Snapshot{
		GPUs:         make([]model.GPU, 0, len(cards)),
		GPUDrivers:   []model.GPUDriver{{Vendor: model.AMD, Version: drm.DriverVersion(s.o.Sysfs, s.o.Procfs, "amdgpu")}},
		DeviceStates: make([]model.DeviceState, 0, len(cards)),
	}
	old := listed.Old(s.o.Interval)
	for i, c := range cards {
		st := c.last()
		stuck := late[i] && c.stuck(time.Now())
		if stuck {
			st = state{gpu: drm.StuckGPU(st.gpu)}
		}
		ds := drm.State(s.Name(), c.PCIAddress, st.gpu, stuck, st.silent)
		if ds.State == model.StateOK && st.err != nil {
			ds.State, ds.Reason = model.StateUnsupported, st.err.Error()
		}
		snap.DeviceStates = append(snap.DeviceStates, ds)
		g := st.gpu
		if s.smi != nil && !stuck && !g.Suspended {
			s.smi.merge(&g)
		}
		for _, g := range divide(g, st.partitions, c.place, strconv.Itoa(i)) {
			g.Unlisted = listed == nil || old
			if !old {
				measure(&g, listed)
			}
			if listed != nil {
				if !stuck && !g.Suspended {
					listed.GPUs.pools.apply(&g)
				}
				_, known := listed.GPUs.gpus[g.UUID]
				g.Unlisted = g.Unlisted || !known // it did not exist then
			}
			snap.GPUs = append(snap.GPUs, g)
		}
	}
	listed.Add(&snap, s.Name(), old)
	snap.GPUUses = s.meter.Facts()
	return snap
}

// divide sets the number and nodes of the GPU, or appends its partitions: then these have the
// nodes, and processes use them.
func divide(g model.GPU, activity []partitionActivity, p place, id string) []model.GPU {
	g.ID = id
	if len(p.partitions) == 0 {
		g.Nodes = slices.Clone(p.Nodes)
		return []model.GPU{g}
	}
	gpus := []model.GPU{g}
	for i, nodes := range slices.Concat([][]string{p.Nodes}, p.partitions) {
		n := strconv.Itoa(i)
		part := model.GPU{
			Vendor: g.Vendor, ID: id + ":" + n, UUID: g.UUID + ":" + n, Parent: g.UUID, Name: g.Name, Serial: g.Serial,
			PCIAddress: g.PCIAddress, PCIDevice: g.PCIDevice, NUMANode: g.NUMANode, VBIOS: g.VBIOS, Nodes: slices.Clone(nodes),
			Profile: g.Profile, Suspended: g.Suspended, UsesGTT: g.UsesGTT,
		}
		if i < len(activity) && !g.Suspended {
			part.Utilization = activity[i].gfx
			part.Engines = drm.Put(drm.Put(drm.Put(nil, "gfx", activity[i].gfx), "video", activity[i].video), engineJPEG, activity[i].jpeg)
		}
		gpus = append(gpus, part)
	}
	return gpus
}

// Close stops the background goroutines, except calls that hang in a driver.
func (s *Source) Close() error {
	s.stop()
	s.mu.Lock()
	cards := s.cards
	s.cards, s.closed = nil, true
	s.mu.Unlock()
	for _, c := range cards {
		c.stop()
	}
	s.ended.Wait()
	return nil
}
