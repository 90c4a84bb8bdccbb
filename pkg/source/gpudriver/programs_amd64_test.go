// SPDX-License-Identifier: Apache-2.0

package gpudriver

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	testcgroup "github.com/accelscope/accelscope/tests/machines/cgroup"
)

// Requests: DRM_IOWR('d', …) and the like, with any size of the argument.
const (
	drmWork     = 0xc0406442 // DRM_COMMAND_BASE + 2
	syncobjWait = 0xc02864c3
	amdWaitCS   = 0xc0206449
	i915Wait    = 0xc010646c
	kfdWait     = 0xc0184b0c
	nvidiaAlloc = 0xc020462a
)

func onThread(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
}

// TestCalls runs the programs as the kernel does for calls of each driver.
func TestCalls(t *testing.T) {
	onThread(t)
	p := newPrograms(t, Options{StuckAfter: time.Hour})
	want := map[model.DriverCallKey]uint64{}
	call := func(driver string, request uint32, kind model.DriverCallKind) {
		t.Helper()
		file := p.file(driver)
		if driver == "" {
			driver = builtIn
		}
		switch driver {
		case "nvidia", "nvidia_uvm":
			p.enter(file, request)
			p.leave()
		case "amdgpu":
			p.enter(file, request)
			if uint8(request>>8) == drmType { // the operation calls drm_ioctl
				p.enterDRM(file, request)
				p.leaveDRM()
			}
			p.leave()
		default:
			p.enterDRM(file, request)
			p.leaveDRM()
		}
		want[model.DriverCallKey{Driver: driver, Kind: kind}]++
	}
	call("nvidia", nvidiaAlloc, model.DriverWork)
	call("nvidia_drm", syncobjWait, model.DriverWait)
	call("nvidia_uvm", 27, model.DriverWork) // UVM numbers its requests without a type
	call("amdgpu", drmWork, model.DriverWork)
	call("amdgpu", amdWaitCS, model.DriverWait)
	call("amdgpu", kfdWait, model.DriverWait)
	call("amdgpu", 0xc0104b03, model.DriverWork)
	call("i915", i915Wait, model.DriverWait)
	call("i915", amdWaitCS, model.DriverWork) // another request of this driver
	call("vgem", i915Wait, model.DriverWork)
	call("vgem", syncobjWait, model.DriverWait)
	call("xe", 0xc048644a, model.DriverWait)
	call("a_name_of_more_than_15_bytes", drmWork, model.DriverWork)
	call("", drmWork, model.DriverWork)
	long := model.DriverCallKey{Driver: "a_name_of_more_than_15_bytes", Kind: model.DriverWork}
	delete(want, long)
	want[model.DriverCallKey{Driver: "a_name_of_more_", Kind: model.DriverWork}] = 1

	p.leave() // of a call from before the programs were attached
	p.leaveDRM()

	got, snap, losses := p.read()
	if d := cmp.Diff(want, got); d != "" || len(losses) > 0 {
		t.Errorf("losses %v, -want +got:\n%s", losses, d)
	}
	for _, u := range snap.DriverUses {
		if u.Oldest != 0 || u.Stuck != 0 {
			t.Errorf("no call is in progress: %+v", u)
		}
	}
	for _, m := range snap.Maps {
		if m.Name == "driver_calls" && m.Entries != 0 {
			t.Errorf("%+v", m)
		}
	}
}

// TestMissedReturn enters again without a return.
func TestMissedReturn(t *testing.T) {
	onThread(t)
	p := newPrograms(t, Options{StuckAfter: time.Hour})
	nvidia, vgem, amdgpu := p.file("nvidia"), p.file("vgem"), p.file("amdgpu")
	p.enter(nvidia, nvidiaAlloc)
	p.enter(nvidia, nvidiaAlloc)
	p.enterDRM(vgem, drmWork) // another file: not called by the operation of nvidia
	p.leaveDRM()
	p.leave()
	p.enter(amdgpu, drmWork)
	p.enterDRM(amdgpu, drmWork) // its return is missed
	p.leave()
	got, _, losses := p.read()
	want := map[model.DriverCallKey]uint64{{Driver: "vgem", Kind: model.DriverWork}: 1, {Driver: "amdgpu", Kind: model.DriverWork}: 1}
	if d := cmp.Diff(want, got) + cmp.Diff(map[string]uint64{"driver_return_missed": 2}, losses); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// TestCallsShare: an owner has its share of the calls in progress, whatever the number of its cgroups and drivers.
func TestCallsShare(t *testing.T) {
	workloads, err := newWorkloads()
	if err != nil {
		t.Skip("needs root and BPF: ", err)
	}
	defer workloads.Close() //nolint:errcheck // memory of the kernel
	for _, c := range []struct {
		name             string
		workload, leaves bool
		drivers          []string
	}{
		{"a workload with tasks", true, true, []string{"nvidia"}},
		{"a user with cgroups", false, true, []string{"nvidia"}},
		{"a cgroup with drivers", true, false, []string{"nvidia", "nvidia_uvm", "nvidia_drm", "amdgpu"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPrograms(t, Options{MaxCalls: 2 * share, StuckAfter: time.Hour, Workloads: workloads})
			dir, id := testcgroup.New(t, testcgroup.V2())
			if err := workloads.Mark(model.CgroupID(id), c.workload); err != nil {
				t.Fatal(err)
			}
			defer workloads.Unmark(model.CgroupID(id))
			var files []uint64
			for _, driver := range c.drivers {
				files = append(files, p.file(driver))
			}
			var leaves []model.CgroupID
			var threads []thread
			call := func(dir string, n int) {
				th := newThread(t)
				threads = append(threads, th)
				inCgroup(t, dir, func() { th.do(func() { p.enter(files[n%len(files)], nvidiaAlloc) }) })
			}
			for n := range 4 {
				leaf, leafID := dir, id
				if c.leaves {
					leaf, leafID = testcgroup.New(t, dir)
				}
				leaves = append(leaves, model.CgroupID(leafID))
				call(leaf, n)
			}
			_, snap, losses := p.read()
			if losses["driver_calls_share"] != 2 || len(losses) != 1 {
				t.Errorf("losses %v, want two calls of four that are more than the share", losses)
			}
			want := []model.Series[model.LossKey, model.Count]{
				{Cgroup: model.CgroupID(id), Key: model.LossKey{Reason: "driver_calls_share"}, Value: 2},
			}
			if d := cmp.Diff(want, snap.OwnerLosses); d != "" {
				t.Error(d)
			}
			if m := mapOf(&snap, gen.GPUDriverMapDriverCalls); m.Entries != 2 {
				t.Errorf("%+v, want 2 entries", m)
			}
			for _, u := range snap.DriverUses {
				if of := u.Cgroup == model.CgroupID(id); of != c.workload || !of && !slices.Contains(leaves, u.Cgroup) {
					t.Errorf("a use of cgroup %d; marked is %d, below it are %v", u.Cgroup, id, leaves)
				}
			}

			// All calls end: there is room again.
			for _, th := range threads {
				th.do(p.leave)
			}
			call(dir, 0)
			if _, snap, losses := p.read(); losses["driver_calls_share"] != 2 || mapOf(&snap, gen.GPUDriverMapDriverCalls).Entries != 1 {
				t.Errorf("after the end of all calls: losses %v, %+v", losses, snap.Maps)
			}

			// The cgroups end while a task that was moved out of them is in a call: its end is not subtracted from nothing.
			p.Forget(append(leaves, model.CgroupID(id)))
			_, _, _ = p.read()
			threads[len(threads)-1].do(p.leave)
			var entries gen.GPUDriverOwnerEntries
			if err := p.sensor.object.Coll.Maps[gen.GPUDriverMapOwnerEntries].Lookup(id, &entries); err == nil &&
				entries.Made[gen.GPUDriverDriverMapDRIVER_CALLS_OF_OWNER] != 0 {
				t.Errorf("an ended owner has %+v", entries)
			}
		})
	}
}

func newWorkloads() (*hook.Workloads, error) {
	spec, err := gen.LoadGPUDriver()
	if err != nil {
		return nil, err
	}
	return hook.NewWorkloads(spec)
}

// inCgroup calls f with this process in a cgroup of version 2.
func inCgroup(t *testing.T, dir string, f func()) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	own := testcgroup.V2()
	for line := range strings.Lines(string(text)) {
		if path, v2 := strings.CutPrefix(strings.TrimSpace(line), "0::"); v2 {
			own = filepath.Join(own, path)
		}
	}
	enter := func(dir string) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
	}
	enter(dir)
	defer enter(own)
	f()
}

func mapOf(snap *model.Snapshot, name string) model.Map {
	for _, m := range snap.Maps {
		if m.Name == name {
			return m
		}
	}
	return model.Map{}
}

// TestStatsShare: a cgroup may have the durations of one driver.
func TestStatsShare(t *testing.T) {
	onThread(t)
	p := newPrograms(t, Options{MaxEntries: share, StuckAfter: time.Hour})
	for range 2 { // again after Forget
		for _, driver := range []string{"nvidia", "nvidia_uvm"} {
			p.enter(p.file(driver), nvidiaAlloc)
			p.leave()
		}
		got, snap, losses := p.read()
		if len(got) != 1 || losses["driver_stats_share"] == 0 || losses["driver_stats_full"] > 0 {
			t.Fatalf("%v, losses %v", got, losses)
		}
		owner := snap.DriverCalls[0].Cgroup
		want := []model.Series[model.LossKey, model.Count]{{Cgroup: owner, Key: model.LossKey{Reason: "driver_stats_share"}, Value: 1}}
		if d := cmp.Diff(want, snap.OwnerLosses); d != "" {
			t.Error(d)
		}
		p.Forget([]model.CgroupID{owner})
		if got, snap, _ = p.read(); len(got)+len(snap.DriverUses)+len(snap.OwnerLosses) != 0 {
			t.Errorf("after Forget: %v, %+v, %+v", got, snap.DriverUses, snap.OwnerLosses)
		}
	}
}

// TestCallsFull: other cgroups have all entries.
func TestCallsFull(t *testing.T) {
	onThread(t)
	p := newPrograms(t, Options{MaxCalls: 1, StuckAfter: time.Hour})
	if err := p.sensor.object.Coll.Maps[gen.GPUDriverMapDriverCalls].Put(uint32(1<<30), gen.GPUDriverDriverCall{StartNs: monotonic()}); err != nil {
		t.Fatal(err)
	}
	p.enter(p.file("nvidia"), nvidiaAlloc)
	p.leave()
	if _, snap, losses := p.read(); losses["driver_calls_full"] != 1 || losses["driver_calls_share"] > 0 || len(snap.OwnerLosses) > 0 {
		t.Errorf("losses %v, %+v", losses, snap.OwnerLosses)
	}
}

// TestFull: another cgroup has the only entry.
func TestFull(t *testing.T) {
	onThread(t)
	p := newPrograms(t, Options{MaxEntries: 1, StuckAfter: time.Hour})
	if err := p.sensor.object.Coll.Maps[gen.GPUDriverMapDriverStats].Put(gen.GPUDriverDriverKey{Cgroup: 1}, gen.GPUDriverDriverStat{}); err != nil {
		t.Fatal(err)
	}
	p.enter(p.file("nvidia"), nvidiaAlloc)
	p.leave()
	got, snap, losses := p.read()
	if len(got) != 0 || losses["driver_stats_full"] != 1 || losses["driver_stats_share"] > 0 || len(snap.OwnerLosses) > 0 {
		t.Errorf("%v, losses %v, %+v", got, losses, snap.OwnerLosses)
	}
}

// TestWaits checks that the programs know each request that waits on purpose.
func TestWaits(t *testing.T) {
	p := newPrograms(t, Options{})
	var keys []gen.GPUDriverDriverRequest
	var key gen.GPUDriverDriverRequest
	var value uint8
	for it := p.sensor.object.Coll.Maps[gen.GPUDriverMapDriverWaits].Iterate(); it.Next(&key, &value); {
		keys = append(keys, key)
	}
	if len(keys) != len(waits) || len(slices.Compact(slices.Clone(waits))) != len(waits) {
		t.Errorf("%d of %d requests", len(keys), len(waits))
	}
}

func eventually(t *testing.T, f func() error) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
