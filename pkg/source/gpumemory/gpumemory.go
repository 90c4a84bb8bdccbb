// SPDX-License-Identifier: Apache-2.0

// Package gpumemory counts, by workload, the allocations of GPU memory that fail because there is not enough. It
// attaches uprobes to the allocating functions of the libraries that processes with an open GPU have mapped. It is
// disabled by default.
//
// The programs (bpf/gpumemory.bpf.c) count by workload. Package datapath/locate finds the libraries and the places to
// probe. A probe is on a file, once for all processes that map it. If a function costs a process more than a hundredth
// of its CPU time, it loses its probes for a while (budget.go).
package gpumemory

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
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
	// ReturnProbes returns an error if return probes can kill processes on this machine. perProcess: they kill only
	// processes with a shadow stack, so each other process needs its own probes.
	ReturnProbes func(context.Context) (perProcess bool, err error)
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
	// Subsystem is the cgroup v1 controller with a cgroup per workload, empty for cgroup v2.
	Subsystem string
	// Workloads has the cgroups that belong together. If it is nil, each cgroup is counted by itself.
	Workloads *hook.Workloads
	// MaxEntries bounds the map, which has an entry per workload and API. An owner may have a quarter of the entries.
	// Zero selects the default.
	MaxEntries uint32
	// Interval is how often processes are searched for libraries; zero is 5 s.
	Interval time.Duration
	Logger   *zap.Logger
}

const (
	// defaultMaxEntries is enough for 1,000 workloads. A workload has an entry for each API of a library, for any
	// number of GPUs.
	defaultMaxEntries = 8192
	defaultInterval   = 5 * time.Second
)

const sourceName = "gpumemory"

// Source counts failed allocations by workload and API.
type Source struct {
	kernel *kernel
	gate   *uprobe.Gate
	loop   *loop

	// mu guards the entries of the kernel's map, and the fields that both the loop and Read use.
	mu     sync.Mutex
	hooks  []model.Hook
	failed error
	forget map[model.CgroupID]bool

	stop context.CancelFunc
}

// New loads the programs and starts the search for libraries. It returns an error if return probes are not safe, or if
// the kernel lacks what they need.
func New(opts Options) (*Source, error) {
	s, err := newSource(opts)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	s.loop.start()
	go safely.Do(sourceName, func() { s.loop.run(ctx) })
	return s, nil
}

// newSource returns a source whose loop does not run.
func newSource(opts Options) (*Source, error) {
	if err := errors.Join(hook.Usable(), locate.HostPIDs(opts.Procfs)); err != nil {
		return nil, err
	}
	opts.Interval = cmp.Or(opts.Interval, defaultInterval)
	opts.Logger = cmp.Or(opts.Logger, zap.NewNop())
	perProcess, err := opts.ReturnProbes(context.Background()) // has a deadline
	if err != nil {
		return nil, err
	}
	k, err := newKernel(opts.spec())
	if err != nil {
		return nil, err
	}
	s := &Source{kernel: k, gate: opts.Gate, forget: map[model.CgroupID]bool{}}
	s.loop = newLoop(opts, k, perProcess, s.publish)
	return s, nil
}

// Name returns "gpumemory".
func (s *Source) Name() string { return sourceName }

// Forget drops the counts of removed cgroups at the next Read.
func (s *Source) Forget(cgroups []model.CgroupID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range cgroups {
		s.forget[id] = true
	}
}

// Read returns FailedAllocations, Hooks, Maps, Losses, OwnerLosses and ProbeDurations.
func (s *Source) Read(context.Context) (model.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := model.Snapshot{Hooks: s.hooks, ProbeDurations: s.gate.Durations(sourceName)}
	snap.FailedAllocations = make([]model.Series[model.AllocationKey, model.Allocations], 0, s.kernel.object.Entries[failuresMap])
	err := s.kernel.each(func(key gen.GPUMemoryFailureKey, f *gen.GPUMemoryFailures) bool {
		if s.forget[model.CgroupID(key.Cgroup)] {
			return true
		}
		if int(key.Api) < len(apis) {
			snap.FailedAllocations = append(snap.FailedAllocations, model.Series[model.AllocationKey, model.Allocations]{
				Cgroup: model.CgroupID(key.Cgroup), Key: apis[key.Api], Value: model.Allocations{Count: f.Count, Bytes: f.Bytes},
			})
		}
		return false
	})
	if err != nil {
		return model.Snapshot{Hooks: s.hooks, ProbeDurations: snap.ProbeDurations}, err
	}
	err = errors.Join(s.kernel.object.Owners.Settle(s.forget), s.kernel.object.Fill(&snap))
	clear(s.forget)
	return snap, errors.Join(err, s.failed)
}

// publish sets what Read returns about the loop.
func (s *Source) publish(hooks []model.Hook, failed error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks, s.failed = hooks, failed
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
