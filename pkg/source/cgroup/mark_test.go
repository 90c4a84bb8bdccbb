// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// marks records the marked cgroups.
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
	s.walk()
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
