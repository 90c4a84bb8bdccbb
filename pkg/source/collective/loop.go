// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

const (
	// stepInterval is the time between checks of the budget and for ended processes.
	stepInterval = time.Second
	// lastWait is the longest time between searches of one process, which may load a library at any time.
	lastWait     = time.Minute
	maxProcesses = 4096
	// firstSearches is how long the start waits for the searches of existing processes.
	firstSearches = 2 * time.Second
)

// errHoldersUnknown is why no process is searched: no GPU driver is loaded, or the source access could not list the
// processes.
var errHoldersUnknown = fmt.Errorf("no process is known that has a GPU open, see the source access: %w", model.ErrAbsent)

type loop struct {
	opts      Options
	kernel    *kernel
	publish   func(published)
	searches  searches
	processes map[int]*process
	files     fileSet
	manager   *uprobe.Manager[int]
	done      chan struct{} // closed when the loop has ended
	listedAt  time.Time
	unknown   error                   // errHoldersUnknown, or nil
	lost      map[model.CgroupID]bool // workloads that lost something since the last report
}

type searches struct {
	*uprobe.Searches[result]
	libraries *locate.Libraries
}

// process is a process that has or had a GPU open, or that calls a probed function.
type process struct {
	*locate.Process
	cgroup   model.CgroupID // 0: unknown
	owner    model.CgroupID // has a share of the BPF maps; 0: unknown
	workload model.CgroupID // under which programs count
	// searching: a search is running, which may take as long as the process lives. ended: the search closes the
	// process.
	searching, ended bool
	next             time.Time     // time of the next search
	wait             time.Duration // after the next search
	account
	linked
}

type result struct {
	of        *process
	libraries []locate.Library
	home      *locate.Process // keeps the files of the process; nil if unknown
	err       error
}

func newLoop(opts Options, k *kernel, publish func(published)) *loop {
	done := make(chan struct{})
	return &loop{
		opts: opts, kernel: k, publish: publish, done: done,
		searches: searches{
			Searches:  uprobe.NewSearches(sourceName, done, (*result).drop),
			libraries: locate.NewLibraries(libraryNames()),
		},
		processes: map[int]*process{}, files: fileSet{}, manager: uprobe.NewManager[int](opts.Gate, sourceName, opts.Logger, done),
		lost: map[model.CgroupID]bool{},
	}
}

// start searches the existing processes, so that the first Read reports what could be attached.
func (l *loop) start() {
	l.step()
	deadline := time.NewTimer(firstSearches)
	defer deadline.Stop()
	for l.searches.Running()+l.manager.Running() > 0 {
		select {
		case r := <-l.searches.Results:
			l.handle(r)
		case r := <-l.manager.Results:
			l.manager.Take(r, time.Now())
		case <-deadline.C:
			l.report()
			return
		}
	}
	l.report()
}

// run is the loop. Only this goroutine decides what is attached and detached; the Gate does it.
func (l *loop) run(ctx context.Context) {
	defer close(l.done)
	defer l.release() // also after a panic: only the loop limits what probes cost
	tick := time.NewTicker(min(stepInterval, l.opts.Interval))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-l.searches.Results:
			l.handle(r)
		case r := <-l.manager.Results:
			l.manager.Take(r, time.Now())
		case <-tick.C:
			l.step()
		}
		l.report()
	}
}

// step looks for new and ended processes, searches processes that are due, and keeps the budget.
func (l *loop) step() {
	now := time.Now()
	l.removeEnded()
	if now.Sub(l.listedAt) >= l.opts.Interval {
		l.listedAt = now
		pids, known := l.opts.Holders()
		if l.unknown = nil; !known {
			l.unknown = errHoldersUnknown
		}
		for _, pid := range pids {
			l.observe(pid)
		}
	}
	l.spend(now)
	for _, f := range l.files {
		l.exclude(f, now)
		l.change(f, now)
	}
	for _, p := range l.processes {
		if l.searches.HasRoom(p.owner) && !p.searching && !now.Before(p.next) {
			l.searches.begin(p)
		}
	}
}

// observe adds a process, and reports whether it exists.
func (l *loop) observe(pid int) bool {
	if l.processes[pid] != nil {
		return true
	}
	p, err := locate.OpenProcess(l.opts.Procfs, pid)
	switch {
	case errors.Is(err, model.ErrAbsent):
		return false
	case err == nil && len(l.processes) >= maxProcesses:
		err = fmt.Errorf("more than %d processes", maxProcesses)
		p.Close()
	}
	if err != nil {
		l.opts.Logger.Debug("process is not searched for collective libraries", zap.Int("pid", pid), zap.Error(err))
		return true
	}
	p.CheckFile = l.opts.Gate.CheckFile
	added := &process{Process: p, wait: l.opts.Interval, account: account{credit: startCredit}}
	l.own(added)
	l.processes[pid] = added
	return true
}

// own sets the cgroups of a process.
func (l *loop) own(p *process) {
	if l.opts.CgroupOf == nil {
		return
	}
	id, err := l.opts.CgroupOf(p.PID())
	p.cgroup, p.owner, p.workload = id, id, id
	if err == nil && l.opts.OwnerOf != nil {
		p.workload, p.owner = l.opts.OwnerOf(id)
	}
}

func (s *searches) begin(p *process) {
	p.searching = true
	s.Begin(p.owner, &result{of: p, err: safely.ErrPanicked}, func(r *result) {
		r.libraries, r.err = s.libraries.Find(p.Process)
		if len(r.libraries) > 0 {
			r.home, _ = p.Home()
		}
	})
}

// drop closes a result that nothing takes, and its process.
func (r *result) drop() {
	r.close()
	r.of.Close()
}

func (r *result) close() {
	if r.home != nil {
		r.home.Close()
	}
}

func (l *loop) handle(r *result) {
	p := r.of
	p.searching = false
	l.searches.Ended(p.owner)
	defer r.close()
	if p.ended {
		p.Close()
		return
	}
	p.next = time.Now().Add(p.wait)
	p.wait = min(2*p.wait, max(lastWait, l.opts.Interval))
	if errors.Is(r.err, model.ErrAbsent) {
		return // removeEnded removes it
	}
	if r.err != nil {
		l.opts.Logger.Info("a library is not probed", zap.Int("pid", p.PID()), zap.Error(r.err))
		p.incomplete = true
	}
	l.own(p) // the cgroup may have been unknown before
	if r.err == nil {
		p.linked = linked{graphs: p.graphs} // the process may have executed another program
	}
	for i := range r.libraries {
		l.add(p, &r.libraries[i], r)
	}
}

// removeEnded removes ended processes, and probes that no process needs.
func (l *loop) removeEnded() {
	all := make([]*process, 0, len(l.processes))
	opened := make([]*locate.Process, 0, len(l.processes))
	for _, p := range l.processes {
		all, opened = append(all, p), append(opened, p.Process)
	}
	locate.EachExited(opened, func(i int) {
		p := all[i]
		delete(l.processes, p.PID())
		l.files.leave(p.PID())
		if p.ended = true; !p.searching {
			p.Close()
		}
	})
	for id, f := range l.files {
		if f.home != nil && (f.home.Exited() || len(f.Paths) == 0 && f.kept.Changed()) {
			f.leaveHome()
		}
		if !f.needed() && !f.HasProbes() {
			f.close()
			delete(l.files, id)
		}
	}
}

func (l *loop) release() {
	l.shutdown()
	for _, f := range l.files {
		f.close()
	}
	for _, p := range l.processes {
		if !p.searching { // otherwise the search closes it
			p.Close()
		}
	}
}
