// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"path"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// A mark is how the programs count the cgroups below a cgroup.
type mark uint8

const (
	unmarked     mark = iota
	markWorkload      // as one workload
	markShare         // each by itself, with one share of the maps
)

// Limits of the marks below a directory at the top of the hierarchy, which root may have given to a user. The map has
// maxMarks in total.
const (
	maxMarks        = 8192
	maxMarksBelow   = maxMarks / 2
	maxUnnamedBelow = maxMarks / 4 // at this number, further containers that only their runtimes can name are not marked
)

// markOf returns how the cgroups below g are counted.
//
// A container and a job are one workload with everything below. A unit, a user and a cgroup at the top of the
// hierarchy, which may be delegated, have one share, because they may create cgroups. The workloads below them have
// their own names (units of a user, containers of rootless Podman), but are not marked: a user could fill the map of
// marks.
func (g *group) markOf() mark {
	user := userOf(g.path)
	switch {
	case user != "":
		if user == g.path {
			return markShare
		}
		return unmarked
	case g.fact.Claimed:
		return unmarked
	case strings.Count(g.path, "/") == 1 && g.path != "/":
		if g.path != g.top || !g.whole() {
			return markShare
		}
		return markWorkload
	case g.path != g.top:
		return unmarked
	case g.whole():
		return markWorkload
	case g.fact.Runtime == "systemd":
		return markShare
	}
	return unmarked
}

// whole reports whether all cgroups below belong to the workload of g.
func (g *group) whole() bool {
	return g.fact.ContainerID != "" || isJob(g.fact.Runtime) || g.fact.Runtime == runtimeLXC || g.unnamed()
}

// unnamed reports whether g may be a container that only its runtime can name.
func (g *group) unnamed() bool { return g.closed && g.fact.Runtime == "" && g.fact.ContainerID == "" }

func (t *table) mark(g *group) {
	g.marked = g.markOf()
	if g.marked == unmarked || t.marker == nil {
		return
	}
	marks, limit := t.marks[atTop(g.path)], maxMarksBelow
	if g.unnamed() {
		limit = maxUnnamedBelow
	}
	if marks >= limit || t.marker.Mark(g.id, g.marked == markWorkload) != nil {
		g.marked = unmarked
		t.unmarked++
		return
	}
	t.marks[atTop(g.path)]++
}

func (t *table) unmark(g *group) {
	if g.marked == unmarked || t.marker == nil {
		return
	}
	t.marker.Unmark(g.id)
	if t.marks[atTop(g.path)]--; t.marks[atTop(g.path)] == 0 {
		delete(t.marks, atTop(g.path))
	}
}

func atTop(path string) string {
	dir, _, _ := strings.Cut(strings.TrimPrefix(path, "/"), "/")
	return dir
}

// OwnerOf implements model.OwnerResolver. It returns what the programs find.
func (s *Source) OwnerOf(id model.CgroupID) (workload, share model.CgroupID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.find(id)
	if g == nil {
		return id, id
	}
	for dir := g.path; dir != "/"; dir = path.Dir(dir) {
		above := s.table.byPath[dir]
		switch {
		case above == nil || above.marked == unmarked:
		case above.marked == markWorkload:
			return above.id, above.id
		default:
			return id, above.id
		}
	}
	return id, id
}

// ContainerOf returns the id of the container in the path of a cgroup, also if only its runtime can name it. It returns
// "" if the path has no container, if a user other than root could have made the path, or if the cgroup is unknown.
func (s *Source) ContainerOf(id model.CgroupID) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.find(id)
	if g == nil || g.fact.Claimed {
		return ""
	}
	own := path.Base(g.top)
	if _, inScope := scope(own); g.fact.ContainerID == "" && isID(inScope) {
		return inScope
	} else if g.fact.ContainerID == "" && isID(own) {
		return own
	}
	return g.fact.ContainerID
}
