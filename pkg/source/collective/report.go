// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"maps"
	"slices"
	"time"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
	"github.com/accelscope/accelscope/pkg/source/library"
)

// linked is what is known of the library of a process.
type linked struct {
	uses     bool // it uses NCCL or RCCL
	version  string
	static   bool
	unseen   bool // it contains a library without symbols
	counting bool // it maps a file whose functions were found
}

// linkedOf returns what the files of a process say about its library.
func linkedOf(files []locate.Library) (l linked) {
	for i := range files {
		lib, name := &files[i], fileNameOf(files[i].Name)
		switch {
		case name.graphs:
			continue
		case len(lib.Functions) > 0:
			l.counting = true
			l.static = l.static || name.Local
		case lib.Version != "":
			l.unseen = true
		default:
			continue
		}
		l.uses = true
		if lib.Version != "" {
			l.version = lib.Version
		}
	}
	return l
}

// eachCall calls f with the calls of each process and function. It notes which processes launch graphs, and which workloads lost something.
func (s *Source) eachCall(f func(pid, function int, calls uint64) (drop bool)) error {
	return s.kernel.eachProcess(func(pid int, p *gen.CollectiveCollectiveProcess) (drop bool) {
		s.lose(model.CgroupID(p.LostIn))
		for i := range functions {
			drop = f(pid, i, p.Calls[i]) || drop
		}
		s.stateOf(pid).countGraphs(p)
		return drop
	})
}

// lose notes that a workload lost something.
func (s *Source) lose(workload model.CgroupID) {
	if workload == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.members.lost[workload] = true
}

// published is what Read returns about the probes.
type published struct {
	hooks    []model.Hook
	failed   error
	versions map[int]string // of the library, by process
	coverage []model.CollectiveCoverage
	// whole is since when all functions are probed that a process may call, CLOCK_MONOTONIC; 0: some are not.
	whole  map[int]uint64
	states map[int]model.LaunchingProcess
}

// publish sets what Read returns about the probes.
func (s *Source) publish() {
	p := published{
		hooks: s.prober.Hooks(), failed: s.prober.Err(), versions: map[int]string{}, coverage: []model.CollectiveCoverage{},
		whole: map[int]uint64{},
	}
	s.checkFiles()
	for pid, of := range s.prober.Processes {
		l := linkedOf(of.Libraries)
		if !l.uses {
			continue
		}
		p.versions[pid], p.whole[pid] = l.version, s.wholeSince(pid, of)
		for _, gap := range s.gapsOf(pid, of, &l) {
			if c := (model.CollectiveCoverage{Cgroup: of.Workload, Gap: gap}); !slices.Contains(p.coverage, c) {
				p.coverage = append(p.coverage, c)
			}
			if gap == model.CollectiveBudget {
				s.lose(of.Workload)
			}
		}
	}
	p.states = s.readStates(time.Now())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.probes = p
}

// checkFiles notes since when all functions of a file are probed.
func (s *Source) checkFiles() {
	now, err := monotonic()
	maps.DeleteFunc(s.whole, func(id locate.FileID, _ uint64) bool { return s.prober.Files[id] == nil })
	for id, f := range s.prober.Files {
		if lacks, pauses := f.Unprobed(); lacks || pauses || err != nil {
			delete(s.whole, id)
		} else if s.whole[id] == 0 {
			s.whole[id] = now.monotonic
		}
	}
}

// wholeSince returns since when all functions are probed that a process may call; 0: some are not.
func (s *Source) wholeSince(pid int, of *library.Process) (since uint64) {
	for id, f := range s.prober.Files {
		if f.Paths[pid] == "" || f.Optional {
			continue
		}
		if s.whole[id] == 0 || of.Incomplete {
			return 0
		}
		since = max(since, s.whole[id])
	}
	return since
}

// graphsUnprobed reports whether a process may launch graphs that are not counted.
func (s *Source) graphsUnprobed(pid int, of *library.Process) bool {
	if of.Incomplete {
		return true
	}
	for _, f := range s.prober.Files {
		if lacks, pauses := f.Unprobed(); f.Optional && f.Paths[pid] != "" && (lacks || pauses) {
			return true
		}
	}
	return false
}

// gapsOf returns why launches of a process are not counted; "" comes first, because the process uses a library.
func (s *Source) gapsOf(pid int, of *library.Process, l *linked) []model.CollectiveGap {
	lacking, paused := of.Incomplete, false
	for _, f := range s.prober.Files {
		if f.Paths[pid] != "" && !f.Optional {
			lacks, pauses := f.Unprobed()
			lacking, paused = lacking || lacks, paused || pauses
		}
	}
	gaps := []model.CollectiveGap{""}
	for gap, holds := range map[model.CollectiveGap]bool{
		model.CollectiveStatic: l.static, model.CollectiveNoSymbols: l.unseen && !l.counting,
		model.CollectiveGraphs:  s.states[pid].launchesGraphs(),
		model.CollectiveRefused: lacking, model.CollectiveBudget: paused,
	} {
		if holds {
			gaps = append(gaps, gap)
		}
	}
	return gaps
}
