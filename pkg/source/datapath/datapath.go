// SPDX-License-Identifier: Apache-2.0

// Package datapath counts what containers send and receive over RDMA without system calls. It attaches uprobes to the
// functions of the verbs providers that processes have mapped. It is disabled by default. Where probes cost a process
// more than a budget, calls are counted in surveys only (survey.go).
//
// A hook in the kernel reports queue pairs that change their state, and the address of their user space half. From there, package locate
// finds the provider's functions. A probe is on a file, once for all processes that map the file. The programs (bpf/datapath.bpf.c) count
// by verbs context; the meter adds these counts to series of cgroups. The programs also measure the cost of probes for each process.
//
// One goroutine, the loop, decides what is attached. Its tracker follows processes and contexts, its searches find functions, its
// prober has the files and their probes, and its switcher decides which calls are counted. The loop and Read share the meter only.
package datapath

import (
	"cmp"
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/hotplug"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// Options choose the processes to count and limit the cost.
type Options struct {
	Sysfs, Procfs string
	// Budget is the share of a process's CPU time that probes may take before its provider is only surveyed; 0 is no limit.
	Budget float64
	// SurveyLength and SurveyInterval are the length of a survey, and the time between two. Zero selects the defaults.
	SurveyLength, SurveyInterval time.Duration
	// Workloads has the cgroups that belong together. nil: each cgroup has its own share.
	Workloads *hook.Workloads
	// OwnerOf returns the owner of a cgroup, who has a share of the counts and of the searches. nil: each cgroup is an owner.
	OwnerOf func(model.CgroupID) (workload, share model.CgroupID)
	// MaxContexts limits the verbs contexts, and the queue pairs with durations. Half of
	// each may belong to one owner. Zero selects the default.
	MaxContexts uint32
	// StallAfter is the time without a completion after which a queue pair with outstanding work requests is stalled. Zero
	// selects the default.
	StallAfter time.Duration
	// Chosen reports whether the processes of a cgroup are to be counted. It must not block. It is called repeatedly, because names
	// become known late. nil chooses all.
	Chosen func(cgroup model.CgroupID) bool
	// Consent returns whether processes of a cgroup may have probes. It is called like Chosen. nil: all may.
	Consent func(cgroup model.CgroupID) uprobe.Consent
	// Subsystem is the cgroup v1 controller with a cgroup per workload, empty for
	// cgroup v2.
	Subsystem string
	// BTFDir has a file with type information for each RDMA module without BTF in the kernel. It may be empty.
	BTFDir string
	// Gate attaches and detaches the probes. A source without a device needs no Gate.
	Gate *uprobe.Gate
	// DeviceNames returns the names of the HCAs by index.
	DeviceNames func(context.Context) (map[uint32]string, error)
	Hotplug     *hotplug.Watcher // may be nil
	Logger      *zap.Logger
}

// DefaultMaxContexts is the default of Options.MaxContexts. A job with 192 processes
// and 10 HCAs on a node has 1920 contexts.
const DefaultMaxContexts = 4096

// Source counts data path operations by cgroup and HCA.
type Source struct {
	opts  *Options
	meter *meter
	// suspects are handed to the loop.
	suspects chan<- []model.CgroupID
	stop     context.CancelFunc
	done     <-chan struct{} // closed when the loop has ended
}

// New attaches the hooks if there is a device, and starts the loop. It fails if the kernel lacks a feature that probes need.
func New(opts Options) (*Source, error) {
	if err := errors.Join(supported(), locate.HostPIDs(opts.Procfs)); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s, l := newSource(opts, cancel)
	l.follow(ctx) // so that the first Read reports what could be attached
	go safely.Do(s.Name(), func() { l.run(ctx) })
	return s, nil
}

// newSource returns a source and its loop. The loop does not run yet.
func newSource(opts Options, stop context.CancelFunc) (*Source, *loop) {
	if opts.Logger == nil {
		opts.Logger = zap.NewNop()
	}
	opts.StallAfter = cmp.Or(opts.StallAfter, DefaultStallAfter)
	opts.SurveyLength = cmp.Or(opts.SurveyLength, DefaultSurveyLength)
	opts.SurveyInterval = cmp.Or(opts.SurveyInterval, DefaultSurveyInterval)
	m := newMeter(&opts)
	l := newLoop(&opts, m)
	return &Source{opts: &opts, meter: m, suspects: l.suspects, stop: stop, done: l.done}, l
}

// Name returns model.DataPathSource.
func (s *Source) Name() string { return model.DataPathSource }

// Survey has the processes of cgroups surveyed on suspicion, if their calls are counted in surveys only: for a minute, and once in ten
// minutes at most, because other processes with the same provider file pay, too. It does not wait, and may do nothing while many wait.
func (s *Source) Survey(cgroups []model.CgroupID) {
	select {
	case s.suspects <- cgroups:
	default:
	}
}

// Close detaches all probes and hooks.
func (s *Source) Close() error {
	s.stop()
	<-s.done
	return nil
}

// Forget removes the series of cgroups at the next Read.
func (s *Source) Forget(cgroups []model.CgroupID) { s.meter.forget(cgroups) }

// Read reads the kernel's maps and returns all series.
func (s *Source) Read(context.Context) (model.Snapshot, error) {
	var snap model.Snapshot
	if s.opts.Gate != nil {
		snap.ProbeDurations = s.opts.Gate.Durations(s.Name())
	}
	err := s.meter.fill(&snap)
	return snap, err
}
