// SPDX-License-Identifier: Apache-2.0

package gpudriver

import (
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

// Requests: those of DRM_IOWR('d', …) and the like, with any size of the argument.
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

// TestShare fills the part of the calls in progress that one cgroup may use.
func TestShare(t *testing.T) {
	p := newPrograms(t, Options{MaxCalls: 2 * ofCgroup, StuckAfter: time.Hour})
	file := p.file("nvidia")
	var threads []thread
	for range 3 {
		threads = append(threads, newThread(t))
	}
	for _, c := range threads {
		c.do(func() { p.enter(file, nvidiaAlloc) })
	}
	if _, _, losses := p.read(); losses["driver_calls_full"] != 1 {
		t.Errorf("the third call has room: %v", losses)
	}
	for _, c := range threads {
		c.do(p.leave)
	}
	threads[2].do(func() { p.enter(file, nvidiaAlloc); p.leave() })
	got, _, losses := p.read()
	if n := got[model.DriverCallKey{Driver: "nvidia", Kind: model.DriverWork}]; n != 3 || losses["driver_calls_full"] != 1 {
		t.Errorf("%d calls, want the first two and the last; losses %v", n, losses)
	}
}

// TestStatsShare: a cgroup may have the durations of one driver.
func TestStatsShare(t *testing.T) {
	onThread(t)
	p := newPrograms(t, Options{MaxEntries: statsShare, StuckAfter: time.Hour})
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

// TestFull: another cgroup has the only entry.
func TestFull(t *testing.T) {
	onThread(t)
	p := newPrograms(t, Options{MaxEntries: 1, StuckAfter: time.Hour})
	if err := p.sensor.coll.Maps[gen.GPUDriverMapDriverStats].Put(gen.GPUDriverDriverKey{Cgroup: 1}, gen.GPUDriverDriverStat{}); err != nil {
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
	for it := p.sensor.coll.Maps[gen.GPUDriverMapDriverWaits].Iterate(); it.Next(&key, &value); {
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
