// SPDX-License-Identifier: Apache-2.0

package gpumemory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf/features"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
	"github.com/accelscope/accelscope/tests/fakes/bpf"
	fakes "github.com/accelscope/accelscope/tests/fakes/gpumemory"
	testcgroup "github.com/accelscope/accelscope/tests/machines/cgroup"
	"github.com/accelscope/accelscope/tests/tools/child"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// holders are the processes that have a GPU open, which this machine lacks.
type holders struct {
	mu      sync.Mutex
	pids    []int
	unknown bool
}

func (h *holders) Holders() ([]int, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.pids), !h.unknown
}

func (h *holders) add(a *fakes.Allocator) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.pids = append(h.pids, a.Process.Pid)
}

func (h *holders) options(t testing.TB, change ...func(*Options)) Options {
	t.Helper()
	// The Gate refuses a file for good if forks wait longer for a probe, as they do for the default on a busy machine.
	gate, err := uprobe.New(uprobe.Options{Limit: time.Minute})
	if err != nil {
		bpf.Skip(t, err)
	}
	t.Cleanup(func() { _ = gate.Close() })
	o := Options{
		Gate:   gate,
		Procfs: "/proc", Holders: h.Holders, Interval: 20 * time.Millisecond,
		ReturnProbes: func(context.Context) (bool, error) { return false, nil },
	}
	for _, f := range change {
		f(&o)
	}
	return o
}

func startSource(t testing.TB, h *holders, change ...func(*Options)) *Source {
	t.Helper()
	s, err := newSource(h.options(t, change...))
	if err != nil {
		t.Fatal(err)
	}
	s.begin(t)
	return s
}

// begin starts the loop.
func (s *Source) begin(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	s.loop.start()
	go s.loop.run(ctx)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// needed skips a test that needs root, as which BPF must work.
func needed(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if err := hook.Usable(); err != nil {
		t.Fatal(err)
	}
}

// A cgroup of version 2.
type cgroup struct {
	dir string
	id  model.CgroupID
}

func newCgroup(t testing.TB) cgroup {
	t.Helper()
	dir, id := testcgroup.New(t, testcgroup.V2())
	return cgroup{dir, model.CgroupID(id)}
}

// start starts a command in the cgroup.
func (c cgroup) start(t testing.TB, cmd *exec.Cmd) *fakes.Allocator {
	t.Helper()
	dir, err := os.Open(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	return fakes.Start(t, cmd)
}

func program(b fakes.Built) *exec.Cmd { return child.Command(context.Background(), b.Program) }

// eventually waits until f returns no error, longer than the Gate defers an operation on a file.
func eventually(t testing.TB, f func() error) {
	t.Helper()
	for end := time.Now().Add(3 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// probed waits until functions have a state.
func probed(t testing.TB, s *Source, state model.State, names ...string) {
	t.Helper()
	eventually(t, func() error {
		snap, _ := s.Read(t.Context())
		for _, h := range snap.Hooks {
			if slices.Contains(names, h.Name) && h.State != state {
				return fmt.Errorf("%+v, want %s", h, state)
			}
		}
		return nil
	})
}

// namesOf returns the functions of a library.
func namesOf(library string) (names []string) {
	for _, f := range functions {
		if f.library == library {
			names = append(names, f.name)
		}
	}
	return names
}

// failed returns the failures of a cgroup by API.
func failed(t testing.TB, s *Source, c cgroup) map[model.AllocationKey]model.Allocations {
	t.Helper()
	snap, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[model.AllocationKey]model.Allocations{}
	for _, f := range snap.FailedAllocations {
		if f.Cgroup == c.id {
			out[f.Key] = f.Value
		}
	}
	return out
}

// lossless requires that nothing was lost.
func lossless(t testing.TB, s *Source) {
	t.Helper()
	snap, err := s.Read(t.Context())
	if err != nil || len(snap.Losses) == 0 {
		t.Fatal(snap.Losses, err)
	}
	for _, l := range snap.Losses {
		if l.Count > 0 {
			t.Errorf("lost: %+v", l)
		}
	}
}

// expect are failures by API that a program saw.
type expect map[model.AllocationKey]model.Allocations

// exhaust calls each function of a library: it succeeds three times, with all sizes, then fails.
func (e expect) exhaust(a *fakes.Allocator, library string, times uint64) {
	for i, f := range functions {
		if f.library != library {
			continue
		}
		size, height := uint64(1000+i), uint64(0)
		if f.pitched {
			height = 7
		}
		bytes := size * max(height, 1)
		a.OK("limit %d", 3*bytes)
		n := a.Failures("call %s %d %d %d", f.name, times+3, size, height)
		a.Failures("call %s %d 0 %d", f.name, 5, height) // an invalid size is no failure of memory
		a.OK("limit %d", 0)
		n += a.Failures("thread %s %d %d %d", f.name, times, size, height)
		e.add(f.api, n, n*bytes)
	}
}

func (e expect) add(key model.AllocationKey, count, bytes uint64) {
	v := e[key]
	v.Add(&model.Allocations{Count: count, Bytes: bytes})
	e[key] = v
}

func (e expect) check(t testing.TB, s *Source, c cgroup) {
	t.Helper()
	if got := failed(t, s, c); !maps.Equal(got, e) {
		t.Errorf("cgroup %d: counted %v\n   the program saw %v", c.id, got, e)
	}
}

// TestFailedAllocations compares the counts of two cgroups with what programs in them saw, function by function. The FAKE
// libraries are mapped before and after the source started, and a library that was probed once is probed for the next process
// from its first call. Some functions call others, which count once.
func TestFailedAllocations(t *testing.T) {
	needed(t)
	b := fakes.Build(t, t.TempDir())
	var h holders
	first, second := newCgroup(t), newCgroup(t)
	before := first.start(t, program(b))
	before.OK("load %s", b.CUDA)
	h.add(before)
	s := startSource(t, &h)
	probed(t, s, model.StateOK, namesOf(libcuda)...)
	probed(t, s, model.StateAbsent, namesOf(libhip)...)
	want := expect{}
	want.exhaust(before, libcuda, 5)
	want.check(t, s, first)

	after := second.start(t, program(b))
	h.add(after)
	time.Sleep(5 * s.loop.opts.Interval) // it was searched before it loads the library
	after.OK("load %s", b.HIP)
	probed(t, s, model.StateOK, namesOf(libhip)...)
	others := expect{}
	others.exhaust(after, libhip, 9)
	others.check(t, s, second)
	want.check(t, s, first)

	// Not yet known as a process with a GPU.
	next := first.start(t, program(b))
	next.OK("load %s", b.CUDA)
	want.exhaust(next, libcuda, 2)
	want.check(t, s, first)
	before.End()
	next.End()
	last := second.start(t, program(b)) // the file is kept
	last.OK("load %s", b.CUDA)
	others.exhaust(last, libcuda, 1)
	others.check(t, s, second)

	s.Forget([]model.CgroupID{second.id})
	expect{}.check(t, s, second)
	want.check(t, s, first)
	lossless(t, s)
}

// probedCUDA starts a process that has loaded libcuda, in a cgroup of its own, and a source that probes the library.
func probedCUDA(t testing.TB) (b fakes.Built, c cgroup, a *fakes.Allocator, s *Source) {
	t.Helper()
	needed(t)
	b = fakes.Build(t, t.TempDir())
	var h holders
	c = newCgroup(t)
	a = c.start(t, program(b))
	a.OK("load %s", b.CUDA)
	h.add(a)
	s = startSource(t, &h)
	probed(t, s, model.StateOK, namesOf(libcuda)...)
	return b, c, a, s
}

// TestExec: a process executes another program, which maps another library.
func TestExec(t *testing.T) {
	b, c, a, s := probedCUDA(t)
	want := expect{}
	want.exhaust(a, libcuda, 2)
	a.OK("exec %s", b.HIP)
	probed(t, s, model.StateOK, namesOf(libhip)...)
	want.exhaust(a, libhip, 3)
	a.OK("exec %s", b.CUDA)
	want.exhaust(a, libcuda, 1)
	want.check(t, s, c)
	lossless(t, s)
}

// TestOwnMounts: the library is only in the mount namespace of the container, which ends.
func TestOwnMounts(t *testing.T) {
	needed(t)
	dir := t.TempDir()
	fakes.Build(t, dir)
	mount := t.TempDir()
	var h holders
	s := startSource(t, &h)
	for range 2 {
		c := newCgroup(t)
		const script = `mount -t tmpfs none "$1" && cp "$0"/* "$1" && touch "$1/libcuda.so.1" && ` +
			`mount --bind "$0/` + fakes.CUDA + `" "$1/libcuda.so.1" && exec "$1/allocator"`
		cmd := child.Command(context.Background(), "sh", "-c", script, dir, mount)
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNS
		cmd.SysProcAttr.Unshareflags = unix.CLONE_NEWNS // makes mounts private
		a := c.start(t, cmd)
		h.add(a)
		a.OK("load %s", filepath.Join(mount, fakes.HIP))
		probed(t, s, model.StateOK, namesOf(libhip)...)
		want := expect{}
		want.exhaust(a, libhip, 4)
		a.OK("load %s", filepath.Join(mount, "libcuda.so.1"))
		probed(t, s, model.StateOK, namesOf(libcuda)...)
		want.exhaust(a, libcuda, 4)
		want.check(t, s, c)
		lossless(t, s)
		a.End()
		// Nothing keeps the mounts of a container that ended.
		probed(t, s, model.StateAbsent, append(namesOf(libhip), namesOf(libcuda)...)...)
	}
}

// TestBudget: a function that a process calls all the time is no longer probed for a while. The others are.
func TestBudget(t *testing.T) {
	_, c, a, s := probedCUDA(t)
	a.OK("limit 0")
	// Twenty times the credit. While the probes are detached, returns are seen without their entries, which are losses.
	calls := a.Failures("call cuMemAllocAsync %d 10", uint64(startCredit/callCost)*20)
	probed(t, s, model.StateFailed, "cuMemAllocAsync")
	probed(t, s, model.StateOK, "cuMemAlloc_v2", "cuMemAllocAsync_ptsz")
	counted := failed(t, s, c)
	if n := counted[functions[3].api].Count; n == 0 || n > calls {
		t.Errorf("%d of %d calls counted", n, calls)
	}
	a.Failures("call cuMemAllocAsync 5 10")
	n := a.Failures("call cuMemAlloc_v2 5 10")
	want := expect(maps.Clone(counted))
	want.add(functions[0].api, n, 10*n)
	want.check(t, s, c)
	snap, _ := s.Read(t.Context())
	for _, k := range snap.Hooks {
		if k.State == model.StateFailed && !strings.Contains(k.Reason, fmt.Sprintf("process %d called it so often", a.Process.Pid)) {
			t.Error(k.Reason)
		}
	}
}

// TestPerProcess: where return probes kill processes with a shadow stack, each process has probes of its own.
func TestPerProcess(t *testing.T) {
	needed(t)
	b := fakes.Build(t, t.TempDir())
	var h holders
	c := newCgroup(t)
	s, err := newSource(h.options(t, func(o *Options) {
		o.ReturnProbes = func(context.Context) (bool, error) { return true, nil }
	}))
	if err != nil {
		t.Fatal(err)
	}
	if !s.kernel.multi {
		if version, err := features.LinuxVersionCode(); err != nil || version >= 6<<16|6<<8 {
			t.Fatalf("no uprobe_multi links on Linux %#x, %v", version, err)
		}
		t.Skip("uprobe_multi links need Linux 6.6")
	}
	a, unprobed, shadowed := c.start(t, program(b)), c.start(t, program(b)), c.start(t, program(b))
	// Few kernels report shadow stacks.
	s.loop.searches.checkShadowStack = func(p *locate.Process) error {
		if p.PID() == shadowed.Process.Pid {
			return locate.ErrShadowStack
		}
		return nil
	}
	s.begin(t)
	for _, p := range []*fakes.Allocator{a, unprobed, shadowed} {
		p.OK("load %s", b.CUDA)
		p.OK("limit 0")
	}
	h.add(shadowed)
	eventually(t, func() error {
		if _, err := s.Read(t.Context()); !errors.Is(err, locate.ErrShadowStack) {
			return fmt.Errorf("Read: %w", errors.Join(err, errors.ErrUnsupported))
		}
		return nil
	})
	h.add(a)
	probed(t, s, model.StateOK, namesOf(libcuda)...)
	want := expect{}
	want.exhaust(a, libcuda, 2)
	for _, p := range []*fakes.Allocator{unprobed, shadowed} {
		p.Failures("call cuMemAlloc_v2 3 10")
	}
	shadowed.End()
	eventually(t, func() error {
		_, err := s.Read(t.Context())
		return err
	})
	want.check(t, s, c)
	lossless(t, s)
}

// TestRefused: without safe return probes there is no source, without known processes it fails.
func TestRefused(t *testing.T) {
	needed(t)
	refused := fmt.Errorf("%w: they kill processes", model.ErrUnsupported)
	_, err := New(Options{Procfs: "/proc", ReturnProbes: func(context.Context) (bool, error) { return false, refused }})
	if !errors.Is(err, refused) {
		t.Error(err)
	}
	h := holders{unknown: true}
	if _, err := startSource(t, &h).Read(t.Context()); !errors.Is(err, errHoldersUnknown) {
		t.Error(err)
	}
}

// TestFirstRead: the first Read knows the libraries of the processes that exist.
func TestFirstRead(t *testing.T) {
	needed(t)
	b := fakes.Build(t, t.TempDir())
	a := fakes.Start(t, program(b))
	a.OK("load %s", b.CUDA)
	var h holders
	h.add(a)
	s, err := New(h.options(t, func(o *Options) { o.Interval = 0 }))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	snap, err := s.Read(t.Context())
	if err != nil || snap.FailedAllocations == nil {
		t.Errorf("%+v, %v", snap.FailedAllocations, err)
	}
	for i, k := range snap.Hooks {
		if want := functions[i].library == libcuda; k.Name != functions[i].name || (k.State == model.StateOK) != want {
			t.Errorf("%+v", k)
		}
	}
}
