// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestBelowContainer: cgroups below a container are neither watched nor listed. They have the container's name when
// they are looked up.
func TestBelowContainer(t *testing.T) {
	trees(t, func(t *testing.T, tr tree) {
		for _, dir := range []string{"/docker", "/docker/" + id64} {
			tr.mkdir(t, dir)
		}
		s := tr.open(t, Options{})
		for i := range 50 {
			tr.mkdir(t, fmt.Sprintf("/docker/%s/%d", id64, i))
		}
		below := tr.mkdir(t, "/docker/"+id64+"/below")
		last := tr.mkdir(t, "/last")
		eventually(t, "the last one", func() bool { return known(s, last) })
		if known(s, below) {
			t.Error("a cgroup below a container is listed")
		}
		s.mu.Lock()
		for _, g := range s.watcher.watched {
			if g.path == tr.top+"/docker/"+id64 {
				t.Error("a container is watched")
			}
		}
		s.mu.Unlock()
		out := resolve(t, s, []model.CgroupID{model.CgroupID(below)})
		if c := byID(t, &out)[model.CgroupID(below)]; c.ContainerID != id64 {
			t.Errorf("%+v", c)
		}
		tr.rmdir(t, "/docker/"+id64+"/below")
		s.mu.Lock()
		s.watcher.checkFound()
		g := s.table.byID[model.CgroupID(below)]
		s.mu.Unlock()
		if g == nil || g.died.IsZero() {
			t.Errorf("its end is not known: %+v", g)
		}
	})
}

// TestBelowUser: cgroups below the slice of a user are neither watched nor listed. They have its name when they are
// looked up.
func TestBelowUser(t *testing.T) {
	const manager = "user.slice/user-1000.slice/user@1000.service"
	s := fakeTree(t, Options{}, "user.slice/user-1000.slice")
	units := filepath.Join(s.hierarchy.Mount, manager, "app.slice/web.service")
	if err := os.MkdirAll(units, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(s.hierarchy.Mount, "last.slice"), 0o755); err != nil {
		t.Fatal(err)
	}
	last, err := cgroupID(filepath.Join(s.hierarchy.Mount, "last.slice"))
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the last one", func() bool { return known(s, uint64(last)) })
	s.mu.Lock()
	for path := range s.table.byPath {
		if strings.HasPrefix(path, "/user.slice/user-1000.slice/") {
			t.Errorf("%s is listed", path)
		}
	}
	for _, g := range s.watcher.watched {
		if strings.HasPrefix(g.path, "/user.slice/") {
			t.Errorf("%s is watched", g.path)
		}
	}
	s.mu.Unlock()
	id, err := cgroupID(units)
	if err != nil {
		t.Fatal(err)
	}
	out := resolve(t, s, []model.CgroupID{id})
	if c := byID(t, &out)[id]; c.Workload != "unit:user@1000.service/web.service" {
		t.Errorf("%+v", c)
	}
}

// TestRootlessContainer: the processes of a rootless container may be below its cgroup. A lookup of their cgroup finds
// the container's.
func TestRootlessContainer(t *testing.T) {
	trees(t, func(t *testing.T, tr tree) {
		tr.top = ""
		if err := os.Mkdir(tr.dir("/user.slice"), 0o755); err == nil {
			t.Cleanup(func() { tr.rmdir(t, "/user.slice") })
		} else if !errors.Is(err, fs.ErrExist) {
			t.Fatal(err)
		}
		user := fmt.Sprintf("/user.slice/user-%d.slice", os.Getpid())
		scope := user + "/libpod-" + id64 + ".scope"
		s := tr.open(t, Options{})
		for _, dir := range []string{user, scope} {
			tr.mkdir(t, dir)
			t.Cleanup(func() { tr.rmdir(t, dir) })
		}
		below := tr.mkdir(t, scope+"/container")
		top := model.CgroupID(tr.id(t, scope))
		out := resolve(t, s, []model.CgroupID{model.CgroupID(below)})
		if c := byID(t, &out)[model.CgroupID(below)]; c.ContainerID != id64 {
			t.Errorf("%+v", c)
		}
		if path := s.Workloads()[top]; path != scope {
			t.Errorf("the container has the cgroup %q, want %q", path, scope)
		}
		tr.rmdir(t, scope+"/container")
	})
}

// TestTooManyNew: a cgroup with too many new children is not watched until the next Read, which lists the remaining
// children.
func TestTooManyNew(t *testing.T) {
	trees(t, func(t *testing.T, tr tree) {
		tr.mkdir(t, "/busy")
		early := tr.mkdir(t, "/busy/early")
		s := tr.open(t, Options{})
		s.mu.Lock() // stops the reader of events
		for i := range maxCreated + 100 {
			if err := os.Mkdir(tr.dir(fmt.Sprintf("/busy/%d", i)), 0o755); err != nil {
				t.Error(err)
			}
			if err := unix.Rmdir(tr.dir(fmt.Sprintf("/busy/%d", i))); err != nil {
				t.Error(err)
			}
		}
		s.mu.Unlock()
		eventually(t, "the pause", func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.watcher.pauses == 1
		})
		tr.rmdir(t, "/busy/early")
		late := tr.mkdir(t, "/busy/late")
		if out, err := s.Read(t.Context()); err != nil || out.Losses[1].Count != 1 {
			t.Errorf("%+v %v", out.Losses, err)
		}
		if !known(s, late) {
			t.Error("the next Read does not list it")
		}
		s.mu.Lock()
		g := s.table.byID[model.CgroupID(early)]
		s.mu.Unlock()
		if g == nil || g.died.IsZero() {
			t.Errorf("the end of one that was removed meanwhile is not known: %+v", g)
		}
	})
}

// TestSiblingsAreNotListed: a cgroup that comes and goes does not cause a listing of its siblings. The kernel reports
// reads of a directory.
func TestSiblingsAreNotListed(t *testing.T) {
	trees(t, func(t *testing.T, tr tree) {
		tr.mkdir(t, "/busy")
		for i := range 200 {
			tr.mkdir(t, fmt.Sprintf("/busy/idle%d", i))
		}
		s := tr.open(t, Options{})
		reads := watchReads(t, tr.dir("/busy"))
		for i := range 10 {
			tr.rmdir(t, fmt.Sprintf("/busy/idle%d", i))
			added := tr.mkdir(t, fmt.Sprintf("/busy/new%d", i))
			eventually(t, "a new one", func() bool { return known(s, added) })
		}
		s.mu.Lock() // stops the reader of events
		var added uint64
		for i := range 100 {
			added = tr.mkdir(t, fmt.Sprintf("/busy/more%d", i))
		}
		s.mu.Unlock()
		eventually(t, "the last of many", func() bool { return known(s, added) })
		if n := reads(); n != 0 {
			t.Errorf("the siblings were listed: %d reads of the directory", n)
		}
		if _, err := os.ReadDir(tr.dir("/busy")); err != nil {
			t.Fatal(err)
		}
		if reads() == 0 {
			t.Error("the kernel does not tell of a listing")
		}
	})
}

// watchReads returns a function that counts the reads of a directory since its last call.
func watchReads(t *testing.T, dir string) func() int {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_ACCESS|unix.IN_ONLYDIR); err != nil {
		t.Fatal(err)
	}
	return func() (reads int) {
		buffer := make([]byte, 4096)
		for {
			n, err := unix.Read(fd, buffer)
			if err != nil || n <= 0 {
				return reads
			}
			for b := buffer[:n]; len(b) >= unix.SizeofInotifyEvent; {
				name := int(binary.NativeEndian.Uint32(b[12:]))
				if name == 0 { // the directory itself, no child
					reads++
				}
				b = b[unix.SizeofInotifyEvent+name:]
			}
		}
	}
}

// TestManyWatches: the number of watches is bounded, and leaves three quarters of the user's watches to others.
func TestManyWatches(t *testing.T) {
	procfs := t.TempDir()
	allow := func(watches string) {
		t.Helper()
		write(t, procfs, map[string]string{"sys/fs/inotify/max_user_watches": watches + "\n"})
	}
	for text, want := range map[string]int{"1048576": maxWatches, "32764": 8191, "8192": 2048, "3": 0, "many": maxWatches} {
		allow(text)
		if got := watchLimit(procfs); got != want {
			t.Errorf("%s: %d watches, want %d", text, got, want)
		}
	}
	if got := watchLimit(t.TempDir()); got != maxWatches {
		t.Errorf("without the file: %d watches", got)
	}

	allow("800")
	dirs := make([]string, 210)
	for i := range dirs {
		dirs[i] = fmt.Sprintf("d%d", i)
	}
	now := time.Now()
	s := fakeTree(t, Options{Procfs: procfs, Now: func() time.Time { return now }}, dirs...)
	if s.watcher.events == nil {
		t.Skip("no inotify")
	}
	read := func() (watched, known int, err error) {
		_, err = s.Read(t.Context())
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.watcher.watched), len(s.table.byPath), err
	}
	if watched, known, err := read(); watched != 200 || known < len(dirs) || !errors.Is(err, ErrWatches) {
		t.Errorf("%d watches, %d cgroups are known: %v", watched, known, err)
	}
	allow("1200")
	s.mu.Lock()
	now = now.Add(walkUnseen)
	s.mu.Unlock()
	if watched, _, err := read(); watched < len(dirs) || err != nil {
		t.Errorf("%d watches, with more of them allowed: %v", watched, err)
	}
}

// BenchmarkStorm reports the CPU time for a cgroup that comes and goes beside 20,000 others, in a container, of a user
// and elsewhere, 100 times per second, and the longest wait of a lookup.
func BenchmarkStorm(b *testing.B) {
	own := fmt.Sprintf("accelscope-%d-%d.slice/", os.Getpid(), nextTop.Add(1))
	for name, parent := range map[string]string{
		"in a container": own + "docker/" + id64, "elsewhere": own + "busy",
		"of a user": "user.slice/user-47110.slice/user@47110.service/app.slice",
	} {
		b.Run(name, func(b *testing.B) {
			h, err := findHierarchy("/sys/fs/cgroup")
			if err != nil {
				b.Fatal(err)
			}
			var made []string
			mkdir := func(dir string) {
				if err := os.Mkdir(dir, 0o755); err == nil {
					made = append(made, dir)
				} else if !errors.Is(err, fs.ErrExist) {
					b.Fatal(err)
				}
			}
			b.Cleanup(func() {
				for _, dir := range slices.Backward(made) {
					_ = unix.Rmdir(dir)
				}
			})
			dir := h.Mount
			for seg := range strings.SplitSeq(parent, "/") {
				dir = filepath.Join(dir, seg)
				mkdir(dir)
			}
			for i := range 20_000 {
				mkdir(filepath.Join(dir, strconv.Itoa(i)))
			}
			s, err := New(Options{Root: "/sys/fs/cgroup"})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close() //nolint:errcheck // a benchmark
			var before, after unix.Rusage
			var longest time.Duration
			_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
			b.ResetTimer()
			for range b.N {
				dir := filepath.Join(dir, "new")
				if err := errors.Join(os.Mkdir(dir, 0o755), unix.Rmdir(dir)); err != nil {
					b.Fatal(err)
				}
				begin := time.Now()
				if _, err := s.Resolve(b.Context(), nil); err != nil {
					b.Fatal(err)
				}
				longest = max(longest, time.Since(begin))
				time.Sleep(10 * time.Millisecond)
			}
			_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
			cpu := after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano()
			b.ReportMetric(float64(cpu)/float64(b.N)/1e6, "cpu-ms/op")
			b.ReportMetric(float64(longest)/1e6, "longest-wait-ms")
		})
	}
}
