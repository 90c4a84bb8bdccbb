// SPDX-License-Identifier: Apache-2.0

package gpumemory

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	fakes "github.com/accelscope/accelscope/tests/fakes/gpumemory"
	"github.com/accelscope/accelscope/tests/fakes/libraries"
)

// TestLargeRequests: a size that no GPU has counts without its bytes.
func TestLargeRequests(t *testing.T) {
	_, c, a, s := probedCUDA(t)
	a.OK("limit 0")
	want := expect{}
	plain, pitch := functions[0].api, functions[1].api
	for _, size := range []uint64{1<<48 - 1, 1 << 48, 1<<64 - 1} {
		n := a.Failures("call cuMemAlloc_v2 1 %d", size)
		if size >= 1<<48 {
			size = 0
		}
		want.add(plain, n, size)
	}
	want.add(pitch, a.Failures("call cuMemAllocPitch_v2 1 %d 2", uint64(1<<47)), 0)
	want.add(pitch, a.Failures("call cuMemAllocPitch_v2 1 %d %d", uint64(1<<40), uint64(1<<40-1)), 0)
	want.add(pitch, a.Failures("call cuMemAllocPitch_v2 1 %d 2", uint64(1<<47-1)), 1<<48-2)
	want.check(t, s, c)

	// The sum ends, so that it cannot overflow.
	const largest, end = uint64(1<<48 - 1), uint64(1 << 60)
	n := a.Failures("call cuMemAlloc_v2 %d %d", 6000, largest)
	bytes := want[plain].Bytes
	for range n {
		if bytes < end {
			bytes += largest
		}
	}
	want[plain] = model.Allocations{Count: want[plain].Count + n, Bytes: bytes}
	want.check(t, s, c)
	libraries.Lossless(t, s)
}

// TestFormerCalls: a call that an earlier thread with the same number, or one before probes were detached, did not return from
// does not make calls of this thread look nested.
func TestFormerCalls(t *testing.T) {
	_, c, a, s := probedCUDA(t)
	a.OK("limit 0")
	want := expect{}
	call := func(counts bool) {
		t.Helper()
		if n := a.Failures("call cuMemAlloc_v2 1 100"); counts {
			want.add(functions[0].api, n, 100*n)
		}
		want.check(t, s, c)
	}
	call(true)
	m, tid := s.kernel.object.Coll.Maps[gen.GPUMemoryMapAllocations], uint32(a.Process.Pid)
	var own gen.GPUMemoryAllocation
	if err := m.Lookup(tid, &own); err != nil || own.Sp != 0 || own.Mm == 0 || own.Started == 0 {
		t.Fatalf("%+v, %v", own, err)
	}
	own.Sp = 1<<64 - 1 // above the whole stack
	for name, former := range map[string]struct {
		change func(*gen.GPUMemoryAllocation)
		counts bool
	}{
		"this thread":         {func(*gen.GPUMemoryAllocation) {}, false},
		"another process":     {func(a *gen.GPUMemoryAllocation) { a.Mm += 64 }, true},
		"another thread":      {func(a *gen.GPUMemoryAllocation) { a.Started-- }, true},
		"before a detachment": {func(a *gen.GPUMemoryAllocation) { a.Generation-- }, true},
	} {
		t.Run(name, func(t *testing.T) {
			stale := own
			former.change(&stale)
			if err := m.Put(tid, stale); err != nil {
				t.Fatal(err)
			}
			call(former.counts)
		})
	}
	libraries.Lossless(t, s)
}

// TestWorkloads: failures in the cgroups below a marked cgroup belong to the workload, or each to its own cgroup in one share. Another
// cgroup has room.
func TestWorkloads(t *testing.T) {
	b := fakes.Build(t, t.TempDir())
	spec, err := gen.LoadGPUMemory()
	if err != nil {
		t.Fatal(err)
	}
	for name, whole := range map[string]bool{"a job with tasks": true, "a user with cgroups": false} {
		t.Run(name, func(t *testing.T) {
			workloads, err := hook.NewWorkloads(spec)
			if err != nil {
				t.Fatal(err)
			}
			defer workloads.Close() //nolint:errcheck // memory of the kernel
			var h libraries.Holders
			const leaves = share // as many as fit into the map
			s := startSource(t, &h, func(o *Options) { o.MaxEntries, o.Workloads = leaves, workloads })
			marked, other := libraries.NewCgroup(t), libraries.NewCgroup(t)
			if err := workloads.Mark(marked.ID, whole); err != nil {
				t.Fatal(err)
			}
			fail := func(in libraries.Cgroup) {
				t.Helper()
				a := start(t, in, program(b))
				a.OK("load %s", b.CUDA)
				h.Add(a.Program)
				libraries.Probed(t, s, model.StateOK, namesOf(libcuda)...)
				a.OK("limit 0")
				a.Failures("call cuMemAlloc_v2 3 10")
			}
			var below []libraries.Cgroup
			for range leaves {
				below = append(below, marked.Below(t))
				fail(below[len(below)-1])
			}
			fail(other)

			want, lost := expect{}, uint64(3*(leaves-1)) // all but the first of the share
			owners := []model.Series[model.LossKey, model.Count]{
				{Cgroup: marked.ID, Key: model.LossKey{Reason: "allocation_failures_share"}, Value: model.Count(lost)},
			}
			if want.add(functions[0].api, 3, 30); whole {
				all := expect{}
				all.add(functions[0].api, 3*leaves, 30*leaves)
				all.check(t, s, marked)
				lost, owners = 0, []model.Series[model.LossKey, model.Count]{}
			} else {
				want.check(t, s, below[0])
			}
			want.check(t, s, other)
			snap, err := s.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if n := len(snap.FailedAllocations); n != 2 {
				t.Errorf("%d entries, want the entries of the other cgroup and of the workload or its first cgroup", n)
			}
			if !slices.Contains(snap.Losses, model.Loss{Reason: "allocation_failures_share", Count: lost}) ||
				!slices.Contains(snap.Losses, model.Loss{Reason: "allocation_failures_full"}) {
				t.Errorf("%+v, want %d of the share", snap.Losses, lost)
			}
			if d := cmp.Diff(owners, snap.OwnerLosses); d != "" {
				t.Error(d)
			}

			// The first one ends: the second one has room.
			s.Forget([]model.CgroupID{marked.ID, below[0].ID})
			if snap, err = s.Read(t.Context()); err != nil || len(snap.FailedAllocations) != 1 {
				t.Fatalf("after Forget: %+v, %v", snap.FailedAllocations, err)
			}
			fail(below[1])
			if got := failed(t, s, below[1]); !whole && got[functions[0].api].Count != 3 {
				t.Errorf("after Forget: %+v", got)
			}
		})
	}
}

// TestFull: a map without room for another cgroup loses its failures, and counts them.
func TestFull(t *testing.T) {
	b := fakes.Build(t, t.TempDir())
	var h libraries.Holders
	s := startSource(t, &h, func(o *Options) { o.MaxEntries = 1 })
	for i := range 2 {
		a := start(t, libraries.NewCgroup(t), program(b))
		a.OK("load %s", b.CUDA)
		h.Add(a.Program)
		libraries.Probed(t, s, model.StateOK, namesOf(libcuda)...)
		a.OK("limit 0")
		a.Failures("call cuMemAlloc_v2 3 10")
		snap, err := s.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := model.Loss{Reason: "allocation_failures_full", Count: uint64(3 * i)}
		if len(snap.FailedAllocations) != 1 || !slices.Contains(snap.Losses, want) {
			t.Errorf("%+v, %+v; want %+v", snap.FailedAllocations, snap.Losses, want)
		}
		if m := (model.Map{Name: "allocation_failures", Entries: 1, Capacity: 1}); i == 1 && !slices.Contains(snap.Maps, m) {
			t.Errorf("%+v, want %+v", snap.Maps, m)
		}
	}
}
