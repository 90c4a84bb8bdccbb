// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	testcgroup "github.com/accelscope/accelscope/tests/machines/cgroup"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// trees returns the real hierarchies of this machine. Each test of this file runs on all of them and fails without a
// hierarchy.
func trees(t *testing.T, test func(t *testing.T, tree tree)) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to make cgroups")
	}
	found := 0
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		h, err := findHierarchy(root)
		if errors.Is(err, model.ErrAbsent) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		found++
		name := "v2"
		if h.Controller != "" {
			name = "v1-" + h.Controller
		}
		t.Run(name, func(t *testing.T) {
			top := fmt.Sprintf("/accelscope-%d-%d.slice", os.Getpid(), nextTop.Add(1))
			tr := tree{root: root, mount: h.Mount, top: top}
			tr.mkdir(t, "")
			t.Cleanup(func() { tr.rmAll(t) })
			test(t, tr)
		})
	}
	if found == 0 {
		t.Fatal("no cgroup hierarchy is mounted below /sys/fs/cgroup")
	}
}

var nextTop atomic.Int64

type tree struct{ root, mount, top string }

func (tr tree) dir(path string) string { return tr.mount + tr.top + path }

func (tr tree) mkdir(t *testing.T, path string) uint64 {
	t.Helper()
	if err := os.Mkdir(tr.dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	return tr.id(t, path)
}

// id returns the cgroup id from the file handle, a kernel interface that the source does not use.
func (tr tree) id(t *testing.T, path string) uint64 {
	t.Helper()
	h, _, err := unix.NameToHandleAt(unix.AT_FDCWD, tr.dir(path), 0)
	if err != nil {
		t.Fatal(err)
	}
	if h.Type() != fileidKernfs || h.Size() != 8 {
		t.Fatalf("file handle of type %#x and %d bytes, want a kernfs id", h.Type(), h.Size())
	}
	return binary.NativeEndian.Uint64(h.Bytes())
}

func (tr tree) rmdir(t *testing.T, path string) {
	t.Helper()
	if err := unix.Rmdir(tr.dir(path)); err != nil {
		t.Fatalf("rmdir %s: %v", tr.dir(path), err)
	}
}

func (tr tree) rmAll(t *testing.T) {
	if err := testcgroup.Remove(tr.dir("")); err != nil {
		t.Error(err)
	}
}

func (tr tree) open(t *testing.T, o Options) *Source {
	t.Helper()
	o.Root = tr.root
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (tr tree) process(t *testing.T, path string) *exec.Cmd {
	t.Helper()
	cmd := child.Command(context.Background(), "sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { end(cmd) })
	procs := filepath.Join(tr.dir(path), "cgroup.procs")
	if err := os.WriteFile(procs, []byte(strconv.Itoa(cmd.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func end(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

// known reports whether the watch alone has found the id.
func known(s *Source, id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.byID[model.CgroupID(id)] != nil
}

func eventually(t *testing.T, what string, ok func() bool) time.Duration {
	t.Helper()
	start := time.Now()
	for !ok() {
		if time.Since(start) > 30*time.Second {
			t.Fatalf("%s: not within 30 s", what)
		}
		time.Sleep(100 * time.Microsecond)
	}
	return time.Since(start)
}

func resolve(t *testing.T, s *Source, ids []model.CgroupID) model.Snapshot {
	t.Helper()
	out, err := s.Resolve(context.Background(), ids)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// byID returns the cgroups of a snapshot and fails if an id is listed twice.
func byID(t testing.TB, snap *model.Snapshot) map[model.CgroupID]model.Cgroup {
	t.Helper()
	all := make(map[model.CgroupID]model.Cgroup, len(snap.Cgroups))
	for _, c := range snap.Cgroups {
		if _, twice := all[c.ID]; twice {
			t.Errorf("cgroup %d is listed twice: %+v", c.ID, snap.Cgroups)
		}
		all[c.ID] = c
	}
	return all
}

type clock struct{ ns atomic.Int64 }

func (c *clock) now() time.Time          { return time.Unix(1e9, c.ns.Load()) }
func (c *clock) advance(d time.Duration) { c.ns.Add(int64(d)) }

// TestCgroupLifetime: a cgroup is found without a lookup, below the root or below other new directories. After its end
// its name is still returned, then expires, and then is dropped.
func TestCgroupLifetime(t *testing.T) {
	trees(t, func(t *testing.T, tr tree) {
		var c clock
		s := tr.open(t, Options{Grace: time.Minute, Now: c.now})
		const path = "/kubepods/burstable/pod" + uid + "/" + id64
		for _, dir := range []string{"/kubepods", "/kubepods/burstable", "/kubepods/burstable/pod" + uid} {
			tr.mkdir(t, dir)
		}
		id := tr.mkdir(t, path)
		took := eventually(t, "the watch knows the container", func() bool { return known(s, id) })
		t.Logf("known %v after mkdir", took)

		want := model.Cgroup{
			ID: model.CgroupID(id), Path: model.CgroupPath(tr.top + path), Workload: "pod:" + uid + "/" + id12, ContainerID: id64, PodUID: uid,
		}
		alive := resolve(t, s, []model.CgroupID{model.CgroupID(id)})
		if diff := cmp.Diff([]model.Cgroup{want}, alive.Cgroups); diff != "" {
			t.Fatalf("(-want +got)\n%s", diff)
		}

		tr.rmdir(t, path)
		eventually(t, "the watch knows of the death", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.table.dead[model.CgroupID(id)] != nil
		})
		c.advance(59 * time.Second)
		dead := resolve(t, s, []model.CgroupID{model.CgroupID(id)})
		if !slices.Equal(dead.Cgroups, []model.Cgroup{want}) || len(dead.Expired) != 0 {
			t.Fatalf("in the grace time: %+v", dead)
		}
		c.advance(2 * time.Second)
		gone := resolve(t, s, []model.CgroupID{model.CgroupID(id)})
		if diff := cmp.Diff([]model.CgroupID{model.CgroupID(id)}, gone.Expired); diff != "" || !slices.Equal(gone.Cgroups, []model.Cgroup{want}) {
			t.Fatalf("after the grace time: %s %+v", diff, gone)
		}
		s.Forget(gone.Expired)
		forgotten := resolve(t, s, []model.CgroupID{model.CgroupID(id)})
		if len(forgotten.Cgroups) != 0 || len(forgotten.Expired) != 0 || *forgotten.UnresolvedCgroups != 1 {
			t.Fatalf("after Forget: %+v", forgotten)
		}
	})
}

// TestForgetAlive: Forget does not drop existing cgroups.
func TestForgetAlive(t *testing.T) {
	trees(t, func(t *testing.T, tr tree) {
		s := tr.open(t, Options{})
		id := tr.mkdir(t, "/a")
		resolve(t, s, []model.CgroupID{model.CgroupID(id)})
		s.Forget([]model.CgroupID{model.CgroupID(id)})
		if out := resolve(t, s, []model.CgroupID{model.CgroupID(id)}); byID(t, &out)[model.CgroupID(id)].Workload != "cgroup:"+tr.top+"/a" {
			t.Errorf("%+v", out.Cgroups)
		}
	})
}

// TestPathReuse: a container with the path of an ended container has its own id, and Forget of the first keeps the
// second.
func TestPathReuse(t *testing.T) {
	trees(t, func(t *testing.T, tr tree) {
		var c clock
		s := tr.open(t, Options{Grace: time.Minute, Now: c.now})
		first := tr.mkdir(t, "/job")
		eventually(t, "first known", func() bool { return known(s, first) })
		resolve(t, s, []model.CgroupID{model.CgroupID(first)})
		tr.rmdir(t, "/job")
		second := tr.mkdir(t, "/job")
		if first == second {
			t.Fatalf("the kernel used id %d twice", first)
		}
		out := resolve(t, s, []model.CgroupID{model.CgroupID(second), model.CgroupID(first)})
		named := func(id model.CgroupID) model.Cgroup {
			return model.Cgroup{ID: id, Path: model.CgroupPath(tr.top + "/job"), Workload: "cgroup:" + tr.top + "/job"}
		}
		want := map[model.CgroupID]model.Cgroup{model.CgroupID(first): named(model.CgroupID(first)), model.CgroupID(second): named(model.CgroupID(second))}
		if diff := cmp.Diff(want, byID(t, &out)); diff != "" {
			t.Fatalf("(-want +got)\n%s", diff)
		}
		eventually(t, "first is dead", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.table.dead[model.CgroupID(first)] != nil && s.table.dead[model.CgroupID(second)] == nil
		})
		c.advance(2 * time.Minute)
		expired := resolve(t, s, []model.CgroupID{model.CgroupID(second), model.CgroupID(first)}).Expired
		if diff := cmp.Diff([]model.CgroupID{model.CgroupID(first)}, expired); diff != "" {
			t.Fatalf("expired (-want +got)\n%s", diff)
		}
		s.Forget(expired)
		out = resolve(t, s, []model.CgroupID{model.CgroupID(second)})
		if !slices.Equal(out.Cgroups, []model.Cgroup{named(model.CgroupID(second))}) || *out.UnresolvedCgroups != 0 {
			t.Errorf("second after the first was forgotten: %+v", out)
		}
		if id, err := s.CgroupOf(tr.process(t, "/job").Process.Pid); id != model.CgroupID(second) || err != nil {
			t.Errorf("process in %d, want %d: %v", id, second, err)
		}
	})
}

// TestChurn: each of many short-lived containers, 20 at a time, is found. Another process creates them, and they end
// when the watch has seen them: on a busy machine any fixed time is too short.
func TestChurn(t *testing.T) {
	const total, together = 300, 20
	const life = `mkdir "$0/$2" && echo $(stat -c %i "$0/$2") "$2"
sh -c 'echo $$ > "$0/cgroup.procs"; for i in $(seq 600); do [ ! -e "$1" ] || exit 0; sleep 0.05; done' "$0/$2" "$1/$2"
until rmdir "$0/$2" 2>&-; do sleep 0.01; done`
	trees(t, func(t *testing.T, tr tree) {
		s, seen := tr.open(t, Options{}), t.TempDir()
		var names strings.Builder
		for i := range total {
			fmt.Fprintf(&names, "churn-%d\n", i)
		}
		cmd := child.Command(context.Background(), "xargs", "-P", strconv.Itoa(together), "-n", "1", "sh", "-c", life, tr.dir(""), seen)
		cmd.Stdin = strings.NewReader(names.String())
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var ids []model.CgroupID
		var waiting sync.WaitGroup
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var id uint64
			var name string
			if _, err := fmt.Sscan(lines.Text(), &id, &name); err != nil {
				t.Errorf("%q: %v", lines.Text(), err)
				continue
			}
			ids = append(ids, model.CgroupID(id))
			waiting.Go(func() {
				for began := time.Now(); !known(s, id) && time.Since(began) < 20*time.Second; time.Sleep(10 * time.Millisecond) {
				}
				if err := os.WriteFile(filepath.Join(seen, name), nil, 0o644); err != nil {
					t.Error(err)
				}
			})
		}
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		waiting.Wait()
		got := map[string]bool{}
		snapshot := resolve(t, s, ids)
		for _, c := range byID(t, &snapshot) {
			got[c.Workload] = true
		}
		for i := range total {
			if want := fmt.Sprintf("cgroup:%s/churn-%d", tr.top, i); !got[want] {
				t.Errorf("%s is not known", want)
			}
		}
		if len(ids) != total || *snapshot.UnresolvedCgroups != 0 {
			t.Errorf("%d ids, %d without a name", len(ids), *snapshot.UnresolvedCgroups)
		}
	})
}

// TestCgroupOf compares the cgroup of processes and threads with cgroup.procs.
func TestCgroupOf(t *testing.T) {
	trees(t, func(t *testing.T, tr tree) {
		s := tr.open(t, Options{})
		id := tr.mkdir(t, "/a:b c")
		cmd := tr.process(t, "/a:b c")
		pid := cmd.Process.Pid
		if !hasWord(filepath.Join(tr.dir("/a:b c"), "cgroup.procs"), strconv.Itoa(pid)) {
			t.Fatal("the process is not in the cgroup")
		}
		gone := 1 << 22
		thread := unix.Gettid()
		own, err := s.CgroupOf(os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		for task, want := range map[int]model.CgroupID{pid: model.CgroupID(id), thread: own} {
			if got, err := s.CgroupOf(task); got != want || err != nil {
				t.Errorf("cgroup of %d is %d, want %d: %v", task, got, want, err)
			}
		}
		out := resolve(t, s, []model.CgroupID{model.CgroupID(id)})
		if got := byID(t, &out)[model.CgroupID(id)].Workload; got != "cgroup:"+tr.top+"/a:b c" {
			t.Errorf("workload %q", got)
		}
		if _, err := s.CgroupOf(gone); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("process that is gone: %v", err)
		}
		end(cmd)
		if _, err := s.CgroupOf(pid); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("process that has ended: %v", err)
		}
	})
}

// TestByHandle: a cgroup missed by the watch is found by its file handle.
func TestByHandle(t *testing.T) {
	trees(t, func(t *testing.T, tr tree) {
		s := tr.open(t, Options{})
		id := tr.mkdir(t, "/a")
		eventually(t, "known", func() bool { return known(s, id) })
		s.mu.Lock()
		s.table.end(s.table.byID[model.CgroupID(id)], s.opt.Now())
		s.table.drop(model.CgroupID(id))
		walks := s.watcher.walks
		s.mu.Unlock()
		out := resolve(t, s, []model.CgroupID{model.CgroupID(id), 1 << 60, 1 << 60})
		if got := byID(t, &out)[model.CgroupID(id)].Workload; got != "cgroup:"+tr.top+"/a" || len(out.Cgroups) != 1 {
			t.Errorf("%+v", out.Cgroups)
		}
		if *out.UnresolvedCgroups != 1 {
			t.Errorf("%d unresolved, want 1", *out.UnresolvedCgroups)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.watcher.walks != walks {
			t.Error("the tree was walked for an id that the kernel knew")
		}
	})
}

// TestQueueOverflow: after an overflow of the event queue the tree is walked.
func TestQueueOverflow(t *testing.T) {
	limit, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Fatal(err)
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(limit)))
	trees(t, func(t *testing.T, tr tree) {
		s := tr.open(t, Options{})
		s.mu.Lock() // stops the reader of events
		walks := s.watcher.walks
		for i := range n/2 + 500 {
			dir := tr.dir(fmt.Sprintf("/q%d", i))
			if os.Mkdir(dir, 0o755) != nil || unix.Rmdir(dir) != nil {
				s.mu.Unlock()
				t.Fatal("cannot make cgroups")
			}
		}
		late := tr.mkdir(t, "/late")
		s.mu.Unlock()
		eventually(t, "the cgroup of the lost event", func() bool { return known(s, late) })
		eventually(t, "the walk after the overflow", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.watcher.walks > walks
		})
	})
}

// TestWatchesAreGivenBack: the kernel keeps the watch of a removed cgroup. The source must remove it, or a busy node
// runs out of watches.
func TestWatchesAreGivenBack(t *testing.T) {
	trees(t, func(t *testing.T, tr tree) {
		s := tr.open(t, Options{})
		watches := func() int {
			n := 0
			_ = s.watcher.events.Control(func(fd uintptr) {
				b, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))
				if err != nil {
					t.Error(err)
				}
				n = strings.Count(string(b), "inotify wd:")
			})
			return n
		}
		const some = 20
		dir := func(i int) string { return fmt.Sprintf("/w%d", i) }
		for i := range some {
			tr.mkdir(t, dir(i))
		}
		living := func() (n int) { // without the machine's own containers, below which nothing is watched
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, g := range s.table.byPath {
				if !g.closed {
					n++
				}
			}
			return n
		}
		eventually(t, "all watched", func() bool { return watches() == living() && living() >= some })
		for i := range some {
			tr.rmdir(t, dir(i))
		}
		eventually(t, "none watched", func() bool { return watches() == living() })
		t.Logf("%d watches for %d living cgroups", watches(), living())
	})
}

// TestCgroupNamespace: a sensor in its own cgroup namespace sees paths relative to it. The test runs itself there; the
// tree is the same mount.
func TestCgroupNamespace(t *testing.T) {
	if target := os.Getenv("ACCELSCOPE_TEST_TARGET"); target != "" {
		inNamespace(t, target)
		return
	}
	trees(t, func(t *testing.T, tr tree) {
		for _, dir := range []string{"/pods", "/pods/sensor", "/pods/sensor/below", "/pods/other"} {
			tr.mkdir(t, dir)
		}
		var targets []string
		for _, dir := range []string{"/pods/sensor/below", "/pods/other", "", "/pods"} {
			if dir == "" || dir == "/pods" {
				dir = tr.mkLeaf(t, dir)
			}
			pid := tr.process(t, dir).Process.Pid
			targets = append(targets, fmt.Sprintf("%d:%d:%s", pid, tr.id(t, dir), tr.top+dir))
		}
		cmd := child.Command(context.Background(), "sh", "-c", `echo $$ > "$0/cgroup.procs" && exec unshare -C "$@"`,
			tr.dir("/pods/sensor"), os.Args[0], "-test.run=^TestCgroupNamespace$", "-test.v")
		cmd.Env = append(os.Environ(), "ACCELSCOPE_TEST_ROOT="+tr.root,
			"ACCELSCOPE_TEST_TARGET="+strings.Join(targets, " "))
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS: TestCgroupNamespace") {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// mkLeaf creates a cgroup for processes next to cgroups with children.
func (tr tree) mkLeaf(t *testing.T, path string) string {
	tr.mkdir(t, path+"/leaf")
	return path + "/leaf"
}

func inNamespace(t *testing.T, targets string) {
	s := tree{root: os.Getenv("ACCELSCOPE_TEST_ROOT")}.open(t, Options{})
	for target := range strings.FieldsSeq(targets) {
		part := strings.SplitN(target, ":", 3)
		pid, _ := strconv.Atoi(part[0])
		id, _ := strconv.ParseUint(part[1], 10, 64)
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		path, _ := procCgroup(line, s.hierarchy.Controller)
		if path == part[2] {
			t.Fatalf("the process sees %q as the outside does: no namespace", path)
		}
		of, err := s.CgroupOf(pid)
		out := resolve(t, s, []model.CgroupID{of})
		if of != model.CgroupID(id) || string(byID(t, &out)[model.CgroupID(id)].Path) != part[2] {
			t.Errorf("process at %q: %d (%v) %+v, want cgroup %d %s", path, of, err, out, id, part[2])
		}
	}
}
