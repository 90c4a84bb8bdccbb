// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"time"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

func (s *Source) isChosen(cgroup model.CgroupID) bool {
	return s.opts.Chosen == nil || s.opts.Chosen(cgroup)
}

func (s *Source) isExcluded(cgroup model.CgroupID) bool { return s.consent(cgroup) == uprobe.Refused }

func (s *Source) consent(cgroup model.CgroupID) uprobe.Consent {
	if s.opts.Consent == nil {
		return uprobe.Given
	}
	return s.opts.Consent(cgroup)
}

// awaitsConsent reports whether a file without probes must wait for the consent of a process that maps it.
func (s *Source) awaitsConsent(f *file) bool {
	awaited := false
	for pid := range f.paths {
		w := s.processes[pid]
		awaited = awaited || !f.hasProbes() && w != nil && s.consent(w.cgroup) == uprobe.Awaited
	}
	return f.wait.For(awaited, time.Now())
}

// updateExcluded checks again which processes must not have probes. The contexts of a file that loses its probes lack calls from
// then on. The file gets probes again after an interval between surveys: processes that come and go must not cause more changes
// than surveys do.
func (s *Source) updateExcluded() {
	if s.opts.Consent == nil {
		return
	}
	excluded, now := map[locate.FileID]bool{}, time.Now()
	of := map[int]bool{}
	for pid, w := range s.processes {
		of[pid] = s.isExcluded(w.cgroup)
	}
	for id, f := range s.files {
		barred := false
		for pid := range f.paths {
			barred = barred || of[pid]
		}
		switch {
		case barred && !f.excluded:
			f.barred = now.Add(s.schedule.interval)
		case now.Before(f.barred):
			barred = true
		}
		f.excluded, excluded[id] = barred, barred
	}
	s.meter.setExcluded(excluded)
}

// updateChosen checks again which cgroups are chosen.
func (s *Source) updateChosen() {
	if s.opts.Chosen == nil {
		return
	}
	asked := map[model.CgroupID]bool{}
	for key, p := range s.meter.allContexts() {
		chosen, ok := asked[p.cgroup]
		if !ok {
			chosen = s.isChosen(p.cgroup)
			asked[p.cgroup] = chosen
		}
		w := s.processes[int(key.Tgid)]
		if w == nil || chosen == p.chosen {
			continue
		}
		p.chosen = chosen
		w.chosen = w.chosen || chosen
		s.meter.setContext(key, p)
		s.newContexts = append(s.newContexts, newContext{key: key})
		s.pace.changed = true
		s.kernel.gap(key)
	}
}
