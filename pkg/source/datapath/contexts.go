// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"errors"
	"io/fs"
	"maps"
	"time"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// idleAfter is the time without calls after which a process may be writing its queues directly.
const idleAfter = 10 * time.Second

// contextTable is what the meter knows of contexts and their files. The meter's mu guards it.
type contextTable struct {
	// contexts have located functions. places has the files of these functions.
	contexts map[gen.DatapathContextKey]contextState
	places   map[locate.FileID]place
	limited  bool                   // calls of some file are counted in surveys only
	excluded map[locate.FileID]bool // files that a process maps which must not have probes
	off      map[locate.FileID]bool // whether a file lacks probes which it should have
	// tracedSince is the time since which all functions of a file are probed without a break (CLOCK_MONOTONIC, ns).
	tracedSince map[locate.FileID]uint64
	// unprobeable are files with functions that cannot be probed. unlocated are the queue pairs, by process and device, whose functions
	// were not found.
	unprobeable map[locate.FileID]bool
	unlocated   map[processDevice]unlocated
}

// contextState is the state of a context with located functions: their file, the start of its probes (CLOCK_MONOTONIC, ns; 0: no probes
// yet), and whether its calls are counted.
type contextState struct {
	file   locate.FileID
	direct bool   // see locate.Found
	found  uint64 // when the functions were located (CLOCK_MONOTONIC, ns)
	probed uint64
	cgroup model.CgroupID
	chosen bool
	// existed: the context is older than the hooks.
	existed bool
	// final: probed does not change any more.
	final bool
}

// processDevice identifies the queue pairs of a process on an HCA.
type processDevice struct{ tgid, device uint32 }

type unlocated struct {
	cgroup model.CgroupID
	gap    model.Gap
}

func newContextTable() contextTable {
	return contextTable{
		contexts: map[gen.DatapathContextKey]contextState{}, places: map[locate.FileID]place{}, unlocated: map[processDevice]unlocated{},
	}
}

// placeOf returns where a context is counted, and how.
func (t *contextTable) placeOf(key gen.DatapathContextKey) place {
	return t.places[t.contexts[key].file]
}

// isLate reports whether a context could send before its functions were probed.
func (t *contextTable) isLate(key gen.DatapathContextKey, stat *gen.DatapathContextStat) bool {
	c := t.contexts[key]
	return c.final && stat.Late != 0 && (c.probed == 0 || stat.LateNs < c.probed)
}

// wasLate is isLate for a context that has ended. A context whose functions were not found in time was late, unless all files were probed
// before it could send (probed), and its posts were seen.
func (t *contextTable) wasLate(key gen.DatapathContextKey, stat *gen.DatapathContextStat, probed func(pid int, ns uint64) bool) bool {
	if stat.Late == 0 || t.contexts[key].final {
		return t.isLate(key, stat)
	}
	return !probed(int(key.Tgid), stat.LateNs) || stat.Hits[posts] == 0
}

// endProcesses removes the contexts of processes that have ended.
func (t *contextTable) endProcesses(ended func(tgid uint32) bool) {
	maps.DeleteFunc(t.contexts, func(key gen.DatapathContextKey, _ contextState) bool { return ended(key.Tgid) })
	maps.DeleteFunc(t.unlocated, func(key processDevice, _ unlocated) bool { return ended(key.tgid) })
}

// setUnlocated records the result of a search for the functions of a queue pair.
func (t *contextTable) setUnlocated(e *event, err error) {
	key := processDevice{e.key.Tgid, e.device}
	switch {
	case err == nil:
		delete(t.unlocated, key)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, locate.ErrShadowStack), isFull(err):
		t.unlocated[key] = unlocated{e.cgroup, model.GapRefused}
	case isPassing(err):
		t.unlocated[key] = unlocated{e.cgroup, model.GapLate}
	default:
		t.unlocated[key] = unlocated{e.cgroup, model.GapProviderUnsupported}
	}
}

// traceOf returns how completely the queue pairs of a context are traced.
func (t *contextTable) traceOf(key gen.DatapathContextKey, stat *gen.DatapathContextStat) openContext {
	p, located := t.contexts[key]
	at := t.placeOf(key)
	c := openContext{
		series: seriesKey{model.CgroupID(stat.Cgroup), stat.Device}, polled: stat.Hits[polls] > 0,
	}
	if since := t.tracedSince[p.file]; located && p.final && p.probed != 0 && since != 0 {
		c.since = max(since, p.probed)
	}
	switch {
	case at.isLimited():
		c.gap = model.GapSurvey
	case t.unprobeable[p.file]:
		c.gap = model.GapRefused
	case c.since == 0 || p.existed: // queue pairs that existed have a ring only once they post
		c.gap = model.GapLate
	case stat.Ringless != 0:
		c.gap = model.GapQueuesFull
	}
	return c
}

// gapsOf returns the gaps of one context.
func (t *contextTable) gapsOf(key gen.DatapathContextKey, c *contextCounts, now uint64) (gaps []model.Gap) {
	p, located := t.contexts[key]
	if !located {
		if _, failed := t.unlocated[processDevice{key.Tgid, c.series.device}]; failed {
			return nil // coverage adds it
		}
		return []model.Gap{model.GapLate} // being searched
	}
	if !p.chosen || t.excluded[p.file] {
		return []model.Gap{model.GapNotSelected}
	}
	limited := c.place.isLimited()
	if t.unprobeable[p.file] {
		gaps = append(gaps, model.GapRefused)
	}
	if c.late || t.off[p.file] || !p.final { // not final: probes are being attached
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
