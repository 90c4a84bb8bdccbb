// SPDX-License-Identifier: Apache-2.0

// Package datapath counts what containers move over RDMA where the kernel does
// not see it: uprobes on the functions of the verbs providers that their
// processes have mapped. It is off unless it is asked for, and a budget bounds
// what it costs the processes.
//
// A hook in the kernel sees a queue pair become usable and tells where its user
// space half is. From there the provider's functions are found without symbols,
// in the operations of its verbs context (locate.go), and probed where the kernel
// does it cheapest (site.go). A probe is on a file, once, for all who map it; the
// programs (bpf/datapath.bpf.c) count by verbs context, this package by cgroup
// (totals.go). What the probes cost each process is measured, and the budget
// (budget.go) takes them away for as long as that is too much.
package datapath

import (
	"context"
	"errors"
	"sync"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/budget"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// Options say whom to watch and what it may cost.
type Options struct {
	Sysfs, Procfs string
	// Budget is the part of a process's CPU time that probes may take; 0 is
	// without a limit.
	Budget float64
	// Chosen says whether the processes of a cgroup are to be watched, at once. It is
	// asked again and again, as names get known late. nil watches all.
	Chosen func(cgroup uint64) bool
	// Subsystem is the cgroup v1 controller whose hierarchy tells workloads
	// apart, empty for cgroup v2.
	Subsystem string
	// DeviceNames tells the names of the HCAs by index.
	DeviceNames func(context.Context) (map[uint32]string, error)
	Logger      *zap.Logger
}

// Source is the data path.
type Source struct {
	opts Options

	// mu guards what the loop changes and Read tells; nothing waits under it.
	mu     sync.Mutex
	kernel *kernel // nil while there is no device
	hooks  []model.Hook
	failed error
	// unprobed is why some calls are not watched that should be.
	unprobed  error
	names     map[uint32]string // of the HCAs, by index
	fold      *fold
	forgotten map[uint64]bool
	// contexts are those whose functions were found, and worth is what the counts of
	// a file's processes are worth.
	contexts  map[gen.DatapathContextKey]contextState
	samplings map[locate.FileID][budget.Groups]budget.Sampling
	stats     model.DataPathStats
	late      uint64 // contexts that are gone

	loop

	stop context.CancelFunc
	done chan struct{}
}

// A place is where the functions of a context are: the file, and since when it
// is probed (CLOCK_MONOTONIC, ns; 0: not yet), and whether the context is watched.
type contextState struct {
	file   locate.FileID
	probed uint64
	cgroup uint64
	chosen bool
	// decided: probed is final.
	final bool
}

// New attaches the hooks if there is a device, and begins to watch. It fails where the kernel allows no such probes, or none
// that are safe.
func New(opts Options) (*Source, error) {
	if err := errors.Join(supported(), locate.HostPIDs(opts.Procfs)); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := newSource(opts, cancel)
	s.follow(ctx) // so that the first Read knows what could be attached
	go s.run(ctx)
	return s, nil
}

func newSource(opts Options, stop context.CancelFunc) *Source {
	if opts.Logger == nil {
		opts.Logger = zap.NewNop()
	}
	return &Source{
		opts:      opts,
		hooks:     unattached("no RDMA device: the hooks come with the first one", model.StateAbsent),
		fold:      newFold(opts.Budget),
		forgotten: map[uint64]bool{},
		contexts:  map[gen.DatapathContextKey]contextState{},
		samplings: map[locate.FileID][budget.Groups]budget.Sampling{},
		loop:      newLoop(opts),
		stop:      stop,
		done:      make(chan struct{}),
	}
}

// Name is "datapath".
func (s *Source) Name() string { return "datapath" }

// Close detaches everything.
func (s *Source) Close() error {
	s.stop()
	<-s.done
	return nil
}

// Forget drops the figures of these cgroups at the next Read.
func (s *Source) Forget(cgroups []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range cgroups {
		s.forgotten[id] = true
	}
}

// Read drains the kernel's maps.
func (s *Source) Read(context.Context) (model.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := model.Snapshot{Hooks: s.hooks}
	err := errors.Join(s.failed, s.unprobed)
	if s.kernel != nil {
		err = errors.Join(err, s.drain())
		s.kernel.fill(&snap)
	}
	s.fold.forget(s.forgotten)
	clear(s.forgotten)
	s.fold.fill(&snap, s.deviceName)
	stats := s.stats
	snap.DataPath = &stats
	return snap, err
}

// deviceName is the name of an HCA, empty while nobody told.
func (s *Source) deviceName(index uint32) string { return s.names[index] }

// fold adds what was counted to the totals, between two steps: what is watched in
// windows is kept back until they end. It is called under mu.
func (s *Source) drain() error {
	keepBack := func(key gen.DatapathContextKey) [budget.Groups]budget.Sampling {
		w := s.samplingsOf(key)
		for c := range w {
			if w[c].Windowed {
				w[c].Scale = 0
			}
		}
		return w
	}
	err := s.kernel.contexts(func(key gen.DatapathContextKey, stat *gen.DatapathContextStat) {
		s.fold.add(key, stat, keepBack(key))
	})
	return errors.Join(err, s.kernel.latencies(func(key gen.DatapathLatencyKey, l *gen.DatapathLatency) {
		s.fold.addLatency(key, l, keepBack(key.Context)[budget.Poll])
	}))
}

// isLate says whether a context was ready to send before its functions were probed.
func (s *Source) isLate(key gen.DatapathContextKey, stat *gen.DatapathContextStat) bool {
	p := s.contexts[key]
	return p.final && stat.Late != 0 && (p.probed == 0 || stat.LateNs < p.probed)
}

// worthOf is what the counts of a context are worth. One whose functions were
// not found yet may be hit all the same, by the probes of another process.
func (s *Source) samplingsOf(key gen.DatapathContextKey) [budget.Groups]budget.Sampling {
	p, located := s.contexts[key]
	w, ok := s.samplings[p.file]
	if !located && s.anyWindowed() {
		return [budget.Groups]budget.Sampling{{Windowed: true, Ratio: 1}, {Windowed: true, Ratio: 1}}
	}
	if !ok {
		return [budget.Groups]budget.Sampling{{Scale: 1, Ratio: 1}, {Scale: 1, Ratio: 1}}
	}
	return w
}

func (s *Source) anyWindowed() bool {
	for _, w := range s.samplings {
		if w[budget.Post].Windowed || w[budget.Poll].Windowed {
			return true
		}
	}
	return false
}
