// SPDX-License-Identifier: Apache-2.0

package library

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

const (
	// lastWait is the longest time between searches of one process, which may load a library at any time.
	lastWait     = time.Minute
	maxProcesses = 4096
)

// Process is a process that has or had a GPU open, or that calls a probed function.
type Process struct {
	*locate.Process
	Workload model.CgroupID // under which programs count; 0: unknown
	// Libraries are the libraries that it maps. Incomplete: others could not be read, or have no room.
	Libraries  []locate.Library
	Incomplete bool

	cgroup model.CgroupID // 0: unknown
	owner  model.CgroupID // has a share of the BPF maps; 0: unknown
	// searching: a search is running, which may take as long as the process lives. ended: the search closes the
	// process.
	searching, ended bool
	next             time.Time     // time of the next search
	wait             time.Duration // after the next search
	refused          error         // why the process must not be probed
	account
}

type result struct {
	of        *Process
	libraries []locate.Library
	home      *locate.Process // keeps the files of the process; nil if unknown
	refused   error           // why the process must not be probed
	err       error
}

// observe adds a process, and reports whether it exists.
func (p *Prober) observe(pid int) bool {
	if p.Processes[pid] != nil {
		return true
	}
	opened, err := locate.OpenProcess(p.opts.Procfs, pid)
	switch {
	case errors.Is(err, model.ErrAbsent):
		return false
	case err == nil && len(p.Processes) >= maxProcesses:
		err = fmt.Errorf("more than %d processes", maxProcesses)
		opened.Close()
	}
	if err != nil {
		p.opts.Logger.Debug("process is not searched for libraries", zap.Int("pid", pid), zap.Error(err))
		return true
	}
	opened.CheckFile = p.opts.Gate.CheckFile
	added := &Process{Process: opened, wait: p.opts.Interval, account: account{credit: startCredit}}
	p.own(added)
	p.Processes[pid] = added
	return true
}

// own sets the cgroups of a process.
func (p *Prober) own(of *Process) {
	if p.opts.CgroupOf == nil {
		return
	}
	id, err := p.opts.CgroupOf(of.PID())
	of.cgroup, of.owner, of.Workload = id, id, id
	if err == nil && p.opts.OwnerOf != nil {
		of.Workload, of.owner = p.opts.OwnerOf(id)
	}
}

func (p *Prober) startSearches(now time.Time) {
	for _, of := range p.Processes {
		if p.searches.HasRoom(of.owner) && !of.searching && !now.Before(of.next) {
			p.search(of)
		}
	}
}

func (p *Prober) search(of *Process) {
	of.searching = true
	p.searches.Begin(of.owner, &result{of: of, err: safely.ErrPanicked}, func(r *result) {
		if p.spec.Check != nil { // each time, because the process may have executed another program
			r.refused = p.spec.Check(of.Process)
		}
		if r.refused == nil {
			r.libraries, r.err = p.libraries.Find(of.Process)
		}
		if len(r.libraries) > 0 {
			r.home, _ = of.Home()
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

func (p *Prober) handle(r *result) {
	of := r.of
	of.searching = false
	p.searches.Ended(of.owner)
	defer r.close()
	if of.ended {
		of.Close()
		return
	}
	of.next = time.Now().Add(of.wait)
	of.wait = min(2*of.wait, max(lastWait, p.opts.Interval))
	if errors.Is(r.refused, model.ErrAbsent) || errors.Is(r.err, model.ErrAbsent) {
		return // removeEnded removes it
	}
	if of.refused = r.refused; of.refused != nil {
		p.leave(of.PID())
		return
	}
	if r.err != nil {
		p.opts.Logger.Info("a library is not probed", zap.Int("pid", of.PID()), zap.Error(r.err))
	}
	p.own(of) // the cgroup may have been unknown before
	if of.Incomplete = r.err != nil; !of.Incomplete || len(r.libraries) > 0 {
		of.Libraries = r.libraries
	}
	for i := range r.libraries {
		p.add(of, &r.libraries[i], r)
	}
}

// leave removes a process from its files. change detaches the probes that only this process has.
func (p *Prober) leave(pid int) {
	for _, f := range p.Files {
		delete(f.Paths, pid)
		delete(f.owners, pid)
	}
}

// removeEnded removes ended processes, and probes that no process needs.
func (p *Prober) removeEnded() {
	all := make([]*Process, 0, len(p.Processes))
	opened := make([]*locate.Process, 0, len(p.Processes))
	for _, of := range p.Processes {
		all, opened = append(all, of), append(opened, of.Process)
	}
	locate.EachExited(opened, func(i int) {
		of := all[i]
		delete(p.Processes, of.PID())
		p.leave(of.PID())
		if of.ended = true; !of.searching {
			of.Close()
		}
	})
	for id, f := range p.Files {
		if f.home != nil && (f.home.Exited() || len(f.Paths) == 0 && f.kept.Changed()) {
			f.leaveHome()
		}
		if !f.needed() && !f.HasProbes() {
			f.close()
			delete(p.Files, id)
		}
	}
}
