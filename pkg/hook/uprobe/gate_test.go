// SPDX-License-Identifier: Apache-2.0

package uprobe

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// TestLook compares the number of mappings with /proc/PID/maps, for pages that all mappings have and for an unmapped
// page.
func TestLook(t *testing.T) {
	g, path := newGate(t), code(t)
	for _, n := range []struct{ mappings, processes int }{{0, 1}, {1, 1}, {7, 1}, {3, 20}, {2000, 2}} {
		h := start(t, program(t, "manymaps"), path, strconv.Itoa(n.mappings), strconv.Itoa(n.processes))
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		maps, err := os.ReadFile("/proc/" + strconv.Itoa(h.pid) + "/maps")
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(string(maps), path); got != n.mappings {
			t.Fatalf("the helper has %d mappings", got)
		}
		v, err := g.eyes.look(f, []uint64{site}, 1<<20)
		if err != nil || v.mappings != n.mappings*n.processes || v.mapping == 0 || len(v.held) > 0 {
			t.Errorf("%+v: %+v, %v", n, v, err)
		}
		if v, err := g.eyes.look(f, []uint64{site}, 10); err != nil || n.mappings*n.processes > 10 && v.mappings <= 10 {
			t.Errorf("%+v, limit 10: %+v, %v", n, v, err)
		}
		f.Close()
		h.end()
	}
}

// TestAttach attaches and detaches three probes in two processes, and compares the instruction.
func TestAttach(t *testing.T) {
	g, path := newGate(t), code(t)
	h := start(t, program(t, "manymaps"), path, "2", "2")
	o := do(t, g.attach, Operation{Paths: []string{"/nowhere", path}, Probes: g.probes(site, site+0x1000, 0x10)})
	if o.Err() != nil || o.Probes[2].Link == nil {
		t.Fatal(o.Err())
	}
	if b := instruction(t, h.pid, path, site); b != trap {
		t.Errorf("%#x", b)
	}
	o = do(t, g.detach, Operation{Paths: []string{path}, Probes: o.Probes})
	if o.Err() != nil || o.Probes[0].Link != nil {
		t.Fatal(o.Err())
	}
	if b := instruction(t, h.pid, path, site); b != nop {
		t.Errorf("%#x", b)
	}
	calls := map[string]uint64{}
	for _, d := range g.Durations(source) {
		if calls[d.Operation] = d.Calls.Count; d.Calls.Sum == 0 || g.eyes.unmeasured == nil && d.Forks.Sum == 0 || d.Forks.Sum > d.Calls.Sum {
			t.Errorf("%+v", d)
		}
	}
	if calls["attach"] != 3 || calls["detach"] != 3 {
		t.Error(calls)
	}
}

// TestTooMany: a file at the limit of mappings is probed, and a file above it is not.
func TestTooMany(t *testing.T) {
	g, path := newGate(t, func(o *Options) { o.MaxMappings = 100 }), code(t)
	first := start(t, program(t, "manymaps"), path, "50", "2")
	o := do(t, g.attach, Operation{Paths: []string{path}, Probes: g.probes(site)})
	if o.Err() != nil {
		t.Fatal(o.Err())
	}
	start(t, program(t, "manymaps"), path, "1", "1")
	if o := do(t, g.attach, Operation{Paths: []string{path}, Probes: g.probes(site + 1)}); !errors.Is(o.Err(), ErrRefused) || o.Probes[0].Link != nil {
		t.Errorf("%v", o.Err())
	}
	if o := do(t, g.detach, Operation{Paths: []string{path}, Probes: o.Probes}); !errors.Is(o.Err(), ErrRefused) || o.Probes[0].Link == nil {
		t.Errorf("%v", o.Err())
	}
	first.end()
	if o := do(t, g.detach, Operation{Paths: []string{path}, Probes: o.Probes}); o.Err() != nil {
		t.Errorf("%v", o.Err())
	}
}

// hold starts a process of an ordinary user that maps a file and holds its mmap_lock, for 10 s at most.
func hold(t testing.TB, path string) *helper {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no FUSE")
	}
	binary := program(t, "holdmm")
	if err := os.Chmod(filepath.Dir(binary), 0o755); err != nil && os.Getenv("ACCELSCOPE_WORKLOADS") == "" {
		t.Fatal(err)
	}
	return start(t, binary, path, "10")
}

// TestHeld: while a process holds its mmap_lock, nothing is attached or detached, and forks of others take no longer.
// After it the operation succeeds.
func TestHeld(t *testing.T) {
	g, path := newGate(t), code(t)
	o := do(t, g.attach, Operation{Paths: []string{path}, Probes: g.probes(site)})
	if o.Err() != nil {
		t.Fatal(o.Err())
	}
	h := hold(t, path)
	forks := start(t, program(t, "forklat"), "10")
	begin := time.Now()
	again := do(t, g.attach, Operation{Paths: []string{path}, Probes: g.probes(site + 1)})
	if !errors.Is(again.Err(), ErrDeferred) || !strings.Contains(again.Err().Error(), "process "+strconv.Itoa(h.pid)) {
		t.Errorf("attached: %v", again.Err())
	}
	if o = do(t, g.detach, Operation{Paths: []string{path}, Probes: o.Probes}); !errors.Is(o.Err(), ErrDeferred) || o.Probes[0].Link == nil {
		t.Errorf("detached: %v", o.Err())
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
	longest, mean := forks.longestFork(t)
	t.Logf("forks: mean %v, at most %v", mean, longest)
	if longest > time.Second {
		t.Errorf("a fork took %v", longest)
	}
	h.end()
	if o = do(t, g.detach, Operation{Paths: []string{path}, Probes: o.Probes}); o.Err() != nil {
		t.Errorf("afterwards: %v", o.Err())
	}
}

// TestForkWait compares the measurement with the duration of a fork, for a call that waits for a process which holds
// its mmap_lock. All forks of the machine wait with it, so it runs in guests only.
func TestForkWait(t *testing.T) {
	if os.Getenv("ACCELSCOPE_GUEST") == "" {
		t.Skip("delays all forks: run in a guest")
	}
	g, path := newGate(t), code(t)
	if g.eyes.unmeasured != nil {
		t.Fatal("the kernel does not measure it")
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	forks := start(t, program(t, "forklat"), "20")
	h := hold(t, path)
	time.AfterFunc(2*time.Second, func() { h.stdin.Close() })
	o := &Operation{Source: source, Owners: []uint64{1}, Probes: g.probes(site)}
	v, err := g.eyes.look(f, []uint64{site}, 10)
	if err != nil || len(v.held) != 1 || v.held[0].pid != h.pid {
		t.Errorf("%+v, %v", v, err)
	}
	if err := g.call(o, &o.Probes[0], path, v); !errors.Is(err, ErrRefused) {
		t.Errorf("the breaker does not open: %v", err)
	}
	measured := time.Duration(g.Durations(source)[0].Forks.Sum)
	longest, _ := forks.longestFork(t)
	t.Logf("measured %v, a fork took %v", measured, longest)
	if longest < time.Second || measured < longest-100*time.Millisecond || measured > longest+time.Second {
		t.Errorf("measured %v, a fork took %v", measured, longest)
	}
	if err := o.Probes[0].Link.Close(); err != nil {
		t.Error(err)
	}
}

// TestBreaker: a slow file is not touched again, nor are other files of an owner that brought three slow files. A file
// of several owners does not count.
func TestBreaker(t *testing.T) {
	g := newGate(t)
	var slow bool
	g.released = func(c *change, mappings int, early bool) (time.Duration, error) { // as if the kernel had held the lock
		took, err := g.eyes.released(c, mappings, early)
		if slow {
			took = 3 * g.opts.Limit
		}
		slow = false
		return took, err
	}
	slowly := func(offset uint64) []Probe {
		return []Probe{{Offset: offset, Attach: func(string) (io.Closer, error) {
			slow = true
			return io.NopCloser(nil), nil
		}}}
	}
	attach := func(path string, probes []Probe, owners ...uint64) error {
		t.Helper()
		o := do(t, g.attach, Operation{Paths: []string{path}, Owners: owners, Probes: probes})
		for _, p := range o.Probes {
			if p.Link != nil {
				defer p.Link.Close()
			}
		}
		return o.Err()
	}
	for range maxSlowOfOwner {
		if err := attach(code(t), slowly(site), 1, 2); err != nil {
			t.Fatal(err)
		}
	}
	for range maxSlowOfOwner {
		path := code(t)
		if err := attach(path, g.probes(site), 1); err != nil {
			t.Fatal(err)
		}
		// The slow probe is attached; the rest of the operation is not.
		if err := attach(path, append(slowly(site), g.probes(site+1)...), 1); !errors.Is(err, ErrRefused) {
			t.Fatal(err)
		}
		if err := attach(path, g.probes(site), 2); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "forks could wait") {
			t.Errorf("the same file: %v", err)
		}
	}
	if err := attach(code(t), g.probes(site), 1); !errors.Is(err, ErrRefused) {
		t.Errorf("of the owner: %v", err)
	}
	if err := attach(code(t), g.probes(site), 2); err != nil {
		t.Errorf("of another owner: %v", err)
	}
	if err := attach(code(t), g.probes(site), 1, 2); err != nil {
		t.Errorf("of both: %v", err)
	}
}

// TestFileSystem: a file on FUSE is not opened, also below an overlay, which statfs(2) reports as overlayfs.
func TestFileSystem(t *testing.T) {
	g, dir := newGate(t), t.TempDir()
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no FUSE")
	}
	for _, sub := range []string{"merged", "empty"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h := start(t, program(t, "holdmm"), "/dev/null", "overlay", dir)
	paths := []string{filepath.Join("/proc", strconv.Itoa(h.pid), "root", dir, "merged/file")}
	var fs unix.Statfs_t
	if err := unix.Statfs(paths[0], &fs); errors.Is(err, unix.ENOENT) { // before Linux 5.11, users mount no overlays
		t.Log("no overlay")
		paths = nil
	} else if err != nil || fs.Type != unix.OVERLAYFS_SUPER_MAGIC {
		t.Fatalf("%x, %v", fs.Type, err)
	}
	mounts, err := os.ReadFile("/proc/" + strconv.Itoa(h.pid) + "/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var fuse string
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); strings.Contains(line, " - fuse ") && strings.Contains(f[4], "holdmm-") {
			fuse = f[4]
		}
	}
	for _, path := range append(paths, filepath.Join("/proc", strconv.Itoa(h.pid), "root", fuse, "file")) {
		o := do(t, g.attach, Operation{Paths: []string{path}, Probes: g.probes(site)})
		if !errors.Is(o.Err(), ErrFileSystem) {
			t.Errorf("%s: %v", path, o.Err())
		}
	}
}

// TestShutdown: at the end of the sensor a process holds its mmap_lock. Shutdown ends, forks take no longer, and the
// probe stays attached. The next sensor detaches it later.
func TestShutdown(t *testing.T) {
	path, dir := code(t), t.TempDir()
	bpffs := func(o *Options) { o.BPFFS = []string{"/nowhere", dir} }
	g := newGate(t, bpffs)
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir, 0) //nolint:errcheck // ours
	o := do(t, g.attach, Operation{Paths: []string{path}, Probes: g.probes(site, site+1)})
	if o.Err() != nil {
		t.Fatal(o.Err())
	}
	trial := filepath.Join(dir, "trial")
	if err := o.Probes[0].Link.(pinner).Pin(trial); errors.Is(err, ebpf.ErrNotSupported) { // before Linux 5.15
		_ = do(t, g.detach, Operation{Paths: []string{path}, Probes: o.Probes})
		t.Skip(err)
	}
	if err := o.Probes[0].Link.(link.Link).Unpin(); err != nil {
		t.Fatal(err)
	}
	other := code(t)
	free := do(t, g.attach, Operation{Paths: []string{other}, Probes: g.probes(site)})
	h := hold(t, path)
	forks := start(t, program(t, "forklat"), "10")
	g.shutdown([]*Operation{o, free})
	for _, p := range o.Probes { // as the kernel does at the end of the process
		if p.Link == nil {
			t.Error("it was detached")
			continue
		}
		_ = p.Link.Close()
	}
	if free.Probes[0].Link != nil && len(g.Durations(source)) != 2 {
		t.Error("the other file is still probed")
	}
	if longest, mean := forks.longestFork(t); longest > time.Second {
		t.Errorf("a fork took %v", longest)
	} else {
		t.Logf("forks: mean %v, at most %v", mean, longest)
	}
	links := func() int {
		entries, _ := os.ReadDir(filepath.Join(dir, leftDir))
		return len(entries)
	}
	if links() != 2 {
		t.Fatalf("%d links are left", links())
	}
	h.end()
	maps := start(t, program(t, "manymaps"), path, "1", "1")
	if b := instruction(t, maps.pid, path, site); b != trap {
		t.Errorf("%#x: not attached", b)
	}
	next := newGate(t, bpffs)
	o = do(t, next.attach, Operation{Paths: []string{path}, Probes: next.probes(site + 2)})
	if o.Err() != nil {
		t.Fatal(o.Err())
	}
	time.Sleep(500 * time.Millisecond) // a worker of the kernel may detach the links
	if b := instruction(t, maps.pid, path, site); b != nop || links() != 0 {
		t.Errorf("%#x, %d links: still attached", b, links())
	}
	if o = do(t, next.detach, Operation{Paths: []string{path}, Probes: o.Probes}); o.Err() != nil {
		t.Error(o.Err())
	}
}
