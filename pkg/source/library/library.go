// SPDX-License-Identifier: Apache-2.0

// Package library attaches uprobes to exported functions of the libraries that processes with an open GPU have mapped. The sources
// gpumemory and collective have a Prober each, and say which functions it probes, with which programs.
//
// Package datapath/locate finds the libraries and the places to probe. A probe is on a file, once for all processes that map it. If a
// function costs a process more than a hundredth of its CPU time, it loses its probes for a while (budget.go).
package library

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// Options are the options of a source with a Prober.
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
	// Subsystem is the cgroup v1 controller with a cgroup per workload, empty for cgroup v2.
	Subsystem string
	// Workloads has the cgroups that belong together. If it is nil, each cgroup is counted by itself.
	Workloads *hook.Workloads
	// MaxEntries is the size of the source's map. An owner may have a quarter of it. Zero selects the default.
	MaxEntries uint32
	// Interval is how often processes are searched for libraries; zero is 5 s.
	Interval time.Duration
	Logger   *zap.Logger
}

const defaultInterval = 5 * time.Second

// Function is a function to probe.
type Function struct {
	Name    string
	Library string // that has it; empty: any library
	// Optional: the function is probed only while a process maps its file for which Spec.Wants returns true.
	Optional bool
}

// Spec says what a Prober probes. Its functions are called by the goroutine that Start starts, except where they say otherwise.
type Spec struct {
	Source string // its name
	// Functions are the functions, in the order in which the functions of a file are probed. Other fields know a function by its index.
	Functions []Function
	Libraries []locate.LibraryName
	// CallCost and CallCostStepped are upper bounds of the cost of a call. Stepped: the kernel single-steps the first instruction of the
	// function, because it cannot emulate it.
	CallCost, CallCostStepped time.Duration
	// Returns: the return of a function is probed, too. PerProcess: each process has its own probes.
	Returns, PerProcess bool
	// Check returns why a process must not be probed. It may block, and is called in other goroutines. nil: all processes may be probed.
	Check func(*locate.Process) error
	// Wants reports whether optional functions are to be probed for a process.
	Wants func(*Process) bool
	// Load loads the programs of a function, which belong to Object and are compiled as in Programs. It is called for each function when
	// the first file is to be probed.
	Load     func(function int) error
	Object   *hook.Object
	Programs hook.Spec
	// Attach returns how to attach a probe of a file. What it returns is called in a goroutine of the Gate.
	Attach func(*File, Half) func(path string) (io.Closer, error)
	// Detached is called when the entry of a function has been detached, in a goroutine of the Gate, and when the return has been. nil: no
	// one needs to know.
	Detached func()
	// Calls calls f with how often each process has called each function. If f returns true, the process has ended.
	Calls func(f func(pid, function int, calls uint64) (drop bool)) error
	// Publish is called after each change of the Prober.
	Publish func()
}

// Prober searches processes for libraries, and has their functions probed. After Start, only Spec.Publish and the other functions of Spec
// use its fields and methods, except Close.
type Prober struct {
	Processes map[int]*Process
	Files     map[locate.FileID]*File

	opts      Options
	spec      Spec
	searches  *uprobe.Searches[result]
	libraries *locate.Libraries
	manager   *uprobe.Manager[int]
	refused   []error // by function: why it has no programs. nil: no programs were loaded yet
	failed    error   // of Load
	unknown   error   // errHoldersUnknown, or nil
	listedAt  time.Time
	stop      context.CancelFunc
	done      chan struct{} // closed when the loop has ended
}

const (
	// stepInterval is the time between checks of the budget and for ended processes.
	stepInterval = time.Second
	// firstSearches is how long the start waits for the searches of existing processes.
	firstSearches = 2 * time.Second
)

// errHoldersUnknown is why no process is searched: no GPU driver is loaded, or the source access could not list the
// processes.
var errHoldersUnknown = fmt.Errorf("no process is known that has a GPU open, see the source access: %w", model.ErrAbsent)

// Usable returns an error if functions of processes cannot be probed.
func (o *Options) Usable() error { return errors.Join(hook.Usable(), locate.HostPIDs(o.Procfs)) }

// New returns a Prober, which Start starts.
func New(opts Options, spec Spec) *Prober {
	opts.Interval = cmp.Or(opts.Interval, defaultInterval)
	opts.Logger = cmp.Or(opts.Logger, zap.NewNop())
	done := make(chan struct{})
	return &Prober{
		Processes: map[int]*Process{}, Files: map[locate.FileID]*File{},
		opts: opts, spec: spec, done: done,
		searches: uprobe.NewSearches(spec.Source, done, (*result).drop), libraries: locate.NewLibraries(spec.Libraries),
		manager: uprobe.NewManager[int](opts.Gate, spec.Source, opts.Logger, done),
	}
}

// Start searches the existing processes, so that the first report has what could be attached, and starts the loop.
func (p *Prober) Start() {
	p.First()
	ctx, cancel := context.WithCancel(context.Background())
	p.stop = cancel
	go safely.Do(p.spec.Source, func() { p.run(ctx) })
}

// Close detaches all probes.
func (p *Prober) Close() {
	p.stop()
	<-p.done
}

// First searches the existing processes.
func (p *Prober) First() {
	defer p.spec.Publish()
	p.step()
	deadline := time.NewTimer(firstSearches)
	defer deadline.Stop()
	for p.searches.Running()+p.manager.Running() > 0 {
		select {
		case r := <-p.searches.Results:
			loaded := p.refused != nil
			if p.handle(r); !loaded && p.refused != nil { // which took long
				deadline.Reset(firstSearches)
			}
		case r := <-p.manager.Results:
			p.manager.Take(r, time.Now())
		case <-deadline.C:
			return
		}
	}
}

// run is the loop. Only this goroutine decides what is attached and detached; the Gate does it.
func (p *Prober) run(ctx context.Context) {
	defer close(p.done)
	defer p.Release() // also after a panic: only the loop limits what probes cost
	tick := time.NewTicker(min(stepInterval, p.opts.Interval))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-p.searches.Results:
			p.handle(r)
		case r := <-p.manager.Results:
			p.manager.Take(r, time.Now())
		case <-tick.C:
			p.step()
		}
		p.spec.Publish()
	}
}

// step looks for new and ended processes, searches processes that are due, and keeps the budget.
func (p *Prober) step() {
	now := time.Now()
	p.removeEnded()
	if now.Sub(p.listedAt) >= p.opts.Interval {
		p.listedAt = now
		pids, known := p.opts.Holders()
		if p.unknown = nil; !known {
			p.unknown = errHoldersUnknown
		}
		for _, pid := range pids {
			p.observe(pid)
		}
	}
	p.spend(now)
	for _, f := range p.Files {
		p.exclude(f, now)
		p.change(f, now)
	}
	p.startSearches(now)
}

// Release detaches all probes, and closes the files and processes.
func (p *Prober) Release() {
	p.shutdown()
	for _, f := range p.Files {
		f.close()
	}
	for _, of := range p.Processes {
		if !of.searching { // otherwise the search closes it
			of.Close()
		}
	}
}
