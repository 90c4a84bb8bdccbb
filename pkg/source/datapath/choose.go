// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"maps"

	"github.com/accelscope/accelscope/gen"
)

func (s *Source) choose(cgroup uint64) bool { return s.opts.Chosen == nil || s.opts.Chosen(cgroup) }

// chooseAgain asks once more who is to be watched.
func (s *Source) chooseAgain() {
	if s.opts.Chosen == nil {
		return
	}
	s.mu.Lock()
	places := maps.Clone(s.contexts)
	s.mu.Unlock()
	asked := map[uint64]bool{}
	for key, p := range places {
		chosen, ok := asked[p.cgroup]
		if !ok {
			chosen = s.choose(p.cgroup)
			asked[p.cgroup] = chosen
		}
		w := s.processes[int(key.Tgid)]
		if w == nil || chosen == p.chosen {
			continue
		}
		p.chosen = chosen
		w.chosen = w.chosen || chosen
		s.put(key, p)
		s.found = append(s.found, key)
		s.kernel.gap(key)
	}
}

func (s *Source) put(key gen.DatapathContextKey, p place) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.contexts[key] = p
}
