// SPDX-License-Identifier: Apache-2.0

package library_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/gpumemory"
	fakes "github.com/accelscope/accelscope/tests/fakes/gpumemory"
	"github.com/accelscope/accelscope/tests/fakes/libraries"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// The tests of this file probe FAKE libraries for the source gpumemory, whose counts show which calls hit a probe.

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The functions that the tests call, one of each library, and their APIs.
const (
	cuda, hip = "cuMemAlloc_v2", "hipMalloc"
	cudaAPI   = "cuMemAlloc"
)

func startSource(t *testing.T, h *libraries.Holders, change ...func(*gpumemory.Options)) *gpumemory.Source {
	t.Helper()
	o := gpumemory.Options{Options: h.Options(t), ReturnProbes: func(context.Context) (bool, error) { return false, nil }}
	for _, f := range change {
		f(&o)
	}
	s, err := gpumemory.New(o)
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

func start(t *testing.T, c libraries.Cgroup, cmd *exec.Cmd) *fakes.Allocator {
	t.Helper()
	return fakes.Of(t, c.Start(t, cmd))
}

// load has a program open a library, which has no memory.
func load(a *fakes.Allocator, library string) {
	a.OK("load %s", library)
	a.OK("limit 0")
}

func program(b fakes.Built) *exec.Cmd { return child.Command(context.Background(), b.Program) }

// failures returns the failures of a cgroup by API.
func failures(t *testing.T, s *gpumemory.Source, c libraries.Cgroup) map[string]uint64 {
	t.Helper()
	snap, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]uint64{}
	for _, f := range snap.FailedAllocations {
		if f.Cgroup == c.ID && f.Value.Count > 0 {
			got[f.Key.API] = f.Value.Count
		}
	}
	return got
}

func counted(t *testing.T, s *gpumemory.Source, c libraries.Cgroup, want map[string]uint64) {
	t.Helper()
	if got := failures(t, s, c); !maps.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}

// TestFirstRead: the first Read knows the libraries of the processes that exist. Functions of other libraries are absent.
func TestFirstRead(t *testing.T) {
	b := fakes.Build(t, t.TempDir())
	var h libraries.Holders
	a := start(t, libraries.NewCgroup(t), program(b))
	load(a, b.CUDA)
	h.Add(a.Program)
	s := startSource(t, &h, func(o *gpumemory.Options) { o.Interval = 0 })
	snap, err := s.Read(t.Context())
	if err != nil || snap.FailedAllocations == nil || len(snap.Hooks) == 0 {
		t.Fatalf("%+v, %v", snap.FailedAllocations, err)
	}
	for _, k := range snap.Hooks {
		if want := strings.HasPrefix(k.Name, "cu"); (k.State == model.StateOK) != want {
			t.Errorf("%+v", k)
		}
	}
}

// TestUnknownHolders: the source is absent while nothing is known about processes with an open GPU.
func TestUnknownHolders(t *testing.T) {
	h := libraries.Holders{Unknown: true}
	if _, err := startSource(t, &h).Read(t.Context()); !errors.Is(err, model.ErrAbsent) {
		t.Error(err)
	}
}

// TestExec: a process executes another program, which maps another library.
func TestExec(t *testing.T) {
	b := fakes.Build(t, t.TempDir())
	var h libraries.Holders
	c := libraries.NewCgroup(t)
	a := start(t, c, program(b))
	load(a, b.CUDA)
	h.Add(a.Program)
	s := startSource(t, &h)
	libraries.Probed(t, s, model.StateOK, cuda)
	a.Failures("call %s 2 10", cuda)
	a.OK("exec %s", b.HIP)
	a.OK("limit 0")
	libraries.Probed(t, s, model.StateOK, hip)
	a.Failures("call %s 3 10", hip)
	a.OK("exec %s", b.CUDA)
	a.OK("limit 0")
	a.Failures("call %s 1 10", cuda)
	counted(t, s, c, map[string]uint64{cudaAPI: 3, hip: 3})
	libraries.Lossless(t, s)
}

// TestOwnMounts: the library is only in the mount namespace of the container, which ends.
func TestOwnMounts(t *testing.T) {
	dir := t.TempDir()
	fakes.Build(t, dir)
	mount := t.TempDir()
	var h libraries.Holders
	s := startSource(t, &h)
	for range 2 {
		c := libraries.NewCgroup(t)
		const script = `mount -t tmpfs none "$1" && cp "$0"/* "$1" && touch "$1/libcuda.so.1" && ` +
			`mount --bind "$0/` + fakes.CUDA + `" "$1/libcuda.so.1" && exec "$1/allocator"`
		cmd := child.Command(context.Background(), "sh", "-c", script, dir, mount)
		cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNS
		cmd.SysProcAttr.Unshareflags = unix.CLONE_NEWNS // makes mounts private
		a := start(t, c, cmd)
		h.Add(a.Program)
		load(a, filepath.Join(mount, fakes.HIP))
		libraries.Probed(t, s, model.StateOK, hip)
		a.Failures("call %s 4 10", hip)
		load(a, filepath.Join(mount, "libcuda.so.1"))
		libraries.Probed(t, s, model.StateOK, cuda)
		a.Failures("call %s 5 10", cuda)
		counted(t, s, c, map[string]uint64{cudaAPI: 5, hip: 4})
		a.End()
		// Nothing keeps the mounts of a container that ended.
		libraries.Probed(t, s, model.StateAbsent, cuda, hip)
	}
}

// TestKept: a library that was probed once is probed for the next process from its first call, in the same container.
func TestKept(t *testing.T) {
	b := fakes.Build(t, t.TempDir())
	var h libraries.Holders
	c, other := libraries.NewCgroup(t), libraries.NewCgroup(t)
	a := start(t, c, program(b))
	h.Add(a.Program)
	s := startSource(t, &h)
	load(a, b.CUDA)
	libraries.Probed(t, s, model.StateOK, cuda)
	a.End()
	next := start(t, other, program(b))
	load(next, b.CUDA)
	next.Failures("call %s 2 10", cuda)
	counted(t, s, other, map[string]uint64{cudaAPI: 2})
}

// TestBudget: a function that a process calls all the time is no longer probed for a while. The others are.
func TestBudget(t *testing.T) {
	b := fakes.Build(t, t.TempDir())
	var h libraries.Holders
	c := libraries.NewCgroup(t)
	a := start(t, c, program(b))
	load(a, b.CUDA)
	h.Add(a.Program)
	s := startSource(t, &h)
	libraries.Probed(t, s, model.StateOK, cuda)
	// Twenty times the credit. While the probes are detached, returns are seen without their entries, which are losses.
	a.Failures("call cuMemAllocAsync %d 10", 500_000)
	libraries.Probed(t, s, model.StateFailed, "cuMemAllocAsync")
	libraries.Probed(t, s, model.StateOK, cuda, "cuMemAllocAsync_ptsz")
	before := failures(t, s, c)["cuMemAllocAsync"]
	libraries.Eventually(t, func() error { // until the probes are detached
		last := before
		a.Failures("call cuMemAllocAsync 5 10")
		if before = failures(t, s, c)["cuMemAllocAsync"]; before != last {
			return fmt.Errorf("calls are counted: %d, then %d", last, before)
		}
		return nil
	})
	if before == 0 || before > 500_000 {
		t.Errorf("%d calls counted", before)
	}
	a.Failures("call %s 5 10", cuda)
	counted(t, s, c, map[string]uint64{cudaAPI: 5, "cuMemAllocAsync": before})
	snap, _ := s.Read(t.Context())
	for _, k := range snap.Hooks {
		if k.State == model.StateFailed && !strings.Contains(k.Reason, fmt.Sprintf("process %d called it so often", a.Process.Pid)) {
			t.Error(k.Reason)
		}
	}
}

// hold starts a process that maps a file and holds its mmap_lock until its standard input is closed, for two minutes at most.
func hold(t *testing.T, path string) io.Closer {
	t.Helper()
	if _, err := os.Stat("/dev/fuse"); err != nil {
		t.Skip("no FUSE")
	}
	binary := filepath.Join(os.Getenv("ACCELSCOPE_WORKLOADS"), "holdmm")
	if os.Getenv("ACCELSCOPE_WORKLOADS") == "" {
		binary = filepath.Join(t.TempDir(), "holdmm")
		out, err := child.Command(t.Context(), "gcc", "-O2", "-o", binary, "../../../tests/machines/vm/workload/holdmm.c", "-lpthread").CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	cmd := child.Command(context.Background(), binary, path, "120")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stdin.Close()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil || !strings.HasPrefix(line, "ready") {
		t.Fatalf("%q, %v", line, err)
	}
	return stdin
}

// TestHeldLibrary: while a process that maps the library holds its mmap_lock, the functions are not probed, and the state of the hooks
// has the reason. The source answers and ends meanwhile. Afterwards they are probed, and failures are counted.
func TestHeldLibrary(t *testing.T) {
	b := fakes.Build(t, t.TempDir())
	var h libraries.Holders
	c := libraries.NewCgroup(t)
	a := start(t, c, program(b))
	load(a, b.CUDA)
	h.Add(a.Program)
	lock := hold(t, b.CUDA)
	begin := time.Now()
	s := startSource(t, &h)
	libraries.Eventually(t, func() error {
		snap, _ := s.Read(t.Context())
		for _, hook := range snap.Hooks {
			if hook.Name == cuda && (hook.State != model.StateFailed || !strings.Contains(hook.Reason, "deferred: process")) {
				return fmt.Errorf("%+v", hook)
			}
		}
		return nil
	})
	if took := time.Since(begin); took > time.Minute { // the lock is held for two
		t.Errorf("it took %v", took)
	}
	lock.Close()
	libraries.Probed(t, s, model.StateOK, cuda)
	a.Failures("call %s 2 10", cuda)
	counted(t, s, c, map[string]uint64{cudaAPI: 2})
	snap, err := s.Read(t.Context())
	if err != nil || len(snap.ProbeDurations) == 0 || snap.ProbeDurations[0].Calls.Count < 8 {
		t.Errorf("%+v, %v", snap.ProbeDurations, err)
	}
}

// TestExcluded: a library that an opted-out process maps has no probes, also for others that map it, from the moment on at which that is
// known. Other libraries have theirs.
func TestExcluded(t *testing.T) {
	b := fakes.Build(t, t.TempDir())
	var h libraries.Holders
	c, out := libraries.NewCgroup(t), libraries.NewCgroup(t)
	a, other, optedOut := start(t, c, program(b)), start(t, c, program(b)), start(t, out, program(b))
	load(a, b.CUDA)
	load(other, b.HIP)
	load(optedOut, b.CUDA)
	for _, p := range []*fakes.Allocator{a, other, optedOut} {
		h.Add(p.Program)
	}
	var known atomic.Bool
	s := startSource(t, &h, func(o *gpumemory.Options) {
		o.CgroupOf = libraries.CgroupOf
		o.Consent = func(id model.CgroupID) uprobe.Consent {
			if id == out.ID && known.Load() {
				return uprobe.Refused
			}
			return uprobe.Given
		}
	})
	libraries.Probed(t, s, model.StateOK, cuda, hip)
	known.Store(true)
	libraries.Probed(t, s, model.StateAbsent, cuda)
	libraries.Probed(t, s, model.StateOK, hip)
	snap, _ := s.Read(t.Context())
	for _, hook := range snap.Hooks {
		if hook.State == model.StateAbsent && !strings.Contains(hook.Reason, "must not have probes") {
			t.Errorf("%+v", hook)
		}
	}
	mapped, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", optedOut.Process.Pid))
	if err != nil || strings.Contains(string(mapped), "[uprobes]") {
		t.Errorf("it has hit a probe: %v", err)
	}
	libraries.Eventually(t, func() error { // while probes are detached, calls in progress are forgotten, and count as losses
		before := failures(t, s, c)[hip]
		other.Failures("call %s 2 10", hip)
		if n := failures(t, s, c)[hip] - before; n != 2 {
			return fmt.Errorf("%d of 2 calls counted", n)
		}
		return nil
	})
}
