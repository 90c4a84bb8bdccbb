// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"slices"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

// coverage returns the gaps of each cgroup and HCA with contexts. The caller holds mu.
func (m *meter) coverage() []model.Coverage {
	found := map[seriesKey][]model.Gap{}
	for id, counted := range m.fold.series {
		if counted.contexts > 0 {
			found[id] = nil
		}
	}
	now := monotonic()
	for key, c := range m.fold.contexts {
		for _, gap := range m.gapsOf(key, c, now) {
			found[c.series] = addGap(found[c.series], gap)
		}
	}
	for key, u := range m.unlocated {
		id := seriesKey{u.cgroup, key.device}
		found[id] = addGap(found[id], u.gap)
	}
	full := m.fullCgroups()
	var out []model.Coverage
	for id, gaps := range found {
		device := m.names.of(id.device)
		if device == "" {
			continue
		}
		if full[id.cgroup] {
			gaps = append(gaps, model.GapFull)
		}
		if s := m.fold.series[id]; s != nil && s.lost { // also by contexts that have ended
			gaps = append(gaps, model.GapLost)
		}
		if m.kernel != nil && m.kernel.refused[gen.DatapathProgExisting] != nil { // it may have others that are older than the hooks
			gaps = append(gaps, model.GapNotSeen)
		}
		if len(gaps) == 0 {
			gaps = []model.Gap{""}
		}
		for _, gap := range gaps {
			out = append(out, model.Coverage{Cgroup: id.cgroup, Device: device, Gap: gap})
		}
	}
	slices.SortFunc(out, func(a, b model.Coverage) int {
		return cmp.Or(cmp.Compare(a.Cgroup, b.Cgroup), cmp.Compare(a.Device, b.Device), cmp.Compare(a.Gap, b.Gap))
	})
	return out
}

// fullCgroups returns the cgroups of owners that have no room for another context.
func (m *meter) fullCgroups() map[model.CgroupID]bool {
	limit := cmp.Or(m.opts.MaxContexts, DefaultMaxContexts)
	contexts, full := map[uint64]uint32{}, map[model.CgroupID]bool{}
	for id := range m.fold.series {
		full[id.cgroup] = len(m.fold.contexts) >= int(limit)
	}
	for _, c := range m.fold.contexts {
		contexts[c.owner]++
	}
	for _, c := range m.fold.contexts {
		if contexts[c.owner] >= ofOwner(limit) {
			full[c.series.cgroup] = true
		}
	}
	return full
}
