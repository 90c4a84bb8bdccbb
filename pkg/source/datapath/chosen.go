// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"maps"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

func (s *Source) isChosen(cgroup model.CgroupID) bool {
	return s.opts.Chosen == nil || s.opts.Chosen(cgroup)
}

// updateChosen checks again which cgroups are chosen.
func (s *Source) updateChosen() {
	if s.opts.Chosen == nil {
		return
	}
	s.mu.Lock()
	places := maps.Clone(s.contexts)
	s.mu.Unlock()
	asked := map[model.CgroupID]bool{}
	for key, p := range places {
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
		s.setContext(key, p)
		s.newContexts = append(s.newContexts, newContext{key: key})
		s.pace.changed = true
		s.kernel.gap(key)
	}
}

func (s *Source) setContext(key gen.DatapathContextKey, p contextState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.contexts[key] = p
}
