// SPDX-License-Identifier: Apache-2.0

// Package datapath counts what containers send and receive over RDMA without system calls. It attaches uprobes to the
// functions of the verbs providers that processes have mapped. It is disabled by default. Where probes cost a process
// more than a budget, calls are counted in surveys only (survey.go).
//
// A hook in the kernel reports queue pairs that change their state, and the address
// of their user space half. Package locate finds the provider's functions from
// there. A probe is on a file, once for all processes that map it. The programs
// (bpf/datapath.bpf.c) count by verbs context, and fold.go adds that to series of
// cgroups. The programs also measure what probes cost each process.
package datapath

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

// Options are the processes to count and the limit of the cost.
type Options struct {
	Sysfs, Procfs string
	// Budget is the share of a process's CPU time that probes may take before its provider is only surveyed; 0 is no limit.
	Budget float64
	// SurveyLength and SurveyInterval are the length of a survey, and the time between two. Zero selects the defaults.
	SurveyLength, SurveyInterval time.Duration
	// Workloads has the cgroups that belong together. If it is nil, each cgroup has a share of its own.
	Workloads *hook.Workloads
	// OwnerOf returns for whom the programs count what a cgroup does: of searches, too, an owner has a share. nil: each cgroup
	// is an owner.
	OwnerOf func(model.CgroupID) (workload, share model.CgroupID)
	// MaxContexts limits the verbs contexts, and the queue pairs with durations. Half of
	// each may belong to one owner. Zero selects the default.
	MaxContexts uint32
	// StallAfter is the time without a completion after which a queue pair with outstanding work requests is stalled. Zero
	// selects the default.
	StallAfter time.Duration
	// Chosen reports whether the processes of a cgroup are to be counted. It must
	// not block. It is called repeatedly, as names get known late. nil chooses all.
	Chosen func(cgroup model.CgroupID) bool
	// Consent returns whether processes of a cgroup may have probes. It is called like Chosen. nil: all may.
	Consent func(cgroup model.CgroupID) uprobe.Consent
	// Subsystem is the cgroup v1 controller with a cgroup per workload, empty for
	// cgroup v2.
	Subsystem string
	// BTFDir has the type information of RDMA modules that have none in the kernel, in a file per
	// module. It may be empty.
	BTFDir string
	// Gate attaches and detaches the probes. Only a source without a device needs none.
	Gate *uprobe.Gate
	// DeviceNames returns the names of the HCAs by index.
	DeviceNames func(context.Context) (map[uint32]string, error)
	Logger      *zap.Logger
}

// DefaultMaxContexts is the default of Options.MaxContexts. A job with 192 processes
// and 10 HCAs on a node has 1920 contexts.
const DefaultMaxContexts = 4096

// Source counts data path operations by cgroup and HCA.
type Source struct {
	opts Options

	// mu guards the fields that both the loop and Read use. It is never held while
	// waiting.
	mu     sync.Mutex
	kernel *kernel // nil while there is no device
	hooks  []model.Hook
	failed error
	// unprobed is why some functions could not be probed.
	unprobed error
	names    map[uint32]string // of the HCAs, by index
	// formerDevices is the last number that stands for a renamed HCA. The kernel's indexes are
	// below 2^31.
	formerDevices uint32
	fold          *fold
	forgotten     map[model.CgroupID]bool
	// contexts are those with located functions, places those of their files.
	contexts map[gen.DatapathContextKey]contextState
	places   map[locate.FileID]place
	limited  bool                   // calls of some file are counted in surveys only
	excluded map[locate.FileID]bool // files that a process maps which must not have probes
	off      map[locate.FileID]bool // files that lack probes which they should have
	ending   map[uint32]bool        // processes that have ended, while their last counts are read
	kept     map[locate.FileID]bool // files that stay probed without a process
	// tracedSince is the time since which all functions of a file are probed without a break (CLOCK_MONOTONIC, ns).
	tracedSince map[locate.FileID]uint64
	// open are the open contexts that are counted, as of the last drain. Their keys have no
	// number, as in the kernel.
	open map[gen.DatapathContextKey]openContext
	// unprobeable are files with functions that could not be probed, unlocated the processes
	// and devices with queue pairs whose functions were not found.
	unprobeable map[locate.FileID]bool
	unlocated   map[processDevice]unlocated
	stats       model.DataPathStats

	loop

	stop context.CancelFunc
	done chan struct{}
}

// contextState is the state of a context with located functions: the file, the time
// since which it is probed (CLOCK_MONOTONIC, ns; 0: not yet), and whether its calls
// are counted.
type contextState struct {
	file   locate.FileID
	direct bool   // see locate.Found
	found  uint64 // when the functions were located (CLOCK_MONOTONIC, ns)
	probed uint64
	cgroup model.CgroupID
	chosen bool
	// existed: it is older than the hooks.
	existed bool
	// final: probed does not change any more.
	final bool
}

// New attaches the hooks if there is a device, and starts the loop. It returns an
// error if the kernel lacks what the probes need.
func New(opts Options) (*Source, error) {
	if err := errors.Join(supported(), locate.HostPIDs(opts.Procfs)); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := newSource(opts, cancel)
	s.follow(ctx) // so that the first Read reports what could be attached
	go safely.Do(s.Name(), func() { s.run(ctx) })
	return s, nil
}

func newSource(opts Options, stop context.CancelFunc) *Source {
	if opts.Logger == nil {
		opts.Logger = zap.NewNop()
	}
	opts.StallAfter = cmp.Or(opts.StallAfter, DefaultStallAfter)
	opts.SurveyLength = cmp.Or(opts.SurveyLength, DefaultSurveyLength)
	opts.SurveyInterval = cmp.Or(opts.SurveyInterval, DefaultSurveyInterval)
	return &Source{
		opts:      opts,
		hooks:     unattached("no RDMA device: the hooks come with the first one", model.StateAbsent),
		fold:      newFold(opts.Budget, opts.SurveyInterval),
		forgotten: map[model.CgroupID]bool{}, names: map[uint32]string{}, formerDevices: 1 << 31,
		contexts:  map[gen.DatapathContextKey]contextState{},
		places:    map[locate.FileID]place{},
		kept:      map[locate.FileID]bool{},
		open:      map[gen.DatapathContextKey]openContext{},
		unlocated: map[processDevice]unlocated{},
		loop:      newLoop(opts),
		stop:      stop,
		done:      make(chan struct{}),
	}
}

// Name returns "datapath".
func (s *Source) Name() string { return model.DataPathSource }

// Close detaches all probes and hooks.
func (s *Source) Close() error {
	s.stop()
	<-s.done
	return nil
}

// Forget removes the series of cgroups at the next Read.
func (s *Source) Forget(cgroups []model.CgroupID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range cgroups {
		s.forgotten[id] = true
	}
}

// Read reads the kernel's maps and returns all series.
func (s *Source) Read(context.Context) (model.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	snap := model.Snapshot{Hooks: s.hooks, Outstanding: []model.Outstanding{}, Stalled: []model.StalledQueuePair{}}
	if s.opts.Gate != nil {
		snap.ProbeDurations = s.opts.Gate.Durations(s.Name())
	}
	err := errors.Join(s.failed, s.unprobed)
	if s.kernel != nil {
		err = errors.Join(err, s.drain(), s.fillOutstanding(&snap), s.kernel.object.Owners.Settle(s.forgotten), s.kernel.fill(&snap))
	}
	s.fold.forget(s.forgotten)
	clear(s.forgotten)
	now := time.Now()
	s.fold.fill(&snap, s.deviceName, func(file locate.FileID, ended time.Time) (none [groups]bool) {
		if s.schedule.isOutdated(ended, now) {
			return none
		}
		return s.places[file].limited
	})
	snap.Coverage = s.coverage()
	stats := s.stats
	stats.Attached = s.kernel != nil
	stats.LimitRatio, stats.Late = s.fold.limitRatio(), s.fold.late
	snap.DataPath = &stats
	return snap, err
}

// deviceName returns the name of an HCA, empty while it is not known.
func (s *Source) deviceName(index uint32) string { return s.names[index] }

// drain adds the counts since the last step. The caller holds mu.
func (s *Source) drain() error {
	clear(s.open)
	err := s.kernel.eachContext(func(key gen.DatapathContextKey, stat *gen.DatapathContextStat, closed bool) {
		s.add(key, stat, closed)
		if !closed && stat.Chosen != 0 {
			s.open[gen.DatapathContextKey{Context: key.Context, Tgid: key.Tgid}] = s.traceOf(key, stat)
		}
	})
	return errors.Join(err, s.kernel.latencies(s.fold.addLatency))
}

// lockAndDrain is drain for callers that do not hold mu.
func (s *Source) lockAndDrain() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drain()
}

// isLate reports whether a context was ready to send before its functions were
// probed.
func (s *Source) isLate(key gen.DatapathContextKey, stat *gen.DatapathContextStat) bool {
	p := s.contexts[key]
	return p.final && stat.Late != 0 && (p.probed == 0 || stat.LateNs < p.probed)
}

// add adds what a context counted. While calls of some file are counted in surveys only, the counts of a context wait until it is known
// which file its functions are in, or until it or its process has ended.
func (s *Source) add(key gen.DatapathContextKey, stat *gen.DatapathContextStat, closed bool) {
	if _, located := s.contexts[key]; located || closed || !s.limited || s.ending[key.Tgid] {
		s.fold.add(key, stat, s.placeOf(key))
	}
}

// placeOf returns where a context is counted, and how.
func (s *Source) placeOf(key gen.DatapathContextKey) place { return s.places[s.contexts[key].file] }
