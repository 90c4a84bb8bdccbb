// SPDX-License-Identifier: Apache-2.0

// Package gpumemory counts, by workload, the allocations of GPU memory that fail because there is not enough. It
// attaches uprobes to the allocating functions of the libraries that processes with an open GPU have mapped (package library). It is
// disabled by default.
//
// The programs (bpf/gpumemory.bpf.c) count by workload.
package gpumemory

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
	"github.com/accelscope/accelscope/pkg/source/library"
)

// Options configure a Source. The map has an entry per workload and API.
type Options struct {
	library.Options
	// ReturnProbes returns an error if return probes can kill processes on this machine. perProcess: they kill only
	// processes with a shadow stack, so each other process needs its own probes.
	ReturnProbes func(context.Context) (perProcess bool, err error)
}

// defaultMaxEntries is enough for 1,000 workloads. A workload has an entry for each API of a library, for any
// number of GPUs.
const defaultMaxEntries = 8192

const sourceName = "gpumemory"

// Upper bounds of the cost of a call, measured in docs/internals/performance.md.
const (
	callCost        = 4 * time.Microsecond
	callCostStepped = 14 * time.Microsecond
)

// Source counts failed allocations by workload and API.
type Source struct {
	kernel *kernel
	gate   *uprobe.Gate
	prober *library.Prober

	// mu guards the entries of the kernel's map, and the fields that both the Prober and Read use.
	mu     sync.Mutex
	hooks  []model.Hook
	failed error
	forget map[model.CgroupID]bool
}

// New makes the maps and starts the search for libraries. It returns an error if return probes are not safe, or if
// the kernel lacks what they need.
func New(opts Options) (*Source, error) {
	s, err := newSource(opts, (*locate.Process).CheckShadowStack)
	if err != nil {
		return nil, err
	}
	s.prober.Start()
	return s, nil
}

// newSource returns a source whose Prober is not started. checkShadowStack returns an error if a process has a shadow stack.
func newSource(opts Options, checkShadowStack func(*locate.Process) error) (*Source, error) {
	if err := opts.Usable(); err != nil {
		return nil, err
	}
	perProcess, err := opts.ReturnProbes(context.Background()) // has a deadline
	if err != nil {
		return nil, err
	}
	spec := opts.spec()
	k, err := newKernel(spec)
	if err != nil {
		return nil, err
	}
	s := &Source{kernel: k, gate: opts.Gate, forget: map[model.CgroupID]bool{}}
	of := library.Spec{
		Source: sourceName, Functions: probed(), Libraries: libraryNames(), CallCost: callCost, CallCostStepped: callCostStepped,
		Returns: true, PerProcess: perProcess,
		Object: k.object, Programs: spec, Load: k.load, Calls: k.eachCalls, Publish: s.publish,
		Attach: func(f *library.File, h library.Half) func(string) (io.Closer, error) {
			return k.probe(&f.Places[h.Place], h.PID, h.Return)
		},
		Detached: func() {
			if err := k.forgetCalls(); err != nil && opts.Logger != nil {
				opts.Logger.Debug("the programs may take calls for nested ones", zap.Error(err))
			}
		},
	}
	if perProcess {
		of.Check = checkShadowStack
	}
	s.prober = library.New(opts.Options, of)
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

// publish sets what Read returns about the probes.
func (s *Source) publish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks, s.failed = s.prober.Hooks(), s.prober.Err()
}

// Close detaches all probes.
func (s *Source) Close() error {
	s.prober.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kernel.close()
	return nil
}
