// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// A group is one cgroup, dead or alive.
type group struct {
	id    uint64
	path  string       // below the mount
	fact  model.Cgroup // without ID
	top   string       // path below the mount of the workload's own cgroup
	died  time.Time    // zero while it lives
	named bool         // Resolve has told its name: it is kept until Forget
	walk  uint64       // the last walk that met it
	wd    int32        // its watch; zero if none
}

// maxPerOwner is how many living cgroups of one container, unit or user are
// known before anybody asks for them, so that none of them can take the whole table.
const maxPerOwner = 4096

// A table knows cgroups by id and, the living, by path. A path may be used
// again, an id never is.
type table struct {
	view    mountView
	limit   int
	byID    map[uint64]*group
	byPath  map[string]*group
	dead    map[uint64]*group
	owned   map[string]int // living cgroups by owner
	swept   time.Time
	onDeath func(*group)
	// refused counts the cgroups for which there was no place.
	refused uint64
}

func newTable(view mountView, limit int, onDeath func(*group)) *table {
	return &table{
		view: view, limit: limit, byID: map[uint64]*group{}, byPath: map[string]*group{},
		dead: map[uint64]*group{}, owned: map[string]int{}, onDeath: onDeath,
	}
}

// add notes that the cgroup id lives at path and says whether that is news.
// Nil when there is no place; the owner's share of it does not bind ids that
// are asked for.
func (t *table) add(path string, id uint64, asked bool, now time.Time) (g *group, fresh bool) {
	g = t.byID[id]
	if g != nil && g.path == path && g.died.IsZero() {
		return g, false
	}
	if old := t.byPath[path]; old != nil {
		t.buryTree(old, now)
	}
	if g == nil {
		g = &group{id: id}
		t.sweep(now)
	} else if g.died.IsZero() { // renamed
		t.bury(g, now)
	}
	g.path = path
	g.fact, g.top = parse(t.view.full(path))
	if t.view.ours == "" {
		g.top = "/" + strings.Trim(strings.TrimPrefix(g.top, t.view.root), "/")
	}
	if t.byID[id] == nil && len(t.byID) >= t.limit || !asked && t.owned[g.owner()] >= maxPerOwner {
		t.refused++
		return nil, false
	}
	delete(t.dead, id)
	g.died = time.Time{}
	t.byID[id] = g
	t.byPath[path] = g
	t.owned[g.owner()]++
	return g, true
}

// learn notes a cgroup that is dead already, by its path below the root of the
// hierarchy. Nil when there is no place.
func (t *table) learn(path string, id uint64, now time.Time) *group {
	t.sweep(now)
	if len(t.byID) >= t.limit {
		t.refused++
		return nil
	}
	g := &group{id: id, path: path, died: now}
	g.fact, g.top = parse(path)
	t.byID[id], t.dead[id] = g, g
	return g
}

// owner is whoever may create cgroups here: below user.slice the user.
func (g *group) owner() string {
	if rest, ok := strings.CutPrefix(g.path, "/user.slice/"); ok {
		user, _, _ := strings.Cut(rest, "/")
		return "/user.slice/" + user
	}
	return g.top
}

// bury notes that a living cgroup is gone.
func (t *table) bury(g *group, now time.Time) {
	g.died = now
	t.dead[g.id] = g
	delete(t.byPath, g.path)
	t.onDeath(g)
	if t.owned[g.owner()]--; t.owned[g.owner()] == 0 {
		delete(t.owned, g.owner())
	}
}

// buryTree buries a cgroup whose name another one has already, and what was
// below it: the events that tell so may still be waiting, for watches that end
// with it.
func (t *table) buryTree(g *group, now time.Time) {
	for path, below := range t.byPath {
		if strings.HasPrefix(path, strings.TrimSuffix(g.path, "/")+"/") && below != g {
			t.bury(below, now)
		}
	}
	t.bury(g, now)
}

// lastAt returns the id of the cgroup that died last at path.
func (t *table) lastAt(path string) (id uint64, ok bool) {
	var died time.Time
	for _, g := range t.dead {
		if g.path == path && (!ok || g.died.After(died)) {
			id, died, ok = g.id, g.died, true
		}
	}
	return id, ok
}

// sweep makes place in a full table at the cost of the dead whose name nobody
// has heard; once a second, for it looks at all of them.
func (t *table) sweep(now time.Time) {
	if len(t.byID) < t.limit || now.Sub(t.swept) < time.Second {
		return
	}
	t.swept = now
	for id, g := range t.dead {
		if !g.named {
			t.drop(id)
		}
	}
}

// expire drops the unnamed that are dead since before the given time and
// returns the named.
func (t *table) expire(before time.Time) []uint64 {
	ids := []uint64{}
	for id, g := range t.dead {
		switch {
		case !g.died.Before(before):
		case g.named:
			ids = append(ids, id)
		default:
			t.drop(id)
		}
	}
	return ids
}

// drop forgets a dead cgroup. Its path may belong to a living one by now.
func (t *table) drop(id uint64) {
	if t.dead[id] != nil {
		delete(t.dead, id)
		delete(t.byID, id)
	}
}
