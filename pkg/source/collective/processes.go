// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"maps"
	"path/filepath"
	"strconv"
	"time"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/procfile"
)

// processState is what the Prober's goroutine knows of a process.
type processState struct {
	model.LaunchingProcess
	uses    bool          // it uses NCCL or RCCL
	graphs  uint64        // calls of functions that launch graphs
	started time.Duration // procfile.Stat.Start
}

func (s *Source) stateOf(pid int) *processState {
	if s.states[pid] == nil {
		s.states[pid] = &processState{}
	}
	return s.states[pid]
}

// countGraphs notes whether the process has launched a graph since the last call.
func (p *processState) countGraphs(of *gen.CollectiveCollectiveProcess) {
	calls := uint64(0)
	for i := range functions {
		if functions[i].kind == gen.CollectiveFunctionKindKIND_GRAPH {
			calls += of.Calls[i]
		}
	}
	if calls != p.graphs {
		p.graphs, p.LastGraph = calls, time.Now()
	}
}

func (p *processState) launchesGraphs() bool { return p != nil && p.graphs > 0 }

// readStates reads the states of processes that use a library, also of zombies, which the Prober no longer lists.
func (s *Source) readStates(now time.Time) map[int]model.LaunchingProcess {
	states := map[int]model.LaunchingProcess{}
	maps.DeleteFunc(s.states, func(pid int, p *processState) bool {
		of := s.prober.Processes[pid]
		if p.uses = p.uses || of != nil && linkedOf(of.Libraries).uses; !p.uses {
			return of == nil
		}
		if !p.read(s.procfs, pid, now) && of == nil {
			return true
		}
		if of != nil && s.graphsUnprobed(pid, of) {
			p.LastGraph = now
		}
		states[pid] = p.LaunchingProcess
		return false
	})
	return states
}

// read reads /proc/PID/stat, and returns false if the process has ended. Reading it takes no lock for which a process in state D may wait.
func (p *processState) read(procfs string, pid int, now time.Time) bool {
	stat, err := procfile.ReadStat(filepath.Join(procfs, strconv.Itoa(pid)))
	switch {
	case err != nil || p.started != 0 && stat.Start != p.started: // it has ended, and its number may be of another process
		return false
	case stat.State == "Z" && stat.Threads > 1:
		stat.State = ""
	}
	if p.started = stat.Start; p.State != stat.State || p.StateSince.IsZero() {
		p.State, p.StateSince = stat.State, now
	}
	p.CPU = stat.CPU
	return true
}

// setProcesses sets what is listed of processes, and which ended ranks others may wait for.
func (m *members) setProcesses(now moment) {
	launched, living := map[int]time.Time{}, map[string]bool{}
	for _, of := range m.of {
		if of.LastLaunch.After(launched[of.pid]) {
			launched[of.pid] = of.LastLaunch
		}
		living[of.Key] = living[of.Key] || of.ended == 0
	}
	for _, of := range m.of {
		if of.ended != 0 {
			of.Ended = now.at(of.ended)
		}
		of.awaited = of.ended != 0 && living[of.Key]
		ended := of.Process.Ended
		if state, known := m.states[of.pid]; known && !ended {
			of.Process = state
		}
		of.Process.PID, of.Process.Ended, of.Process.LastLaunch = of.pid, ended, launched[of.pid]
	}
}
