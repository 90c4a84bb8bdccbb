// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// watched is a process that uses verbs.
type watched struct {
	*locate.Process
	cgroup model.CgroupID
	owner  model.CgroupID // of the last search
	// searching: a search is running, which may take as long as the process lives.
	// Other events wait in queue. waiting: the process is listed for a search. ended:
	// the search closes the process.
	searching, waiting, ended bool
	queue                     []attempt
	openedAt                  time.Time
	chosen                    bool  // to be counted
	refused                   error // why it must not be probed
	cost, inSurvey            cost  // of its probes, without and with what is counted in surveys only
	surveyed                  bool  // there is a survey of one of its files
}

// release closes the process, or has the running search close it.
func (w *watched) release() {
	if w.ended = true; !w.searching {
		w.Close()
	}
}

// processes are the processes that use verbs. The loop uses them.
type processes struct {
	opts  *Options
	byPID map[int]*watched
	loads []processLoad     // buffer of readLoads
	some  []*locate.Process // buffer of readLoads and exited
}

// ownerOf returns the owner of a process in the shares of the maps.
func (p *processes) ownerOf(w *watched) model.CgroupID {
	if p.opts.OwnerOf == nil {
		return w.cgroup
	}
	_, share := p.opts.OwnerOf(w.cgroup)
	return share
}

// mapsIn reports whether a process of cgroups, or of other cgroups of their workloads, maps a file.
func (p *processes) mapsIn(f *file, cgroups []model.CgroupID) bool {
	for pid := range f.Paths {
		w := p.byPID[pid]
		if w != nil && slices.ContainsFunc(cgroups, func(id model.CgroupID) bool { return p.workloadOf(id) == p.workloadOf(w.cgroup) }) {
			return true
		}
	}
	return false
}

func (p *processes) workloadOf(cgroup model.CgroupID) model.CgroupID {
	if p.opts.OwnerOf == nil {
		return cgroup
	}
	workload, _ := p.opts.OwnerOf(cgroup)
	return workload
}

func (p *processes) ownerOfAttempt(a *attempt) model.CgroupID {
	if w := p.byPID[int(a.key.Tgid)]; w != nil {
		return p.ownerOf(w)
	}
	return p.ownerOf(&watched{cgroup: a.cgroup})
}

// ownersOf returns the owners of the processes that map a file, and 0 for further possible owners: processes of the node, and containers
// of the same image.
func (p *processes) ownersOf(f *file) (owners []uint64) {
	if f.kept != nil && (f.home == nil || f.home.PID() == 1) {
		owners = append(owners, 0)
	}
	of := map[model.CgroupID]bool{}
	for pid := range f.Paths {
		if w := p.byPID[pid]; w != nil {
			of[p.ownerOf(w)] = true
		}
	}
	for id := range of {
		owners = append(owners, uint64(id))
	}
	return owners
}

// exited returns the PIDs of processes that have ended.
func (p *processes) exited() (pids []int) {
	p.some = p.some[:0]
	for _, w := range p.byPID {
		p.some = append(p.some, w.Process)
	}
	locate.EachExited(p.some, func(i int) { pids = append(pids, p.some[i].PID()) })
	return pids
}

// processLoad is the CPU time of a process and the part that probes took.
type processLoad struct {
	pid      int
	cgroup   model.CgroupID
	cpu      time.Duration
	spent    [groups]time.Duration
	surveyed bool // one of its files was, since the last step
}

// readLoads reads the CPU time of all processes that have not exited.
func (p *processes) readLoads(spent map[int][groups]time.Duration) []processLoad {
	p.loads, p.some = p.loads[:0], p.some[:0]
	for pid, w := range p.byPID {
		if cpu, err := w.CPU(); err == nil {
			p.loads = append(p.loads, processLoad{pid, w.cgroup, cpu, spent[pid], w.surveyed})
			p.some = append(p.some, w.Process)
		}
	}
	locate.EachExited(p.some, func(i int) { p.loads[i].pid = 0 })
	p.loads = slices.DeleteFunc(p.loads, func(l processLoad) bool { return l.pid == 0 })
	return p.loads
}
