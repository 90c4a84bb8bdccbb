// SPDX-License-Identifier: Apache-2.0

package gpumemory

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

const (
	// stepInterval is the time between checks of the budget and of processes that ended.
	stepInterval = time.Second
	// lastWait is the longest time between searches of one process, which may load a library at any time.
	lastWait = time.Minute
	// maxSearching is the number of processes that are searched at once, those that hang included.
	maxSearching = 64
	// maxSearchingOfOwner is the number of processes of one owner among these: a process can make its search hang.
	maxSearchingOfOwner = maxSearching / 4
	// maxProcesses bounds the processes that are watched.
	maxProcesses = 4096
	// firstSearches is how long the start waits for the searches of the processes that exist.
	firstSearches = 2 * time.Second
)

// errHoldersUnknown is why no process is searched: there is no driver of a GPU, or the source access could not list them.
var errHoldersUnknown = fmt.Errorf("no process is known that has a GPU open, see the source access: %w", model.ErrAbsent)

// loop is the state that only the loop uses.
type loop struct {
	libraries  *locate.Libraries
	perProcess bool
	processes  map[int]*process
	files      map[locate.FileID]*file
	results    chan result
	searching  int
	ofOwner    map[model.CgroupID]int // searches, by owner
	changes    chan changed           // operations of the Gate that have ended
	changing   int                    // that are in progress
	listedAt   time.Time
	unknown    error // errHoldersUnknown, or nil
	// checkShadowStack returns an error if a process has a shadow stack: locate.Process.CheckShadowStack.
	checkShadowStack func(*locate.Process) error
}

// process is a process that has, or had, a GPU open, or calls a probed function.
type process struct {
	*locate.Process
	cgroup model.CgroupID // 0: unknown
	owner  model.CgroupID // that has a share of the BPF maps; 0: unknown
	// searching: a search is running, which may take as long as the process lives. ended: the search closes the process.
	searching, ended bool
	next             time.Time     // of the next search
	wait             time.Duration // after it
	refused          error         // why it must not be probed
	account
}

// result is the result of a search in a process.
type result struct {
	of        *process
	libraries []locate.Library
	home      *locate.Process // keeps the files of the process; nil if it is unknown
	refused   error           // why the process must not be probed
	err       error
}

func newLoop(perProcess bool) loop {
	return loop{
		libraries: locate.NewLibraries(libraryNames()), perProcess: perProcess,
		processes: map[int]*process{}, files: map[locate.FileID]*file{}, results: make(chan result),
		ofOwner: map[model.CgroupID]int{}, changes: make(chan changed, maxFiles),
		checkShadowStack: (*locate.Process).CheckShadowStack,
	}
}

// start searches the processes that exist, so that the first Read reports what could be attached.
func (s *Source) start() {
	s.step()
	deadline := time.NewTimer(firstSearches)
	defer deadline.Stop()
	for s.searching > 0 || s.changing > 0 {
		select {
		case r := <-s.results:
			s.handle(&r)
		case c := <-s.changes:
			s.handleChange(&c)
		case <-deadline.C:
			s.publish()
			return
		}
	}
	s.publish()
}

// run is the loop. Only this goroutine decides what is attached and detached; the Gate does it.
func (s *Source) run(ctx context.Context) {
	defer close(s.done)
	defer s.release() // also after a panic: nothing else limits what probes cost
	tick := time.NewTicker(min(stepInterval, s.opts.Interval))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case r := <-s.results:
			s.handle(&r)
		case c := <-s.changes:
			s.handleChange(&c)
		case <-tick.C:
			s.step()
		}
		s.publish()
	}
}

// step looks for processes that began or ended, searches those that are due, and keeps the budget.
func (s *Source) step() {
	now := time.Now()
	s.removeEnded()
	if now.Sub(s.listedAt) >= s.opts.Interval {
		s.listedAt = now
		pids, known := s.opts.Holders()
		if s.unknown = nil; !known {
			s.unknown = errHoldersUnknown
		}
		for _, pid := range pids {
			s.observe(pid)
		}
	}
	s.spend(now)
	for _, f := range s.files {
		s.exclude(f, now)
		s.change(f, now)
	}
	s.startSearches(now)
}

// startSearches searches the processes that are due.
func (s *Source) startSearches(now time.Time) {
	for _, p := range s.processes {
		if s.searching < maxSearching && !s.hasShare(p.owner) && !p.searching && !now.Before(p.next) {
			s.search(p)
		}
	}
}

// observe adds a process, and reports whether it exists.
func (s *Source) observe(pid int) bool {
	if s.processes[pid] != nil {
		return true
	}
	p, err := locate.OpenProcess(s.opts.Procfs, pid)
	switch {
	case errors.Is(err, model.ErrAbsent):
		return false
	case err == nil && len(s.processes) >= maxProcesses:
		err = fmt.Errorf("more than %d processes", maxProcesses)
		p.Close()
	}
	if err != nil {
		s.opts.Logger.Debug("process is not searched for libraries of GPUs", zap.Int("pid", pid), zap.Error(err))
		return true
	}
	p.CheckFile = s.opts.Gate.CheckFile
	cgroup, owner := s.ownerOf(pid)
	s.processes[pid] = &process{
		Process: p, cgroup: cgroup, owner: owner, wait: s.opts.Interval, account: account{credit: startCredit},
	}
	return true
}

// ownerOf returns the cgroup of a process and its owner, 0 if they are unknown.
func (s *Source) ownerOf(pid int) (cgroup, owner model.CgroupID) {
	if s.opts.CgroupOf == nil {
		return 0, 0
	}
	id, err := s.opts.CgroupOf(pid)
	if err != nil || s.opts.OwnerOf == nil {
		return id, id
	}
	_, share := s.opts.OwnerOf(id)
	return id, share
}

// hasShare reports whether an owner has as many searches as it may have. All processes without a known one are different owners.
func (s *Source) hasShare(owner model.CgroupID) bool {
	return owner != 0 && s.ofOwner[owner] >= maxSearchingOfOwner
}

// search searches a process in a goroutine of its own.
func (s *Source) search(p *process) {
	p.searching = true
	s.searching++
	s.ofOwner[p.owner]++
	perProcess := s.perProcess
	go safely.Do("gpumemory", func() {
		r := result{of: p, err: safely.ErrPanicked}
		defer func() {
			select {
			case s.results <- r:
			case <-s.done:
				r.close()
				p.Close()
			}
		}()
		if perProcess { // again each time, as the process may have executed another program
			r.refused = s.checkShadowStack(p.Process)
		}
		if r.refused == nil {
			r.libraries, r.err = s.libraries.Find(p.Process)
		}
		if len(r.libraries) > 0 {
			r.home, _ = p.Home()
		}
	})
}

func (r *result) close() {
	if r.home != nil {
		r.home.Close()
	}
}

// handle handles the result of a search.
func (s *Source) handle(r *result) {
	p := r.of
	p.searching = false
	s.searching--
	if s.ofOwner[p.owner]--; s.ofOwner[p.owner] == 0 {
		delete(s.ofOwner, p.owner)
	}
	defer r.close()
	if p.ended {
		p.Close()
		return
	}
	p.next = time.Now().Add(p.wait)
	p.wait = min(2*p.wait, max(lastWait, s.opts.Interval))
	if errors.Is(r.refused, model.ErrAbsent) || errors.Is(r.err, model.ErrAbsent) {
		return // removeEnded removes it
	}
	if p.refused = r.refused; p.refused != nil {
		s.leave(p)
		return
	}
	if r.err != nil {
		s.opts.Logger.Info("a library is not probed", zap.Int("pid", p.PID()), zap.Error(r.err))
	}
	for i := range r.libraries {
		s.add(p, &r.libraries[i], r)
	}
}

// removeEnded removes processes that have ended, and the probes that no process needs.
func (s *Source) removeEnded() {
	all := make([]*process, 0, len(s.processes))
	opened := make([]*locate.Process, 0, len(s.processes))
	for _, p := range s.processes {
		all, opened = append(all, p), append(opened, p.Process)
	}
	locate.EachExited(opened, func(i int) {
		p := all[i]
		delete(s.processes, p.PID())
		s.leave(p)
		_ = s.kernel.removeCalls(p.PID())
		if p.ended = true; !p.searching {
			p.Close()
		}
	})
	for id, f := range s.files {
		if f.home != nil && (f.home.Exited() || len(f.paths) == 0 && f.kept.Changed()) {
			f.leaveHome()
		}
		if !f.needed() && !f.turn.Taken() && len(f.links) == 0 {
			f.close()
			delete(s.files, id)
		}
	}
}

// leave removes a process from its files.
func (s *Source) leave(p *process) {
	for _, f := range s.files {
		f.leave(p.PID())
	}
}

// release detaches all probes and closes all processes.
func (s *Source) release() {
	s.shutdown()
	for _, f := range s.files {
		f.close()
	}
	for _, p := range s.processes {
		if !p.searching { // otherwise the search closes it
			p.Close()
		}
	}
}
