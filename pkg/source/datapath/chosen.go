// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"time"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

func (p *processes) isChosen(cgroup model.CgroupID) bool {
	return p.opts.Chosen == nil || p.opts.Chosen(cgroup)
}

func (p *processes) isExcluded(cgroup model.CgroupID) bool {
	return p.consent(cgroup) == uprobe.Refused
}

func (p *processes) consent(cgroup model.CgroupID) uprobe.Consent {
	if p.opts.Consent == nil {
		return uprobe.Given
	}
	return p.opts.Consent(cgroup)
}

// awaitsConsent reports whether a file without probes must wait for the consent of a process that maps it.
func (p *processes) awaitsConsent(f *file) bool {
	awaited := false
	for pid := range f.Paths {
		w := p.byPID[pid]
		awaited = awaited || w != nil && p.consent(w.cgroup) == uprobe.Awaited
	}
	return f.Waits(awaited, time.Now())
}

// updateExcluded checks again which processes refuse probes. The contexts of a file that loses its probes lack calls from then on. The
// file gets probes again after an interval between surveys: processes that come and go must not cause more changes than surveys do.
func (t *tracker) updateExcluded() {
	if t.opts.Consent == nil {
		return
	}
	excluded, now := map[locate.FileID]bool{}, time.Now()
	of := map[int]bool{}
	for pid, w := range t.processes.byPID {
		of[pid] = t.processes.isExcluded(w.cgroup)
	}
	for id, f := range t.prober.files {
		refused := false
		for pid := range f.Paths {
			refused = refused || of[pid]
		}
		f.Exclude(refused, t.opts.SurveyInterval, now)
		excluded[id] = f.Excluded
	}
	t.meter.setExcluded(excluded)
}

// updateChosen checks again which cgroups are chosen.
func (t *tracker) updateChosen() {
	if t.opts.Chosen == nil {
		return
	}
	asked := map[model.CgroupID]bool{}
	for key, p := range t.meter.allContexts() {
		chosen, ok := asked[p.cgroup]
		if !ok {
			chosen = t.processes.isChosen(p.cgroup)
			asked[p.cgroup] = chosen
		}
		w := t.processes.byPID[int(key.Tgid)]
		if w == nil || chosen == p.chosen {
			continue
		}
		p.chosen = chosen
		w.chosen = w.chosen || chosen
		t.meter.setContext(key, p)
		t.newContexts = append(t.newContexts, newContext{key: key})
		t.pace.changed = true
		t.prober.kernel.gap(key)
	}
}
