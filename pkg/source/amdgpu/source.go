// SPDX-License-Identifier: Apache-2.0

// Package amdgpu reads AMD GPUs from what the kernel shows of them: the sysfs
// files of the amdgpu driver, KFD and the fdinfo of processes.
//
// Each card has a goroutine, which alone asks its driver: a driver that does not
// answer costs the figures of its card. On a scrape it reads gpu_metrics, a binary
// table that has most of what changes, and the sensors of hwmon: six to a dozen
// files. Each Interval it reads the rest (memory, errors, links, limits), and the
// processes are listed right after.
//
// Nothing wakes a GPU that is suspended, and one that goes to sleep by itself is
// left alone for longer than it needs to do so: reading puts that off.
//
// A partitioned accelerator is a GPU with all that is measured once, and its
// partitions after it with their nodes: the first has those of the card.
package amdgpu

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
)

// Options configure a Source.
type Options struct {
	Root   string // of the node: /
	Sysfs  string // where sysfs is mounted: /sys
	Procfs string // /proc
	// Interval is how often processes, and all that is slow to tell, are read.
	Interval time.Duration
	// SMI is the path of amd-smi, which tells what the kernel does not; empty for none.
	SMI string
	// CgroupOf gives the id of the cgroup of a process; nil when nobody knows.
	CgroupOf func(pid int) (uint64, error)
	// Holders gives the processes that have a device node of a GPU open, false while
	// nobody knows: then all processes are looked at.
	Holders func() ([]int, bool)
	Logger  *zap.Logger
}

// Source reads the AMD GPUs of the node.
type Source struct {
	o      Options
	lister *lister
	kfd    *kfd
	smi    *smi
	stop   context.CancelFunc
	ended  sync.WaitGroup
	first  chan struct{} // closed when the background has read all of it once, or nobody waits for that
	begun  sync.Once     // closes it

	mu      sync.Mutex
	cards   []found
	parents map[int]string
	listed  *listing
	closed  bool
}

// found is a card and where it is.
type found struct {
	*card
	place
}

// New makes a Source. It reads nothing yet that a driver could hold up.
func New(o Options) (*Source, error) {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Interval <= 0 {
		o.Interval = defaultInterval
	}
	ctx, stop := context.WithCancel(context.Background())
	s := &Source{o: o, lister: newLister(o), kfd: newKFD(o.Sysfs), stop: stop, first: make(chan struct{})}
	if o.SMI != "" {
		s.smi = newSMI(o.SMI, o.Logger)
		go s.smi.run(ctx, s.awake) // nobody waits for it: it may be one that cannot be ended
	}
	s.ended.Go(func() { s.run(ctx) })
	return s, nil
}

const defaultInterval = 5 * time.Second

// Name returns "amdgpu".
func (s *Source) Name() string { return "amdgpu" }

// Read returns GPUs, GPUDrivers, GPUProcesses and DeviceStates. The error wraps
// model.ErrAbsent where there is no GPU of AMD. It takes no longer than a driver
// is waited for.
func (s *Source) Read(ctx context.Context) (model.Snapshot, error) {
	if len(s.discover()) == 0 {
		return model.Snapshot{}, fmt.Errorf("no GPU with the amdgpu driver: %w", model.ErrAbsent)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	out := wait(ctx, timer, s.first)
	if !out { // not again
		s.begun.Do(func() { close(s.first) })
	}
	cards := s.discover() // with their partitions now
	late := make([]bool, len(cards))
	asked := make([]<-chan struct{}, len(cards))
	for i, c := range cards {
		if late[i] = c.overdue(time.Now()); !late[i] {
			asked[i] = c.ask(quickly)
		}
	}
	for i := range cards {
		if !late[i] {
			late[i] = !wait(ctx, timer, asked[i])
		}
	}
	if !out { // what hangs is not stuck before it had its time
		for i, c := range cards {
			late[i] = c.overdue(time.Now()) || !c.last().read
		}
	}
	for i, c := range cards {
		if late[i] {
			c.giveUp()
		}
	}
	s.mu.Lock()
	listed := s.listed
	s.mu.Unlock()
	return s.snapshot(cards, late, listed), nil
}

// wait waits until done is closed or there is no time left.
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
		GPUs: make([]model.GPU, 0, len(cards)), GPUDrivers: driver(s.o.Sysfs, s.o.Procfs),
		DeviceStates: make([]model.DeviceState, 0, len(cards)),
	}
	old := listed != nil && time.Since(listed.at) > 3*s.o.Interval+patience
	for i, c := range cards {
		st := c.last()
		stuck := late[i] && c.stuck(time.Now())
		if stuck {
			st = state{gpu: stuckGPU(st.gpu)}
		}
		state := model.DeviceState{Source: s.Name(), Device: c.address, State: model.StateOK}
		switch {
		case stuck:
			state.State, state.Reason = model.StateStuck, "the driver does not answer"
		case active(st.gpu.Problems, model.ProblemLost):
			state.State, state.Reason = model.StateFailed, "the device is gone"
		case st.err != nil:
			state.State, state.Reason = model.StateUnsupported, st.err.Error()
		}
		snap.DeviceStates = append(snap.DeviceStates, state)
		g := st.gpu
		if s.smi != nil && !stuck && !g.Suspended {
			s.smi.merge(&g)
		}
		for _, g := range divide(g, st.partitions, c.place, strconv.Itoa(i)) {
			if !old {
				listed.measured(&g)
			}
			g.Unlisted = listed == nil || old || listed.misses(g.UUID)
			snap.GPUs = append(snap.GPUs, g)
		}
	}
	if listed != nil {
		if old {
			snap.DeviceStates = append(snap.DeviceStates, model.DeviceState{
				Source: s.Name(), Device: "processes", State: model.StateStuck,
				Reason: "listing processes has not come back",
			})
		} else {
			snap.GPUProcesses = listed.processes
			if listed.err != nil {
				snap.DeviceStates = append(snap.DeviceStates, model.DeviceState{
					Source: s.Name(), Device: "processes", State: model.StateFailed, Reason: listed.err.Error(),
				})
			}
		}
	}
	return snap
}

// stuckGPU is what there is to tell of a GPU whose driver does not answer.
func stuckGPU(g model.GPU) model.GPU {
	return model.GPU{
		Vendor: g.Vendor, UUID: g.UUID, Name: g.Name, Serial: g.Serial, PCIAddress: g.PCIAddress, PCIDevice: g.PCIDevice,
		NUMANode: g.NUMANode, VBIOS: g.VBIOS, Problems: []model.GPUCondition{{Name: model.ProblemStuck, Active: true}},
	}
}

// divide gives the GPU its number and nodes, or its partitions after it: these have
// the nodes then, and are what processes use.
func divide(g model.GPU, activity []partitionActivity, p place, id string) []model.GPU {
	g.ID = id
	if len(p.partitions) == 0 {
		g.Nodes = p.nodes
		return []model.GPU{g}
	}
	gpus := []model.GPU{g}
	for i, nodes := range slices.Concat([][]string{p.nodes}, p.partitions) {
		n := strconv.Itoa(i)
		part := model.GPU{
			Vendor: g.Vendor, ID: id + ":" + n, UUID: g.UUID + ":" + n, Parent: g.UUID, Name: g.Name, Serial: g.Serial,
			PCIAddress: g.PCIAddress, PCIDevice: g.PCIDevice, NUMANode: g.NUMANode, VBIOS: g.VBIOS, Nodes: nodes,
			Profile: g.Profile, Suspended: g.Suspended,
		}
		if i < len(activity) && !g.Suspended {
			part.Utilization = activity[i].gfx
			part.Engines = put(put(nil, "gfx", activity[i].gfx), "video", activity[i].video)
		}
		gpus = append(gpus, part)
	}
	return gpus
}

// Close ends what runs in the background, but for what a driver holds up.
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
