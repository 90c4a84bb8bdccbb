// SPDX-License-Identifier: Apache-2.0

// Package collective counts, by communicator, rank and operation, what processes launch with NCCL and RCCL. It attaches uprobes at the
// entry of the public functions in the libraries that processes with an open GPU have mapped, or in programs and libraries that contain
// them and have symbols. It is disabled by default.
//
// The program (bpf/collective.bpf.c) counts by process, communicator and operation. Package library probes the functions. members.go bounds
// what is listed.
package collective

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
	"github.com/accelscope/accelscope/pkg/source/library"
)

// Options configure a Source. The map has the communicators of the node, each rank counted.
type Options struct {
	library.Options
	// KeyFile has the key of the hashes of communicators. Empty: a key that everyone knows.
	KeyFile string
	// Suspect is called with the cgroups of a communicator whose launches fall or stop. It must not block. nil: no communicator is watched.
	Suspect func([]model.CgroupID)
	// StallAfter is the time without a launch after which a communicator is suspected.
	StallAfter time.Duration
}

// defaultMaxEntries is enough for 16 processes with 32 communicators in the share of each of four workloads.
const defaultMaxEntries = 2048

const sourceName = "collective"

// Upper bounds of the cost of a call, measured by BenchmarkCall in a virtual machine with slow traps.
const (
	callCost        = 6 * time.Microsecond
	callCostStepped = 35 * time.Microsecond
)

// Source counts launches by communicator, rank and operation.
type Source struct {
	kernel *kernel
	gate   *uprobe.Gate
	prober *library.Prober
	// Only the Prober's goroutine uses the next five.
	procfs  string
	states  map[int]*processState
	suspect func([]model.CgroupID) // nil: watcher is not used
	watcher watcher
	whole   map[locate.FileID]uint64 // since when all functions of a file are probed, CLOCK_MONOTONIC

	// mu guards the fields that both the Prober and Read use.
	mu      sync.Mutex
	probes  published
	forget  map[model.CgroupID]bool
	members members
}

// New makes the maps and starts the search for libraries. It returns an error if the kernel lacks what they need.
func New(opts Options) (*Source, error) {
	s, err := newSource(opts, opts.spec())
	if err != nil {
		return nil, err
	}
	s.prober.Start()
	return s, nil
}

// newSource returns a source whose Prober is not started. spec has its programs.
func newSource(opts Options, spec hook.Spec) (*Source, error) {
	if err := opts.Usable(); err != nil {
		return nil, err
	}
	boot, err := os.ReadFile(opts.Procfs + "/sys/kernel/random/boot_id")
	if err != nil {
		return nil, err
	}
	keys, err := newKeyer(opts.KeyFile, strings.TrimSpace(string(boot)))
	if err != nil {
		return nil, err
	}
	k, err := newKernel(spec)
	if err != nil {
		return nil, err
	}
	s := &Source{
		kernel: k, gate: opts.Gate, procfs: opts.Procfs, states: map[int]*processState{}, whole: map[locate.FileID]uint64{},
		forget: map[model.CgroupID]bool{}, members: newMembers(keys),
		suspect: opts.Suspect, watcher: newWatcher(opts.StallAfter),
	}
	s.prober = library.New(opts.Options, library.Spec{
		Source: sourceName, Functions: probed(), Libraries: libraryNames(), CallCost: callCost, CallCostStepped: callCostStepped,
		Object: k.object, Programs: spec, Load: k.load, Calls: s.eachCall, Publish: func() { s.publish(); s.watch() },
		Wants: func(of *library.Process) bool { return linkedOf(of.Libraries).uses },
		Attach: func(f *library.File, h library.Half) func(string) (io.Closer, error) {
			return k.probe(&f.Places[h.Place], libraryOf(f))
		},
	})
	return s, nil
}

// Name returns "collective".
func (s *Source) Name() string { return sourceName }

// Forget drops the counts of removed cgroups at the next Read.
func (s *Source) Forget(cgroups []model.CgroupID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range cgroups {
		s.forget[id] = true
	}
}

// Read returns Communicators, Collectives, CollectiveCoverage, Clock, Hooks, Maps, Losses, OwnerLosses and ProbeDurations.
func (s *Source) Read(context.Context) (model.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := model.Snapshot{Hooks: s.probes.hooks, ProbeDurations: s.gate.Durations(sourceName)}
	if err := s.update(); err != nil {
		return snap, err
	}
	snap.Communicators, snap.Collectives = s.members.listedMembers(), s.members.foldedSeries()
	snap.Clock = clock()
	snap.CollectiveCoverage = s.members.coverage(s.probes.coverage)
	err := errors.Join(s.kernel.object.Owners.Settle(s.forget), s.kernel.object.Fill(&snap))
	clear(s.forget)
	return snap, errors.Join(err, s.probes.failed)
}

// update reads the maps, and removes what has ended.
func (s *Source) update() error {
	now, err := monotonic()
	if err != nil {
		return err
	}
	m := &s.members
	m.versions, m.states = s.probes.versions, s.probes.states
	processes := processes{}
	err = s.kernel.eachCommunicator(func(number uint64, c *communicator) bool {
		if s.forget[model.CgroupID(c.Cgroup)] {
			delete(m.of, number)
			return true
		}
		return c.Tgid != 0 && m.see(number, c, processes.ended(c.Tgid), now)
	})
	if err != nil {
		return err
	}
	m.forget(s.forget)
	if err := s.kernel.eachLaunches(m.count); err != nil {
		return err
	}
	if err := s.kernel.eachRank(m.number); err != nil {
		return err
	}
	m.compare(s.probes.whole)
	m.settle(now)
	return s.kernel.removeProcesses(processes.ended)
}

// processes caches which processes have ended.
type processes map[uint32]bool

func (p processes) ended(tgid uint32) bool {
	ended, known := p[tgid]
	if !known {
		ended = errors.Is(unix.Kill(int(tgid), 0), unix.ESRCH)
		p[tgid] = ended
	}
	return ended
}

// monotonic returns CLOCK_MONOTONIC, as bpf_ktime_get_ns.
func monotonic() (moment, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return moment{}, err
	}
	return moment{time.Now(), uint64(ts.Nano())}, nil
}

// moment is a time by both clocks.
type moment struct {
	wall      time.Time
	monotonic uint64
}

// at returns the time of a value of CLOCK_MONOTONIC.
func (m moment) at(ns uint64) time.Time { return m.wall.Add(time.Duration(int64(ns - m.monotonic))) }

// Close detaches all probes.
func (s *Source) Close() error {
	s.prober.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kernel.close()
	return nil
}
