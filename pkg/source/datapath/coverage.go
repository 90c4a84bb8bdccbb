// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"cmp"
	"errors"
	"io/fs"
	"slices"
	"time"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// idleAfter is the time after which a context without calls may be one whose queues are
// written directly.
const idleAfter = 10 * time.Second

// processDevice is the queue pairs of one process on one HCA.
type processDevice struct{ tgid, device uint32 }

// unlocated is why the functions of these queue pairs were not found.
type unlocated struct {
	cgroup model.CgroupID
	gap    model.Gap
}

// setUnlocated records the result of a search for the functions of a queue pair.
func (s *Source) setUnlocated(e *event, err error) {
	if e.qp == 0 {
		return
	}
	key := processDevice{e.key.Tgid, e.device}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		delete(s.unlocated, key)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, locate.ErrShadowStack), isFull(err):
		s.unlocated[key] = unlocated{e.cgroup, model.GapRefused}
	case isPassing(err):
		s.unlocated[key] = unlocated{e.cgroup, model.GapLate}
	default:
		s.unlocated[key] = unlocated{e.cgroup, model.GapProviderUnsupported}
	}
}

// coverage returns the gaps of each cgroup and HCA with contexts. The caller holds mu.
func (s *Source) coverage() []model.Coverage {
	found := map[seriesKey][]model.Gap{}
	for id, counted := range s.fold.series {
		if counted.contexts > 0 {
			found[id] = nil
		}
	}
	now := monotonic()
	for key, c := range s.fold.contexts {
		for _, gap := range s.gapsOf(key, c, now) {
			found[c.series] = addGap(found[c.series], gap)
		}
	}
	for key, u := range s.unlocated {
		id := seriesKey{u.cgroup, key.device}
		found[id] = addGap(found[id], u.gap)
	}
	full := s.fullCgroups()
	var out []model.Coverage
	for id, gaps := range found {
		device := s.deviceName(id.device)
		if device == "" {
			continue
		}
		if full[id.cgroup] {
			gaps = append(gaps, model.GapFull)
		}
		if s.kernel != nil && s.kernel.refused[gen.DatapathProgExisting] != nil { // it may have others that are older than the hooks
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

// fullCgroups returns the cgroups of owners that have as many contexts as they may have, or all if there is no room for any
// other context.
func (s *Source) fullCgroups() map[model.CgroupID]bool {
	limit := cmp.Or(s.opts.MaxContexts, DefaultMaxContexts)
	contexts, full := map[uint64]uint32{}, map[model.CgroupID]bool{}
	for id := range s.fold.series {
		full[id.cgroup] = len(s.fold.contexts) >= int(limit)
	}
	for _, c := range s.fold.contexts {
		contexts[c.owner]++
	}
	for _, c := range s.fold.contexts {
		if contexts[c.owner] >= ofOwner(limit) {
			full[c.series.cgroup] = true
		}
	}
	return full
}

// gapsOf returns the gaps of one context.
func (s *Source) gapsOf(key gen.DatapathContextKey, c *contextCounts, now uint64) (gaps []model.Gap) {
	p, located := s.contexts[key]
	if !located {
		if _, failed := s.unlocated[processDevice{key.Tgid, c.series.device}]; failed {
			return nil // coverage adds it
		}
		return []model.Gap{model.GapLate} // being searched
	}
	if !p.chosen || s.excluded[p.file] {
		return []model.Gap{model.GapNotSelected}
	}
	limited := c.place.isLimited()
	if s.unprobeable[p.file] {
		gaps = append(gaps, model.GapRefused)
	}
	if c.late || s.off[p.file] || !p.final { // not final: its functions are being probed
		gaps = append(gaps, model.GapLate)
	}
	if limited {
		gaps = append(gaps, model.GapSurvey)
	}
	if c.unread > 0 {
		gaps = append(gaps, model.GapExtendedPoll)
	}
	if p.direct && !limited && now-max(p.found, c.called) > uint64(idleAfter) {
		gaps = append(gaps, model.GapDirectWQE)
	}
	return gaps
}
