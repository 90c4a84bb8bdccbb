// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(t *testing.T, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestFindHierarchy uses fake trees, because a machine has only one layout.
func TestFindHierarchy(t *testing.T) {
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  Hierarchy
		err   error
	}{
		{"v2", map[string]string{"cgroup.controllers": "memory rdma"}, Hierarchy{Mode: V2, Mount: "."}, nil},
		{"v1", map[string]string{
			"systemd/release_agent": "", "pids/release_agent": "", "memory/release_agent": "",
		}, Hierarchy{Mode: V1, Mount: "memory", Controller: "memory"}, nil},
		{
			"v1 together",
			map[string]string{"cpu,cpuacct/release_agent": ""},
			Hierarchy{Mode: V1, Mount: "cpu,cpuacct", Controller: "cpu"},
			nil,
		},
		{"hybrid", map[string]string{
			"unified/cgroup.controllers": "", "memory/release_agent": "", "pids/release_agent": "",
		}, Hierarchy{Mode: Hybrid, Mount: "memory", Controller: "memory"}, nil},
		{"hybrid, memory with v2", map[string]string{
			"unified/cgroup.controllers": "cpu memory", "pids/release_agent": "",
		}, Hierarchy{Mode: Hybrid, Mount: "unified"}, nil},
		{"hybrid, systemd only", map[string]string{
			"unified/cgroup.controllers": "", "systemd/release_agent": "",
		}, Hierarchy{Mode: Hybrid, Mount: "unified"}, nil},
		{"nothing", map[string]string{"memory/x": ""}, Hierarchy{}, model.ErrAbsent},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			write(t, root, tt.files)
			got, err := findHierarchy(root)
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if tt.want.Mount != "" {
				tt.want.Mount = filepath.Join(root, tt.want.Mount)
			}
			if diff := gocmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	if _, err := New(Options{Root: "/nonexistent"}); !errors.Is(err, model.ErrAbsent) {
		t.Errorf("no root: %v", err)
	}
}

func fakeTree(t *testing.T, o Options, dirs ...string) *Source {
	t.Helper()
	if o.Root == "" {
		o.Root = t.TempDir()
		write(t, o.Root, map[string]string{"cgroup.controllers": ""})
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(filepath.Join(o.Root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// TestUnreadable: an unreadable directory omits only its own subtree. Root may read any directory, so the path is too
// long: any user who may create cgroups can nest them this deep.
func TestUnreadable(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{"cgroup.controllers": ""})
	at, err := unix.Open(root, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		name := strings.Repeat("x", 250)
		if err := unix.Mkdirat(at, name, 0o755); err != nil {
			t.Fatal(err)
		}
		below, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Close(at)
		at = below
	}
	_ = unix.Close(at)
	s := fakeTree(t, Options{Root: root}, "good/a")
	out, err := s.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if len(out.DeviceStates) != 1 {
		t.Fatalf("%+v", out.DeviceStates)
	}
	state := out.DeviceStates[0]
	if state.Source != "cgroup" || state.State != model.StateFailed || !strings.HasPrefix(state.Device, "/xxx") ||
		len(state.Device) > maxLabel || state.Reason != "file name too long" {
		t.Errorf("%+v", state)
	}
	id, _ := cgroupID(filepath.Join(s.hierarchy.Mount, "good/a"))
	if got := resolve(t, s, []model.CgroupID{id}); byID(t, &got)[id].Workload != "cgroup:/good/a" {
		t.Errorf("%+v", got.Cgroups)
	}
}

// TestNoWatches: without watches, walks find unknown ids and ended cgroups, and Read reports the reason.
func TestNoWatches(t *testing.T) {
	var c clock
	s := fakeTree(t, Options{Now: c.now}, "a")
	full := errors.New("no watches left")
	s.mu.Lock()
	for wd, g := range s.watcher.watched {
		s.watcher.unwatch(g)
		delete(s.watcher.watched, wd)
	}
	s.watcher.noWatch = full
	s.mu.Unlock()
	if _, err := s.Read(context.Background()); !errors.Is(err, full) {
		t.Errorf("Read: %v", err)
	}
	dir := filepath.Join(s.hierarchy.Mount, "b")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	id, _ := cgroupID(dir)
	c.advance(walkOnMiss)
	if got := resolve(t, s, []model.CgroupID{id}); byID(t, &got)[id].Workload != "cgroup:/b" {
		t.Errorf("new cgroup is %+v", got.Cgroups)
	}
	if _, err := s.Read(context.Background()); err != nil {
		t.Errorf("the walk could watch again, but Read returns %v", err)
	}
}

// TestFullTable: a full table counts what does not fit. Ended cgroups that Resolve never returned make room.
func TestFullTable(t *testing.T) {
	s := fakeTree(t, Options{MaxCgroups: 3}, "a", "b", "c", "d")
	out, err := s.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	want := []model.Loss{ // the root is counted too
		{Reason: "cgroup_table_full", Count: 2}, {Reason: "cgroup_watch_paused"}, {Reason: "marked_cgroups_full"},
	}
	if diff := gocmp.Diff(want, out.Losses); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if n := len(s.table.byID); n != 3 {
		t.Errorf("%d known", n)
	}
}

// TestManyOfOneOwner: many cgroups of one owner do not fill the table, neither below a closed cgroup nor below a unit,
// which is not closed.
func TestManyOfOneOwner(t *testing.T) {
	var c clock
	tab := newTable(mountView{root: "/"}, 65536, func(*group) {})
	pod, unit := "/kubepods/burstable/pod"+uid+"/"+id64, "/system.slice/web.service"
	root, _ := tab.add(nil, "/", 1, c.now())
	tops := map[string]*group{}
	for i, path := range []string{pod, unit} {
		first := uint64(i+1) << 20
		tops[path], _ = tab.add(root, path, model.CgroupID(first), c.now())
		for n := range uint64(maxPerOwner - 1 + 10) {
			tab.add(tops[path], fmt.Sprintf("%s/%d", path, n), model.CgroupID(first+n+1), c.now())
		}
		if tab.owned[path] != maxPerOwner || tab.refused != uint64(i+1)*10 {
			t.Errorf("%s: %d known, %d refused", path, tab.owned[path], tab.refused)
		}
	}
	// Parsing allocates.
	more := pod + "/more"
	if n := testing.AllocsPerRun(10, func() { tab.add(tops[pod], more, 1<<42, c.now()) }); n != 0 {
		t.Errorf("%v allocations for one that is refused", n)
	}
	if g, _ := tab.add(nil, pod+"/seen", 1<<40, c.now()); g == nil {
		t.Error("a requested id is refused")
	}
	if g, _ := tab.add(root, "/docker/"+id64, 1<<41, c.now()); g == nil {
		t.Error("a cgroup of another owner is refused")
	}
	for _, g := range tab.byID {
		tab.end(g, c.now())
	}
	if len(tab.owned) != 0 {
		t.Errorf("owners without cgroups: %v", tab.owned)
	}
}

// TestReuseBeforeEvents: if a path has a new cgroup before the events of the old cgroup are read, the cgroups below the
// old cgroup have ended too.
func TestReuseBeforeEvents(t *testing.T) {
	var c clock
	tab := newTable(mountView{root: "/"}, 100, func(*group) {})
	for i, path := range []string{"/job", "/job/a", "/job/a/b", "/job2"} {
		tab.add(nil, path, model.CgroupID(i+1), c.now())
	}
	tab.add(nil, "/job", 10, c.now())
	var dead []model.CgroupID
	for id := range tab.dead {
		dead = append(dead, model.CgroupID(id))
	}
	slices.Sort(dead)
	if diff := gocmp.Diff([]model.CgroupID{1, 2, 3}, dead); diff != "" {
		t.Errorf("dead (-want +got)\n%s", diff)
	}
	if len(tab.byPath) != 2 || tab.byPath["/job"].id != 10 || tab.byPath["/job2"].id != 4 {
		t.Errorf("alive: %v", tab.byPath)
	}
}

// TestRDMACurrent uses a fake file in the format of kernel/cgroup/rdma.c.
func TestRDMACurrent(t *testing.T) {
	root := t.TempDir()
	pod := "kubepods/burstable/pod" + uid + "/" + id64
	write(t, root, map[string]string{
		"cgroup.controllers":     "memory rdma",
		"cgroup.subtree_control": "memory rdma",
		pod + "/rdma.current":    "mlx5_0 hca_handle=2 hca_object=20 \nmlx5_1 hca_handle=0 hca_object=0 \n",
		// The value of the parent includes the child's value.
		pod + "/child/rdma.current": "mlx5_0 hca_handle=1 hca_object=7 \n",
		"a/rdma.current":            "garbage\nmlx5_0 hca_handle=x hca_object=1\nmlx5_0 index=1 hca_handle=1 hca_object=3\n",
		"none/cgroup.procs":         "",
	})
	s := fakeTree(t, Options{Root: root})
	id := func(dir string) model.CgroupID {
		id, err := cgroupID(filepath.Join(root, dir))
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	out := resolve(t, s, []model.CgroupID{id(pod + "/child"), id("a"), id("none")})
	want := map[model.CgroupID][]model.RDMACgroup{
		// mlx5_1 has no charge.
		id(pod): {{Cgroup: id(pod), Device: "mlx5_0", Handles: 2, Objects: 20}},
		id("a"): {{Cgroup: id("a"), Device: "mlx5_0", Handles: 1, Objects: 3}},
	}
	got := map[model.CgroupID][]model.RDMACgroup{}
	for _, c := range out.RDMACgroups {
		got[c.Cgroup] = append(got[model.CgroupID(c.Cgroup)], c)
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if e := byID(t, &out)[id(pod)]; e.PodUID != uid {
		t.Errorf("the charged pod has no name: %+v", e)
	}
}

func TestMountView(t *testing.T) {
	const mountinfo = `31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 31 0:32 /docker/abc /with\040space rw,relatime - cgroup cgroup rw,memory
`
	for mount, want := range map[string]string{
		"/sys/fs/cgroup/memory": "/", "/with space": "/docker/abc", "/elsewhere": "/",
	} {
		if got := mountRoot([]byte(mountinfo), mount); got != want {
			t.Errorf("root of %s is %q, want %q", mount, got, want)
		}
	}
	for _, tt := range []struct {
		view              mountView
		path, below, full string
	}{
		{mountView{root: "/"}, "/a/b", "/a/b", "/a/b"},
		{mountView{root: "/"}, "/", "/", "/"},
		{mountView{root: "/"}, "/../a", "", ""},
		{mountView{root: "/docker/abc"}, "/docker/abc", "/", "/docker/abc"},
		{mountView{root: "/docker/abc"}, "/docker/abc/x", "/x", "/docker/abc/x"},
		{mountView{root: "/docker/abc"}, "/docker/abcd", "", ""},
		{mountView{root: "/../..", ours: "/pods/sensor"}, "/", "/pods/sensor", "/pods/sensor"},
		{mountView{root: "/../..", ours: "/pods/sensor"}, "/../other", "/pods/other", "/pods/other"},
		{mountView{root: "/../..", ours: "/pods/sensor"}, "/../../x", "/x", "/x"},
	} {
		below, err := tt.view.below(tt.path)
		if below != tt.below || (err != nil) != (tt.below == "") {
			t.Errorf("%+v: %q is at %q (%v), want %q", tt.view, tt.path, below, err, tt.below)
		}
		if err == nil && tt.view.full(below) != tt.full {
			t.Errorf("%+v: %q is %q of the hierarchy, want %q", tt.view, below, tt.view.full(below), tt.full)
		}
	}
}

// TestOwnNamespace creates random trees. The path of a cgroup as seen from another namespace (cgroup_path_ns: ".." for
// each level up, then down) must lead back to it.
func TestOwnNamespace(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	place := func() string {
		path := ""
		for range random.IntN(5) {
			path += fmt.Sprintf("/%c", 'a'+random.IntN(3))
		}
		return path
	}
	for range 2000 {
		ours, target := place(), place()
		var rel string
		up, down := strings.Split(ours, "/")[1:], strings.Split(target, "/")[1:]
		if ours == "" {
			up = nil
		}
		if target == "" {
			down = nil
		}
		for len(up) > 0 && len(down) > 0 && up[0] == down[0] {
			up, down = up[1:], down[1:]
		}
		for range up {
			rel += "/.."
		}
		for _, name := range down {
			rel += "/" + name
		}
		if rel == "" {
			rel = "/"
		}
		view := mountView{root: strings.Repeat("/..", strings.Count(ours, "/")), ours: cmp.Or(ours, "/")}
		got, err := view.below(rel)
		if err != nil || strings.TrimSuffix(got, "/") != target {
			t.Fatalf("%q seen from %q is %q: leads to %q (%v)", target, ours, rel, got, err)
		}
	}
}

// TestBlind: nodes where a sensor sees only its own part of the tree, or cannot find itself.
func TestBlind(t *testing.T) {
	for name, tt := range map[string]struct {
		root, first string // of the mount, and the cgroup of process 1
		blind       bool
	}{
		"the host's":         {"/", "/init.scope", false},
		"no process 1":       {"/", "", false},
		"its own mount":      {"/", "/../../../init.scope", true},
		"and the root's":     {"/", "/..", true},
		"not in its own":     {"/../..", "/../../init.scope", true},
		"a name with points": {"/", "/..x", false},
	} {
		procfs, tree := t.TempDir(), t.TempDir()
		files := map[string]string{
			"self/mountinfo": "35 31 0:32 " + tt.root + " " + tree + " rw - cgroup2 cgroup rw\n", "self/cgroup": "0::/\n",
		}
		if tt.first != "" {
			files["1/cgroup"] = "0::" + tt.first + "\n"
		}
		for file, text := range files {
			if err := errors.Join(os.MkdirAll(filepath.Join(procfs, filepath.Dir(file)), 0o755),
				os.WriteFile(filepath.Join(procfs, file), []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		if got := newMountView(procfs, Hierarchy{Mode: V2, Mount: tree}); (got.blind != nil) != tt.blind {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func BenchmarkResolve500(b *testing.B) {
	root := b.TempDir()
	if err := os.WriteFile(filepath.Join(root, "cgroup.controllers"), nil, 0o644); err != nil {
		b.Fatal(err)
	}
	var ids []model.CgroupID
	for i := range 500 {
		dir := filepath.Join(root, "kubepods/burstable", fmt.Sprintf("pod%08x", i), strings.Repeat("ab", 32))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			b.Fatal(err)
		}
		id, err := cgroupID(dir)
		if err != nil {
			b.Fatal(err)
		}
		ids = append(ids, model.CgroupID(id))
	}
	s, err := New(Options{Root: root})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	b.ReportAllocs()
	for b.Loop() {
		out, err := s.Resolve(context.Background(), ids)
		if err != nil || len(out.Cgroups) != len(ids) {
			b.Fatal(len(out.Cgroups), err)
		}
	}
}

// FuzzRDMA: any file yields only charges, with device names that are valid labels.
func FuzzRDMA(f *testing.F) {
	f.Add([]byte(rdmaCurrent))
	f.Add([]byte("mlx5_0 index=1 hca_handle=max hca_object=3 hca_handle=1\n"))
	f.Add([]byte(" \xff hca_object=1 hca_handle=18446744073709551615"))
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, c := range parseRDMA(nil, 7, text, &boundedfile.Skipped{}) {
			if c.Cgroup != 7 || c.Handles == 0 && c.Objects == 0 || c.Device == "" || c.Device != clean(c.Device, maxLabel) {
				t.Errorf("%q: %+v", text, c)
			}
		}
	})
}
