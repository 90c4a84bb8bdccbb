// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"cmp"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/cgroup/slurm"
)

type group struct {
	id    model.CgroupID
	path  string       // below the mount
	fact  model.Cgroup // without ID
	top   string       // path of the workload's cgroup below the mount
	died  time.Time    // zero while it exists
	named bool         // Resolve returned it: kept until Forget
	// closed: all cgroups below belong to its workload or its user. They are neither watched nor listed, but looked up.
	closed bool
	walk   uint64 // the last walk that found it
	wd     int32  // its watch, or zero
	found  bool   // it was looked up
	marked mark
	// created is the number of children that were created since countedAt, within a second.
	created   int
	countedAt time.Time
}

// maxPerOwner limits the existing cgroups of a container, unit or user that are listed before a lookup, so that no
// owner can fill the table.
const maxPerOwner = 4096

// table holds cgroups by id, and existing cgroups also by path. The kernel reuses paths, but never ids.
type table struct {
	view    mountView
	limit   int
	byID    map[model.CgroupID]*group
	byPath  map[string]*group
	dead    map[model.CgroupID]*group
	owned   map[string]int // existing cgroups by owner
	swept   time.Time
	onDeath func(*group)
	marker  model.WorkloadMarker // nil if no programs count
	marks   map[string]int       // of existing cgroups, by directory at the top
	// unmarked counts the cgroups without a mark for lack of room.
	unmarked uint64
	// refused counts the cgroups that did not fit.
	refused uint64
	// numbers has the numbers of Slurm jobs.
	numbers *slurm.Numbers
	// isFlux reports whether the user with a number runs Flux.
	isFlux func(uid string) bool
}

func newTable(view mountView, limit int, onDeath func(*group)) *table {
	return &table{
		view: view, limit: limit, byID: map[model.CgroupID]*group{}, byPath: map[string]*group{},
		dead: map[model.CgroupID]*group{}, owned: map[string]int{}, onDeath: onDeath,
		numbers: &slurm.Numbers{}, marks: map[string]int{}, isFlux: func(string) bool { return false },
	}
}

// add records an existing cgroup below a listed cgroup, or a requested cgroup (above is nil). fresh reports that it is
// new. It returns nil if the table is full or, unless requested, if its owner has maxPerOwner cgroups.
func (t *table) add(above *group, path string, id model.CgroupID, now time.Time) (g *group, fresh bool) {
	g = t.byID[id]
	if g != nil && g.path == path && g.died.IsZero() {
		return g, false
	}
	if old := t.byPath[path]; old != nil {
		t.endTree(old, now)
	}
	// Below a closed cgroup, the owner is known before the path is parsed.
	if g == nil && above != nil && above.closed && t.owned[above.owner()] >= maxPerOwner {
		t.refused++
		return nil, false
	}
	if g == nil {
		g = &group{id: id}
		t.sweep(now)
	} else if g.died.IsZero() { // renamed
		t.end(g, now)
	}
	g.path = path
	g.fact, g.top, g.closed = parse(t.view.full(path))
	t.rename(g)
	if t.view.ours == "" {
		g.top = "/" + strings.Trim(strings.TrimPrefix(g.top, t.view.root), "/")
	}
	if t.byID[id] == nil && len(t.byID) >= t.limit || above != nil && t.owned[g.owner()] >= maxPerOwner {
		t.refused++
		return nil, false
	}
	delete(t.dead, id)
	g.died = time.Time{}
	t.byID[id] = g
	t.byPath[path] = g
	t.owned[g.owner()]++
	t.mark(g)
	return g, true
}

// rename names a cgroup after a job that its path alone does not name.
func (t *table) rename(g *group) {
	t.number(g)
	rest, ok := strings.CutPrefix(g.fact.Workload, "unit:user@")
	uid, unit, _ := strings.Cut(rest, ".service/")
	if job := fluxJob(unit); ok && job != "" && t.isFlux(uid) {
		g.fact.Workload, g.fact.Runtime = "flux:"+job, "flux"
	}
}

// learn records an ended cgroup by its path below the root of the hierarchy. It returns nil if the table is full.
func (t *table) learn(path string, id model.CgroupID, now time.Time) *group {
	t.sweep(now)
	if len(t.byID) >= t.limit {
		t.refused++
		return nil
	}
	g := &group{id: id, path: path, died: now}
	g.fact, g.top, _ = parse(path)
	t.rename(g)
	t.byID[id], t.dead[id] = g, g
	return g
}

// owner returns the path of the owner that may create cgroups here: below user.slice the user.
func (g *group) owner() string { return cmp.Or(userOf(g.path), g.top) }

// userOf returns the slice of the user of a path, or "" outside user.slice.
func userOf(path string) string {
	rest, ok := strings.CutPrefix(path, "/user.slice/")
	if !ok {
		return ""
	}
	user, _, _ := strings.Cut(rest, "/")
	return "/user.slice/" + user
}

func (t *table) end(g *group, now time.Time) {
	g.died = now
	t.dead[g.id] = g
	delete(t.byPath, g.path)
	t.unmark(g)
	t.onDeath(g)
	if t.owned[g.owner()]--; t.owned[g.owner()] == 0 {
		delete(t.owned, g.owner())
	}
}

// endTree records the end of a cgroup and the cgroups below, when another cgroup already has its path: their removal
// events may be unread, and their watches end with them.
func (t *table) endTree(g *group, now time.Time) {
	for path, below := range t.byPath {
		if strings.HasPrefix(path, strings.TrimSuffix(g.path, "/")+"/") && below != g {
			t.end(below, now)
		}
	}
	t.end(g, now)
}

func (t *table) lastAt(path string) (id model.CgroupID, ok bool) {
	var died time.Time
	for _, g := range t.dead {
		if g.path == path && (!ok || g.died.After(died)) {
			id, died, ok = g.id, g.died, true
		}
	}
	return id, ok
}

// sweep makes room in a full table: it drops the ended cgroups that expire does not return. It visits all of them, so
// it runs at most once per second.
func (t *table) sweep(now time.Time) {
	if len(t.byID) < t.limit || now.Sub(t.swept) < time.Second {
		return
	}
	t.swept = now
	for id, g := range t.dead {
		if !g.isKept() {
			t.drop(id)
		}
	}
}

// isKept reports whether an ended cgroup is kept until Forget: it has figures, or may have entries in the maps of the
// programs.
func (g *group) isKept() bool { return g.named || g.marked != unmarked }

// expire drops the cgroups that ended before the given time, were never returned by Resolve and have no mark. It
// returns the ids of the other cgroups that ended before: a marked cgroup may have entries in the maps of the programs.
func (t *table) expire(before time.Time) []model.CgroupID {
	ids := []model.CgroupID{}
	for id, g := range t.dead {
		switch {
		case !g.died.Before(before):
		case g.isKept():
			ids = append(ids, id)
		default:
			t.drop(id)
		}
	}
	return ids
}

// drop removes an ended cgroup. Its path may already belong to a new cgroup.
func (t *table) drop(id model.CgroupID) {
	if t.dead[id] != nil {
		delete(t.dead, id)
		delete(t.byID, id)
	}
}
