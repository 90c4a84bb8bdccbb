// SPDX-License-Identifier: Apache-2.0

package gpumemory

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"testing"
	"time"

	"github.com/cilium/ebpf/features"
	"go.uber.org/goleak"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
	fakes "github.com/accelscope/accelscope/tests/fakes/gpumemory"
	"github.com/accelscope/accelscope/tests/fakes/libraries"
	"github.com/accelscope/accelscope/tests/tools/child"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// options are the options of a source.
func options(t testing.TB, h *libraries.Holders, change ...func(*Options)) Options {
	t.Helper()
	o := Options{Options: h.Options(t), ReturnProbes: func(context.Context) (bool, error) { return false, nil }}
	for _, f := range change {
		f(&o)
	}
	return o
}

func startSource(t testing.TB, h *libraries.Holders, change ...func(*Options)) *Source {
	t.Helper()
	s, err := newSource(options(t, h, change...), nil)
	if err != nil {
		t.Fatal(err)
	}
	s.begin(t)
	return s
}

// begin starts the Prober.
func (s *Source) begin(t testing.TB) {
	t.Helper()
	s.prober.Start()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// start starts the program in a cgroup.
func start(t testing.TB, c libraries.Cgroup, cmd *exec.Cmd) *fakes.Allocator {
	t.Helper()
	return fakes.Of(t, c.Start(t, cmd))
}

func program(b fakes.Built) *exec.Cmd { return child.Command(context.Background(), b.Program) }

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
func failed(t testing.TB, s *Source, c libraries.Cgroup) map[model.AllocationKey]model.Allocations {
	t.Helper()
	snap, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[model.AllocationKey]model.Allocations{}
	for _, f := range snap.FailedAllocations {
		if f.Cgroup == c.ID {
			out[f.Key] = f.Value
		}
	}
	return out
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

func (e expect) check(t testing.TB, s *Source, c libraries.Cgroup) {
	t.Helper()
	if got := failed(t, s, c); !maps.Equal(got, e) {
		t.Errorf("cgroup %d: counted %v\n   the program saw %v", c.ID, got, e)
	}
}

// TestFailedAllocations compares the counts of two cgroups with what programs in them saw, function by function. The FAKE
// libraries are mapped before and after the source started, and a library that was probed once is probed for the next process
// from its first call. Some functions call others, which count once.
func TestFailedAllocations(t *testing.T) {
	b := fakes.Build(t, t.TempDir())
	var h libraries.Holders
	first, second := libraries.NewCgroup(t), libraries.NewCgroup(t)
	before := start(t, first, program(b))
	before.OK("load %s", b.CUDA)
	h.Add(before.Program)
	s := startSource(t, &h)
	libraries.Probed(t, s, model.StateOK, namesOf(libcuda)...)
	libraries.Probed(t, s, model.StateAbsent, namesOf(libhip)...)
	want := expect{}
	want.exhaust(before, libcuda, 5)
	want.check(t, s, first)

	after := start(t, second, program(b))
	h.Add(after.Program)
	time.Sleep(100 * time.Millisecond) // it was searched before it loads the library
	after.OK("load %s", b.HIP)
	libraries.Probed(t, s, model.StateOK, namesOf(libhip)...)
	others := expect{}
	others.exhaust(after, libhip, 9)
	others.check(t, s, second)
	want.check(t, s, first)

	// Not yet known as a process with a GPU.
	next := start(t, first, program(b))
	next.OK("load %s", b.CUDA)
	want.exhaust(next, libcuda, 2)
	want.check(t, s, first)
	before.End()
	next.End()
	last := start(t, second, program(b)) // the file is kept
	last.OK("load %s", b.CUDA)
	others.exhaust(last, libcuda, 1)
	others.check(t, s, second)

	s.Forget([]model.CgroupID{second.ID})
	expect{}.check(t, s, second)
	want.check(t, s, first)
	libraries.Lossless(t, s)
}

// probedCUDA starts a process that has loaded libcuda, in a cgroup of its own, and a source that probes the library.
func probedCUDA(t testing.TB) (b fakes.Built, c libraries.Cgroup, a *fakes.Allocator, s *Source) {
	t.Helper()
	b = fakes.Build(t, t.TempDir())
	var h libraries.Holders
	c = libraries.NewCgroup(t)
	a = start(t, c, program(b))
	a.OK("load %s", b.CUDA)
	h.Add(a.Program)
	s = startSource(t, &h)
	libraries.Probed(t, s, model.StateOK, namesOf(libcuda)...)
	return b, c, a, s
}

// TestPerProcess: where return probes kill processes with a shadow stack, each process has probes of its own.
func TestPerProcess(t *testing.T) {
	b := fakes.Build(t, t.TempDir())
	var h libraries.Holders
	c := libraries.NewCgroup(t)
	var a, unprobed, shadowed *fakes.Allocator
	perProcess := func(o *Options) { o.ReturnProbes = func(context.Context) (bool, error) { return true, nil } }
	s, err := newSource(options(t, &h, perProcess), func(p *locate.Process) error { // few kernels report shadow stacks
		if p.PID() == shadowed.Process.Pid {
			return locate.ErrShadowStack
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !s.kernel.multi {
		if version, err := features.LinuxVersionCode(); err != nil || version >= 6<<16|6<<8 {
			t.Fatalf("no uprobe_multi links on Linux %#x, %v", version, err)
		}
		t.Skip("uprobe_multi links need Linux 6.6")
	}
	a, unprobed, shadowed = start(t, c, program(b)), start(t, c, program(b)), start(t, c, program(b))
	s.begin(t)
	for _, p := range []*fakes.Allocator{a, unprobed, shadowed} {
		p.OK("load %s", b.CUDA)
		p.OK("limit 0")
	}
	h.Add(shadowed.Program)
	libraries.Eventually(t, func() error {
		if _, err := s.Read(t.Context()); !errors.Is(err, locate.ErrShadowStack) {
			return fmt.Errorf("Read: %w", errors.Join(err, errors.ErrUnsupported))
		}
		return nil
	})
	h.Add(a.Program)
	libraries.Probed(t, s, model.StateOK, namesOf(libcuda)...)
	want := expect{}
	want.exhaust(a, libcuda, 2)
	for _, p := range []*fakes.Allocator{unprobed, shadowed} {
		p.Failures("call cuMemAlloc_v2 3 10")
	}
	shadowed.End()
	libraries.Eventually(t, func() error {
		_, err := s.Read(t.Context())
		return err
	})
	want.check(t, s, c)
	libraries.Lossless(t, s)
}

// TestRefused: without safe return probes there is no source.
func TestRefused(t *testing.T) {
	refused := fmt.Errorf("%w: they kill processes", model.ErrUnsupported)
	o := options(t, &libraries.Holders{}, func(o *Options) {
		o.ReturnProbes = func(context.Context) (bool, error) { return false, refused }
	})
	if _, err := New(o); !errors.Is(err, refused) {
		t.Error(err)
	}
}
