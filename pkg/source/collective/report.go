// SPDX-License-Identifier: Apache-2.0

package collective

import (
	"slices"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// linked is what is known of the library of a process.
type linked struct {
	uses     bool // it uses NCCL or RCCL
	version  string
	static   bool
	unseen   bool // it contains a library without symbols
	counting bool // it maps a file whose functions were found
	// incomplete: it maps a file that could not be read, or that has no room beside the other files.
	incomplete bool
	graphs     bool // it launches graphs
}

// libraryOf returns the library in a file. A program may contain either.
func (n *fileName) libraryOf(lib *locate.Library) int {
	if n.Program && slices.ContainsFunc(lib.Functions, func(f locate.LibraryFunction) bool { return f.Name == "ncclAllToAllv" }) {
		return rccl // only RCCL has it
	}
	return n.library
}

// note records what a file says about the library of a process.
func (p *process) note(name *fileName, lib *locate.Library) {
	switch {
	case name.graphs:
		return
	case len(lib.Functions) > 0:
		p.counting = true
		p.static = p.static || name.Local
	case lib.Version != "":
		p.unseen = true
	default:
		return
	}
	p.uses = true
	if lib.Version != "" {
		p.version = lib.Version
	}
}

// published is what Read returns of the loop.
type published struct {
	hooks    []model.Hook
	failed   error
	versions map[int]string // of the library, by process
	coverage []model.CollectiveCoverage
	lost     map[model.CgroupID]bool // since the last one
}

func (l *loop) report() {
	p := published{failed: l.unknown, versions: map[int]string{}, coverage: []model.CollectiveCoverage{}, lost: l.lost}
	l.lost = map[model.CgroupID]bool{}
	for i := range functions {
		p.hooks = append(p.hooks, l.hookOf(i))
	}
	for pid, of := range l.processes {
		if !of.uses {
			continue
		}
		p.versions[pid] = of.version
		for _, gap := range l.gapsOf(pid, of) {
			if c := (model.CollectiveCoverage{Cgroup: of.workload, Gap: gap}); !slices.Contains(p.coverage, c) {
				p.coverage = append(p.coverage, c)
			}
			if gap == model.CollectiveBudget {
				p.lost[of.workload] = true
			}
		}
	}
	l.publish(p)
}

// gapsOf returns why launches of a process are not counted; "" comes first, because the process uses a library.
func (l *loop) gapsOf(pid int, p *process) []model.CollectiveGap {
	gaps := []model.CollectiveGap{""}
	for gap, holds := range map[model.CollectiveGap]bool{
		model.CollectiveStatic: p.static, model.CollectiveNoSymbols: p.unseen && !p.counting, model.CollectiveGraphs: p.graphs,
	} {
		if holds {
			gaps = append(gaps, gap)
		}
	}
	refused, paused := false, false
	for _, f := range l.files {
		if f.graphs || f.Paths[pid] == "" {
			continue
		}
		for i := range f.places {
			place := &f.places[i]
			paused = paused || place.pause.reason != nil
			_, attached := f.Links[half{Target: uprobe.Target[int]{Place: i}}]
			refused = refused || !attached && place.pause.reason == nil
		}
	}
	if refused || p.incomplete {
		gaps = append(gaps, model.CollectiveRefused)
	}
	if paused {
		gaps = append(gaps, model.CollectiveBudget)
	}
	return gaps
}

// hookOf returns the state of the probes of a function in all files.
func (l *loop) hookOf(i int) model.Hook {
	if err := l.kernel.refused[i]; err != nil {
		state := model.StateFailed
		if hook.Refused(err) {
			state = model.StateUnsupported
		}
		return model.Hook{Name: functions[i].name, State: state, Reason: err.Error(), Err: err}
	}
	h := model.Hook{
		Name: functions[i].name, State: model.StateAbsent, Reason: "no process that has a GPU open maps a library with this function",
	}
	for _, f := range l.files {
		if f.needed() && f.Excluded {
			h.Reason = "a process that maps the library must not have probes"
		}
		if !f.wanted() {
			continue
		}
		switch attached, err := f.stateOf(i); {
		case err != nil:
			return model.Hook{Name: functions[i].name, State: model.StateFailed, Reason: err.Error(), Err: err}
		case attached:
			h = model.Hook{Name: functions[i].name, Tier: "uprobe", State: model.StateOK}
		}
	}
	return h
}
