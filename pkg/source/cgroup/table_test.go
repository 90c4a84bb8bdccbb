// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"slices"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestCgroupMissedByWatch: Options.PathOf names a cgroup that the watch missed, and it expires like others.
func TestCgroupMissedByWatch(t *testing.T) {
	const id, unknown = 1 << 40, 1<<40 + 1
	now := time.Unix(1000, 0)
	s := fakeTree(t, Options{
		Grace: time.Minute, Now: func() time.Time { return now },
		PathOf: func(got model.CgroupID) (model.CgroupPath, bool) { return "/system.slice/flash.service", got == id },
	}, "a")
	for range 2 {
		snap, err := s.Resolve(t.Context(), []model.CgroupID{id, unknown})
		if err != nil {
			t.Fatal(err)
		}
		if got := byID(t, &snap)[id].Workload; got != "unit:flash.service" {
			t.Errorf("workload %q", got)
		}
		if _, ok := byID(t, &snap)[unknown]; ok || *snap.UnresolvedCgroups != 1 {
			t.Errorf("%d unresolved, want 1", *snap.UnresolvedCgroups)
		}
		if len(snap.Expired) != 0 {
			t.Errorf("expired %v within the grace time", snap.Expired)
		}
	}
	now = now.Add(2 * time.Minute)
	snap, err := s.Resolve(t.Context(), []model.CgroupID{id})
	if err != nil {
		t.Fatal(err)
	}
	// Without expiry the counters of the unresolved cgroup would stay.
	if !slices.Equal(snap.Expired, []model.CgroupID{id, unknown}) {
		t.Errorf("expired %v, want both", snap.Expired)
	}
	s.Forget(snap.Expired)
	if s.table.byID[id] != nil || len(s.unresolved) > 0 {
		t.Error("Forget kept them")
	}
	if snap, err = s.Resolve(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if *snap.UnresolvedCgroups != 1 || len(snap.Expired) != 0 {
		t.Errorf("%d unresolved, expired %v: a counter does not fall", *snap.UnresolvedCgroups, snap.Expired)
	}
}

// TestMarkedExpires: an ended unit expires although nothing was counted by its cgroup: processes below had entries in
// its share of the maps.
func TestMarkedExpires(t *testing.T) {
	now := time.Unix(1000, 0)
	s := fakeTree(t, Options{Grace: time.Minute, Now: func() time.Time { return now }}, "system.slice/a.service/x")
	s.mu.Lock()
	unit, below := s.table.byPath["/system.slice/a.service"], s.table.byPath["/system.slice/a.service/x"]
	for _, g := range []*group{below, unit} {
		s.table.end(g, now)
	}
	s.table.limit = 1 // a full table drops cgroups without a name and a mark
	s.table.sweep(now)
	if s.table.byID[below.id] != nil {
		t.Error("the cgroup below the unit is kept")
	}
	s.mu.Unlock()
	for _, want := range [][]model.CgroupID{{}, {unit.id}} {
		snap, err := s.Resolve(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(snap.Expired, want) {
			t.Errorf("expired %v, want %v", snap.Expired, want)
		}
		now = now.Add(2 * time.Minute)
	}
	s.Forget([]model.CgroupID{unit.id})
	if s.table.byID[unit.id] != nil {
		t.Error("Forget kept the unit")
	}
}
