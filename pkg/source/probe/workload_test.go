// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	testcgroup "github.com/accelscope/accelscope/tests/machines/cgroup"
)

// eachHierarchy runs a test with a cgroup of v2 and a cgroup of v1, if this machine has them.
func eachHierarchy(t *testing.T, f func(t *testing.T, subsystem, dir string)) {
	t.Helper()
	root(t)
	for _, h := range []struct{ name, root, subsystem, file string }{
		{"v2", "/sys/fs/cgroup", "", "cgroup.controllers"},
		{"v2 of a hybrid tree", "/sys/fs/cgroup/unified", "", "cgroup.controllers"},
		{"v1", "/sys/fs/cgroup/memory", "memory", "release_agent"},
	} {
		if _, err := os.Stat(filepath.Join(h.root, h.file)); err != nil {
			continue
		}
		t.Run(h.name, func(t *testing.T) {
			dir, _ := testcgroup.New(t, h.root)
			f(t, h.subsystem, dir)
		})
	}
}

func newChild(t *testing.T, dir string, name ...string) string {
	t.Helper()
	for _, n := range name {
		dir = filepath.Join(dir, n)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func callIn(t *testing.T, subsystem, dir string) {
	t.Helper()
	null, err := unix.Open("/dev/null", unix.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(null) //nolint:errcheck // nothing is written
	top := dir
	for !strings.HasPrefix(filepath.Base(top), "accelscope-test-") {
		top = filepath.Dir(top)
	}
	enterFrom(t, subsystem, filepath.Dir(top), dir, func() {
		if _, err := unix.Write(null, []byte{9, 0, 0, 0, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
	})
}

// TestWorkloads: calls in cgroups below a marked cgroup are counted for the marked cgroup, or in its share.
func TestWorkloads(t *testing.T) {
	eachHierarchy(t, func(t *testing.T, subsystem, dir string) {
		workloads, err := NewWorkloads()
		if err != nil {
			t.Fatal(err)
		}
		defer workloads.Close() //nolint:errcheck // memory of the kernel
		const entries, share = 64, 64 / 3
		s, err := New(Options{
			Sysfs: fakeSysfs(t, "1:3", "null0"), Tier: hook.Tracepoint, Subsystem: subsystem, MaxEntries: entries, Workloads: workloads,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close() //nolint:errcheck // TestTracepoints tests it
		read := func() (map[model.CgroupID]uint64, *model.Snapshot) {
			t.Helper()
			snap, err := s.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			calls := map[model.CgroupID]uint64{}
			for _, v := range snap.Verbs {
				if v.Key.Verb == "reg_mr" && v.Key.Device == "null0" {
					calls[v.Cgroup] += v.Value.Count
				}
			}
			return calls, &snap
		}
		mark := func(dir string, workload bool) {
			t.Helper()
			if err := workloads.Mark(idOf(t, dir), workload); err != nil {
				t.Fatal(err)
			}
		}

		// A job, before and after it is marked, with a rank far below.
		job := newChild(t, dir, "job")
		rank := newChild(t, job, "rank")
		callIn(t, subsystem, rank)
		mark(job, true)
		for i := range 100 { // more than the share
			callIn(t, subsystem, newChild(t, job, fmt.Sprint(i)))
		}
		callIn(t, subsystem, rank)
		callIn(t, subsystem, rank)
		callIn(t, subsystem, job)
		deep := job
		for i := range 30 {
			deep = newChild(t, deep, fmt.Sprint("level", i))
		}
		callIn(t, subsystem, deep)
		calls, snap := read()
		if calls[idOf(t, rank)] != 1 || calls[idOf(t, job)] != 104 || len(snap.OwnerLosses) > 0 {
			t.Errorf("rank %d and job %d calls, want 1 and 104; lost %v", calls[idOf(t, rank)], calls[idOf(t, job)], snap.OwnerLosses)
		}

		// A user: each cgroup is counted by itself, all in one share.
		user := newChild(t, dir, "user")
		mark(user, false)
		var own []string
		for i := range 30 {
			own = append(own, newChild(t, user, fmt.Sprint(i), "leaf"))
			callIn(t, subsystem, own[i])
		}
		calls, snap = read()
		counted := 0
		for _, dir := range own {
			if calls[idOf(t, dir)] == 1 {
				counted++
			}
		}
		_, lost := lossesOf(snap, idOf(t, user))
		if counted != share || lost["verbs_map_share"] != 30-share {
			t.Errorf("%d cgroups of the user counted, want %d; lost %v", counted, share, lost)
		}
		// One cgroup ends, so another has room.
		s.Forget([]model.CgroupID{idOf(t, own[0])})
		_, _ = read()
		callIn(t, subsystem, own[29])
		if calls, _ = read(); calls[idOf(t, own[29])] != 1 || calls[idOf(t, own[0])] != 0 {
			t.Errorf("after an end: %d calls of another, %d of the ended one", calls[idOf(t, own[29])], calls[idOf(t, own[0])])
		}

		// The marks are gone.
		workloads.Unmark(idOf(t, user))
		callIn(t, subsystem, own[28])
		if calls, _ = read(); calls[idOf(t, own[28])] != 1 {
			t.Errorf("without a mark: %d calls", calls[idOf(t, own[28])])
		}
	})
}
