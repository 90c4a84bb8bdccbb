// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

type marks struct {
	mu   sync.Mutex
	of   map[model.CgroupID]mark
	room int
}

func (m *marks) Mark(id model.CgroupID, workload bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.of) >= m.room {
		return errors.New("no room")
	}
	m.of[id] = markShare
	if workload {
		m.of[id] = markWorkload
	}
	return nil
}

func (m *marks) Unmark(id model.CgroupID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.of, id)
}

// TestMarks: which cgroups are one workload, and which have one share.
func TestMarks(t *testing.T) {
	container := strings.Repeat("0123456789abcdef", 4)
	const (
		pod  = "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1234.slice"
		user = "user.slice/user-1000.slice"
	)
	scope := pod + "/cri-containerd-" + container + ".scope"
	slurm := "system.slice/slurmstepd.scope/job_7"
	want := map[string]mark{
		"kubepods.slice": markShare, // at the top
		scope:            markWorkload,
		"docker":         markShare, "docker/" + container: markWorkload,
		"lxc.payload.box": markWorkload,
		"system.slice":    markShare, "system.slice/slurmstepd.scope": markShare, slurm: markWorkload,
		"slurm": markShare, "slurm/uid_5/job_8": markWorkload,
		"system.slice/a.service": markShare, "system.slice/containerd.service": markShare,
		"user.slice": markShare, user: markShare,
		"delegated": markShare, "ecs": markShare, "ecs/task/" + container: markWorkload,
	}
	m := &marks{of: map[model.CgroupID]mark{}, room: 100}
	s := fakeTree(t, Options{Marker: m},
		scope+"/init/nested", "docker/"+container+"/docker/"+container, "lxc.payload.box/system.slice/b.service",
		slurm+"/step_0/user/task_1", "slurm/uid_5/job_8/step_batch/task_0",
		"system.slice/a.service/x/y", "system.slice/a.service/libpod-"+container+".scope",
		"system.slice/containerd.service",
		user+"/user@1000.service/app.slice/c.service/d", user+"/libpod-"+container+".scope", "delegated/e/f", "ecs/task/"+container)
	id := func(path string) model.CgroupID {
		t.Helper()
		id, err := cgroupID(filepath.Join(s.hierarchy.Mount, path))
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	got := map[string]mark{}
	s.mu.Lock()
	m.mu.Lock()
	for i := range s.table.byPath {
		if marked, ok := m.of[s.table.byPath[i].id]; ok {
			got[strings.TrimPrefix(i, "/")] = marked
		}
	}
	m.mu.Unlock()
	s.mu.Unlock()
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("marks (-want +got)\n%s", d)
	}

	for path, want := range map[string]struct{ workload, share string }{
		scope:                                    {scope, scope},
		scope + "/init/nested":                   {scope, scope},
		pod:                                      {pod, "kubepods.slice"},
		slurm + "/step_0/user/task_1":            {slurm, slurm},
		"system.slice/a.service/x/y":             {"system.slice/a.service/x/y", "system.slice/a.service"},
		"delegated/e/f":                          {"delegated/e/f", "delegated"},
		user + "/libpod-" + container + ".scope": {user + "/libpod-" + container + ".scope", user},
		user + "/user@1000.service/app.slice/c.service/d": {
			user + "/user@1000.service/app.slice/c.service/d", user,
		},
	} {
		workload, share := s.OwnerOf(id(path))
		if workload != id(want.workload) || share != id(want.share) {
			t.Errorf("%s: %d, %d; want %+v", path, workload, share, want)
		}
	}

	for path, want := range map[string]string{
		scope + "/init/nested": container, "ecs/task/" + container: container, "system.slice/a.service/x/y": "",
	} {
		if got := s.ContainerOf(id(path)); got != want {
			t.Errorf("%s: container %q, want %q", path, got, want)
		}
	}

	// The mark of an ended cgroup is removed.
	ended := id(slurm)
	if err := os.RemoveAll(filepath.Join(s.hierarchy.Mount, slurm)); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.watcher.walk()
	s.mu.Unlock()
	m.mu.Lock()
	if _, ok := m.of[ended]; ok || len(m.of) != len(want)-1 {
		t.Errorf("%d marks, want one less than %d", len(m.of), len(want))
	}

	// Without room, the loss is counted.
	m.room = len(m.of)
	m.mu.Unlock()
	full := fakeTree(t, Options{Root: s.opt.Root, Marker: m}, "docker/"+strings.Repeat("f", 64))
	snap, err := full.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	lost := model.Loss{Reason: "marked_cgroups_full", Count: uint64(len(want))}
	if !slices.Contains(snap.Losses, lost) {
		t.Errorf("%+v, want %+v", snap.Losses, lost)
	}
}

// TestMarksOfDelegatedTree: a user who may make cgroups anywhere below a top directory takes at most half of the marks,
// a quarter with names of containers, and gives them back.
func TestMarksOfDelegatedTree(t *testing.T) {
	for title, c := range map[string]struct {
		path func(i int) string
		most int
	}{
		"containers":                     {func(i int) string { return fmt.Sprintf("/lab/u/%064x", i) }, maxUnnamedBelow},
		"containers in many directories": {func(i int) string { return fmt.Sprintf("/lab/%d/%064x", i, i) }, maxUnnamedBelow},
		"scopes":                         {func(i int) string { return fmt.Sprintf("/lab/u/docker-%064x.scope", i) }, maxUnnamedBelow},
		"units":                          {func(i int) string { return fmt.Sprintf("/lab.slice/%d.service", i) }, maxMarksBelow},
		"units and containers":           {func(i int) string { return fmt.Sprintf("/lab.slice/%d.service/docker-%064x.scope", i, i) }, 0},
		"scopes in a slice":              {func(i int) string { return fmt.Sprintf("/lab.slice/docker-%064x.scope", i) }, maxMarksBelow},
	} {
		t.Run(title, func(t *testing.T) {
			m := &marks{of: map[model.CgroupID]mark{}, room: maxMarks}
			table := newTable(mountView{root: "/"}, 65536, func(*group) {})
			table.marker = m
			now, id := time.Unix(1, 0), model.CgroupID(0)
			add := func(path string) *group {
				id++
				g, _ := table.add(&group{path: "/"}, path, id, now)
				return g
			}
			const many = 10000
			var all []*group
			for i := range many {
				all = append(all, add(c.path(i)))
			}
			if len(m.of) > c.most || table.unmarked != 0 && len(m.of) != c.most {
				t.Errorf("%d marks, want %d", len(m.of), c.most)
			}
			for _, path := range []string{
				"/docker/" + id64, "/default/" + id64, "/system.slice/docker-" + other + ".scope", "/system.slice/slurmstepd.scope/job_7",
			} {
				if g := add(path); g.marked != markWorkload {
					t.Errorf("%s has no mark", path)
				}
			}
			for _, g := range all {
				table.end(g, now)
			}
			if g := add(c.path(many)); len(table.marks) > 4 || c.most > 0 && g.marked == unmarked {
				t.Errorf("marks are not given back: %v", table.marks)
			}
		})
	}
}
