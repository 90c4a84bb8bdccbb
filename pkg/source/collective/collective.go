// SPDX-License-Identifier: Apache-2.0

// Package collective counts, by communicator, rank and operation, what processes launch with NCCL and RCCL. It attaches uprobes at the
// entry of the public functions in the libraries that processes with an open GPU have mapped, or in programs and libraries that contain
// them and have symbols. It is disabled by default.
//
// The program (bpf/collective.bpf.c) counts by process, communicator and operation. Package datapath/locate finds the files and the places
// to probe. A probe is on a file, once for all processes that map it. If a function costs a process more than a hundredth of its CPU time,
// it loses its probes for a while (budget.go). members.go bounds what is listed.
package collective

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"os"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// Options configure a Source.
type Options struct {
	Procfs string
	// Holders returns the processes that have a GPU open, and false if they are unknown.
	Holders func() ([]int, bool)
	// CgroupOf returns the cgroup of a process; nil if cgroups are not read.
	CgroupOf func(pid int) (model.CgroupID, error)
	// OwnerOf returns the workload under which programs count a cgroup, and the cgroup that has its share of the maps;
	// nil if cgroups are not read.
	OwnerOf func(model.CgroupID) (workload, share model.CgroupID)
	// Consent returns whether processes of a cgroup may be probed. It must not block, and is called repeatedly. After a
	// process without consent has mapped a file, the file stays without probes for barInterval at least. nil: all
	// processes may be probed.
	Consent func(model.CgroupID) uprobe.Consent
	Gate    *uprobe.Gate
	// KeyFile has the key of the hashes of communicators. Empty: a key that everyone knows.
	KeyFile string
	// Subsystem is the cgroup v1 controller with a cgroup per workload, empty for cgroup v2.
	Subsystem string
	// Workloads has the cgroups that belong together. If it is nil, each cgroup is counted by itself.
	Workloads *hook.Workloads
	// MaxEntries bounds the communicators of the node, each rank counted. An owner may have a quarter. Zero selects the default.
	MaxEntries uint32
	// Interval is how often processes are searched for libraries; zero is 5 s.
	Interval time.Duration
	Logger   *zap.Logger
}

const (
	// defaultMaxEntries is enough for 16 processes with 32 communicators in the share of each of four workloads.
	defaultMaxEntries = 2048
	defaultInterval   = 5 * time.Second
)

const sourceName = "collective"

// Source counts launches by communicator, rank and operation.
type Source struct {
	kernel *kernel
	gate   *uprobe.Gate
	loop   *loop

	// mu guards the fields that both the loop and Read use.
	mu      sync.Mutex
	loops   published
	forget  map[model.CgroupID]bool
	members members

	stop context.CancelFunc
}

// New loads the programs and starts the search for libraries. It returns an error if the kernel lacks what they need.
func New(opts Options) (*Source, error) {
	s, err := newSource(opts)
	if err != nil {
		return nil, err
	}
	s.begin()
	return s, nil
}

// begin starts the loop.
func (s *Source) begin() {
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	s.loop.start()
	go safely.Do(sourceName, func() { s.loop.run(ctx) })
}

// newSource returns a source whose loop does not run.
func newSource(opts Options) (*Source, error) {
	if err := errors.Join(hook.Usable(), locate.HostPIDs(opts.Procfs)); err != nil {
		return nil, err
	}
	opts.Interval = cmp.Or(opts.Interval, defaultInterval)
	opts.Logger = cmp.Or(opts.Logger, zap.NewNop())
	boot, err := os.ReadFile(opts.Procfs + "/sys/kernel/random/boot_id")
	if err != nil {
		return nil, err
	}
	keys, err := newKeyer(opts.KeyFile, strings.TrimSpace(string(boot)))
	if err != nil {
		return nil, err
	}
	k, err := newKernel(opts.spec())
	if err != nil {
		return nil, err
	}
	s := &Source{kernel: k, gate: opts.Gate, forget: map[model.CgroupID]bool{}, members: newMembers(keys)}
	s.loop = newLoop(opts, k, s.publish)
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

// Read returns Communicators, Collectives, CollectiveCoverage, Hooks, Maps, Losses, OwnerLosses and ProbeDurations.
func (s *Source) Read(context.Context) (model.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := model.Snapshot{Hooks: s.loops.hooks, ProbeDurations: s.gate.Durations(sourceName)}
	if err := s.update(); err != nil {
		return snap, err
	}
	snap.Communicators, snap.Collectives = s.members.listedMembers(), s.members.foldedSeries()
	snap.CollectiveCoverage = s.members.coverage(s.loops.coverage)
	err := errors.Join(s.kernel.object.Owners.Settle(s.forget), s.kernel.object.Fill(&snap))
	clear(s.forget)
	return snap, errors.Join(err, s.loops.failed)
}

// update reads the maps, and removes what has ended.
func (s *Source) update() error {
	now, err := monotonic()
	if err != nil {
		return err
	}
	m := &s.members
	m.versions = s.loops.versions
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

// publish sets what Read returns about the loop.
func (s *Source) publish(p published) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.loops = p
	maps.Copy(s.members.lost, p.lost)
}

// Close detaches all probes.
func (s *Source) Close() error {
	s.stop()
	<-s.loop.done
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kernel.close()
	return nil
}
