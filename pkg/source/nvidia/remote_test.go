// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/gpuuse"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
	fake "github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/fakes/nvml/nvmltest"
)

// The tests of this file run the real child: this test binary, started again. The library is a
// fake that holds files as the real one holds device nodes.

// remoteNode is a node with fake GPUs and the Source that reads them.
type remoteNode struct {
	*testing.T
	*fake.Scenario
	*Source
	sysfs, procfs string
}

func newRemoteNode(t *testing.T, gpus int, change func(*Options)) *remoteNode {
	t.Helper()
	r := &remoteNode{T: t, Scenario: nvmltest.OneGPU(t), sysfs: t.TempDir(), procfs: t.TempDir()}
	r.Remove("0")
	for n := range gpus {
		r.AddH100(n)
		if err := fake.Bind(r.sysfs, r.procfs, n); err != nil {
			t.Fatal(err)
		}
	}
	r.load("550.54.15")
	r.write()
	o := Options{Options: wire.Options{
		Library: nvmltest.Library(t, false), Sysfs: r.sysfs, Procfs: r.procfs, Interval: 50 * time.Millisecond,
	}}
	if change != nil {
		change(&o)
	}
	r.Source = newSource(o, openRemote, 10*time.Millisecond)
	t.Cleanup(func() {
		_ = r.Close()
		nvmltest.Ended(t, r.done)
		r.gone("after Close")
	})
	return r
}

func (r *remoteNode) write() {
	r.Helper()
	if err := r.Write(); err != nil {
		r.Fatal(err)
	}
}

// load loads the driver's module.
func (r *remoteNode) load(version string) {
	r.Helper()
	r.Driver(version)
	if err := os.MkdirAll(filepath.Join(r.sysfs, "module/nvidia"), 0o755); err != nil {
		r.Fatal(err)
	}
}

// held lists the files that any process holds.
func (r *remoteNode) held() []string {
	r.Helper()
	held, err := r.Held()
	if err != nil {
		r.Fatal(err)
	}
	var all []string
	for _, names := range held {
		all = append(all, names...)
	}
	return all
}

func (r *remoteNode) gone(when string) {
	r.Helper()
	if held := r.held(); len(held) > 0 {
		r.Errorf("%s, these are open: %v", when, held)
	}
}

func (r *remoteNode) ends(reason string) uint64 {
	r.children.mu.Lock()
	defer r.children.mu.Unlock()
	return r.children.ends[reason]
}

func (r *remoteNode) xid(s model.Snapshot, code uint64) uint64 {
	for _, x := range s.GPUs[0].XIDs {
		if x.Code == code {
			return x.Count
		}
	}
	return 0
}

func TestReleaseThroughTheChild(t *testing.T) {
	r := newRemoteNode(t, 2, nil)
	listening := func(s model.Snapshot) bool {
		return ready(2)(s) && s.GPUs[0].XIDs != nil && s.GPUs[1].XIDs != nil
	}
	before := until(t, r.Source, listening)
	r.XID("0", 31)
	r.write()
	until(t, r.Source, func(s model.Snapshot) bool { return r.xid(s, 31) == 1 })
	if want := []string{"nvidia0", "nvidia1", "nvidiactl"}; !slices.Equal(r.held(), want) {
		t.Fatalf("the library holds %v, want %v: this test shows nothing", r.held(), want)
	}
	for pid := range must(r.Held()) {
		if pid == os.Getpid() {
			t.Error("the library is in this process")
		}
	}

	began := time.Now()
	status := r.Release("a test", time.Hour)
	took := time.Since(began)
	r.gone("after Release")
	if status.State != model.StateReleased || len(status.Closed) != 3 || !strings.Contains(status.Closed[2], "nvidiactl") ||
		status.Open != nil || status.Until.Before(began.Add(time.Hour)) {
		t.Errorf("%+v", status)
	}
	t.Logf("released in %v: %+v", took, status)
	released := func() model.Snapshot {
		t.Helper()
		s, err := r.Read(t.Context())
		if !errors.Is(err, model.ErrReleased) || !strings.Contains(err.Error(), "a test, until ") {
			t.Fatalf("%v", err)
		}
		return s
	}
	s := released()
	if len(s.GPUs) != 2 || s.GPUs[0].UUID != before.GPUs[0].UUID || s.GPUs[0].Utilization.Known || s.GPUs[0].Problems != nil ||
		!s.GPUs[0].Unlisted || r.xid(s, 31) != 1 {
		t.Errorf("%+v", s.GPUs)
	}
	// A shorter release does not shorten it; what happens to the GPUs does not end it.
	again := r.Release("another test", time.Nanosecond)
	if !again.Until.Equal(status.Until) || !strings.HasPrefix(again.Reason, "another test, until ") || len(again.Closed) != 3 {
		t.Errorf("%+v", again)
	}
	r.Release("a test", time.Nanosecond)
	if err := fake.Unbind(r.sysfs, r.procfs, 1); err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * r.o.Interval)
	released()
	r.gone("while it is released")
	if err := fake.Bind(r.sysfs, r.procfs, 1); err != nil {
		t.Fatal(err)
	}

	if status := r.Resume(); status.State != model.StateOK || status.Closed != nil {
		t.Errorf("%+v", status)
	}
	until(t, r.Source, listening)
	r.XID("0", 31)
	r.write()
	s = until(t, r.Source, func(s model.Snapshot) bool { return r.xid(s, 31) > 1 })
	if n := r.xid(s, 31); n != 2 {
		t.Errorf("%d XIDs, want 2", n)
	}
	if a, b := before.GPUs[0].Energy, s.GPUs[0].Energy; !b.Known || b.Value < a.Value {
		t.Errorf("energy: %v, then %v", a, b)
	}
	if status := r.Resume(); status.State != model.StateOK || len(status.Open) == 0 {
		t.Errorf("Resume without a release: %+v", status)
	}

	r.Release("for a moment", 3*time.Second)
	r.gone("after Release")
	until(t, r.Source, ready(2))
	if r.ends(endedByCrash)+r.ends(endedByHang) != 0 {
		t.Errorf("a release is counted: %v", r.children.ends)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestReleaseUntilTheDriverIsBack: the driver is unloaded and another version is loaded.
func TestReleaseUntilTheDriverIsBack(t *testing.T) {
	r := newRemoteNode(t, 1, nil)
	until(t, r.Source, ready(1))
	r.Release("an upgrade", time.Hour)
	time.Sleep(5 * r.o.Interval)
	r.gone("while it is released")
	for _, path := range []string{"module/nvidia", "bus/pci/drivers/nvidia"} {
		if err := os.RemoveAll(filepath.Join(r.sysfs, path)); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(5 * r.o.Interval)
	if s, err := r.Read(t.Context()); !errors.Is(err, model.ErrReleased) {
		t.Errorf("%v %+v", err, s)
	}
	r.load("560.35.03")
	r.write()
	if err := fake.Bind(r.sysfs, r.procfs, 0); err != nil {
		t.Fatal(err)
	}
	s := until(t, r.Source, ready(1))
	if s.GPUDrivers[0].Version != "560.35.03" || r.Status().State != model.StateOK {
		t.Errorf("%+v, %+v", s.GPUDrivers, r.Status())
	}
}

// TestChildCrashesWhileOpening: the library crashes in nvmlInit.
func TestChildCrashesWhileOpening(t *testing.T) {
	r := newRemoteNode(t, 1, nil)
	until(t, r.Source, ready(1))
	r.Release("a test", time.Hour)
	r.Crash(fake.System, "nvmlInit")
	r.write()
	if status := r.Resume(); status.State != model.StateFailed || !strings.Contains(status.Reason, "ended") {
		t.Errorf("%+v", status)
	}
	r.Heal(fake.System, "nvmlInit")
	r.write()
	until(t, r.Source, ready(1))
}

// TestChildHangs: a call for one GPU never returns. The child is killed, and another one reads the
// other GPU.
func TestChildHangs(t *testing.T) {
	r := newRemoteNode(t, 2, func(o *Options) { o.hangLimit = 3 * time.Second })
	until(t, r.Source, ready(2))
	first := slices.Collect(maps.Keys(must(r.Held())))
	r.Block("1", "nvmlDeviceGetPowerUsage")
	r.write()
	s := until(t, r.Source, func(s model.Snapshot) bool {
		return state(s, fake.Address(1)) == model.StateStuck && s.GPUs[0].Utilization.Known
	})
	if n := r.ends(endedByHang); n != 1 {
		t.Errorf("%d children were killed, want 1", n)
	}
	if state(s, "0") != model.StateOK || !has(s.GPUs[1].Problems, model.ProblemStuck) {
		t.Errorf("%+v %+v", s.GPUs[1], s.DeviceStates)
	}
	for pid, files := range must(r.Held()) {
		if slices.Contains(first, pid) || slices.Contains(files, "nvidia1") {
			t.Errorf("process %d holds %v", pid, files)
		}
	}
	// The GPU is left alone, so the second child goes on.
	second := slices.Collect(maps.Keys(must(r.Held())))
	time.Sleep(5 * time.Second)
	if now := slices.Collect(maps.Keys(must(r.Held()))); !slices.Equal(now, second) {
		t.Errorf("the child is now %v, before %v", now, second)
	}
	// After the pause it is tried again.
	r.Release("a test", time.Hour) // the keeper is idle
	r.hangs.devices[fake.Address(1)+"#1"] = hungDevice{time.Minute, time.Now()}
	r.Heal("1", "nvmlDeviceGetPowerUsage")
	r.write()
	r.Resume()
	until(t, r.Source, ready(2))
}

// TestChildHangsWhileOpening: nvmlInit never returns. Release does not wait for it.
func TestChildHangsWhileOpening(t *testing.T) {
	r := newRemoteNode(t, 1, func(o *Options) { o.hangLimit = time.Second })
	until(t, r.Source, ready(1))
	r.Release("a test", time.Hour)
	r.Block(fake.System, "nvmlInit")
	r.write()
	r.Resume()
	nvmltest.Eventually(t, "the child is killed", func() bool { return r.ends(endedByHang) == 1 })
	if status := r.Release("a test", time.Hour); status.State != model.StateReleased {
		t.Errorf("%+v", status)
	}
	r.gone("after Release")
	r.Heal(fake.System, "nvmlInit")
	r.write()
	r.Resume()
	until(t, r.Source, ready(1))
}

// TestInstancesAreNotHeld: the handles of MIG instances are open for one round at a time.
func TestInstancesAreNotHeld(t *testing.T) {
	r := newRemoteNode(t, 2, func(o *Options) { o.Interval = time.Second })
	r.SplitGPU(1, fake.Profile3g, fake.Profile1g)
	r.Processes = []fake.Process{{Device: "1:0", PID: os.Getpid(), Memory: 7 << 20, Kinds: "C"}}
	r.Balance()
	if err := r.Capabilities(r.procfs); err != nil {
		t.Fatal(err)
	}
	r.write()
	complete := func(s model.Snapshot) bool {
		return len(s.GPUs) == 4 && len(s.GPUProcesses) == 1 && slices.Contains(s.GPUs[2].Engines, model.Figure{Name: "sm_active", Value: 0.125})
	}
	s := until(t, r.Source, complete)
	gpu, part := s.GPUs[1], s.GPUs[2]
	if part.Parent != gpu.UUID || part.Profile != "3g.40gb" || s.GPUProcesses[0].GPU != part.UUID || !part.Memory.Used.Known ||
		!gpu.Memory.Used.Known || gpu.Unlisted || !gpu.Listed.Equal(part.Listed) || !listed(gpu.Problems, model.ProblemECC) {
		t.Errorf("%+v\n%+v", gpu, part)
	}
	isInstance := func(name string) bool { return strings.HasPrefix(name, "nvidia-cap") }
	opened := func() uint64 { return must(r.Calls()).Of("1", "nvmlDeviceGetMigDeviceHandleByIndex") }
	for range 3 {
		before := opened()
		nvmltest.Eventually(t, "there is a round of instances", func() bool { return opened() > before })
		nvmltest.Eventually(t, "only the handles of instances are closed", func() bool {
			held := r.held()
			return !slices.ContainsFunc(held, isInstance) && slices.Contains(held, "nvidia1")
		})
	}
	r.Release("a test", time.Hour)
	r.gone("after Release")
	r.Resume()
	until(t, r.Source, complete)

	r.SplitGPU(1, fake.Profile1g)
	r.Processes = nil
	r.Balance()
	r.write()
	until(t, r.Source, func(s model.Snapshot) bool {
		return len(s.GPUs) == 3 && s.GPUs[2].Profile == "1g.10gb" && s.GPUProcesses != nil && len(s.GPUProcesses) == 0
	})
	if n := r.ends(endedByCrash) + r.ends(endedByHang); n != 0 {
		t.Errorf("%d unexpected ends", n)
	}
}

// listed reports whether a condition is present, active or not.
func listed(conditions []model.GPUCondition, name string) bool {
	return slices.ContainsFunc(conditions, func(c model.GPUCondition) bool { return c.Name == name })
}

// FuzzMessage: a message of a child, in which the library may have written anywhere, is parsed or
// refused.
func FuzzMessage(f *testing.F) {
	f.Add([]byte(`{"Version":1,"Opened":{"Error":"no","Absent":true}}`))
	f.Add([]byte(`{"Answer":{"Number":1,"Snapshot":{"GPUs":[{"UUID":"GPU-1","Problems":[],"Power":{"Value":1,"Known":true}}]},"Hung":["0"]}}`))
	f.Add([]byte(`{"XID":{"UUID":"GPU-1","XID":{"Code":31,"Count":1}},"Listed":{"UUID":"GPU-1","Processes":[{"PID":-1,"Listed":true,"Busy":-5}],"Instances":[{"Instance":"7"}]},"Log":{"Level":9,"Fields":{"a":null}}}`))
	f.Fuzz(func(_ *testing.T, body []byte) {
		m, err := wire.Parse(body)
		if err != nil {
			return
		}
		s := &remoteSession{
			start: start{logger: zap.NewNop(), xids: wire.NewXIDs(), notify: func(error) {}, uses: &gpuuse.Table{}}, opened: make(chan error, 1),
			cgroups: map[int]cgroupOfProcess{},
		}
		s.handle(m)
	})
}

// TestEndedProcess: a process that ended after it was listed keeps its cgroup, for the records of the kernel log.
func TestEndedProcess(t *testing.T) {
	ended := false
	s := &remoteSession{cgroups: map[int]cgroupOfProcess{}, start: start{
		Start: wire.Start{Options: wire.Options{Interval: time.Hour}},
		cgroupOf: func(int) (model.CgroupID, error) {
			if ended {
				return 0, fs.ErrNotExist
			}
			return 77, nil
		},
	}}
	listing := func(pids ...int) *wire.Listing {
		l := &wire.Listing{Processes: []wire.Use{{PID: 14}}}
		for _, pid := range pids {
			l.Processes = append(l.Processes, wire.Use{PID: pid, Listed: true})
		}
		return l
	}
	s.resolve(listing(12))
	ended = true
	s.resolve(listing(12, 13))
	if got := [2]model.CgroupID{s.cgroups[12].id, s.cgroups[13].id}; got != [2]model.CgroupID{77, 0} {
		t.Errorf("cgroups %v", got)
	}
}

// TestHold: a signal of the driver's tools releases the driver until the signal ends, and does not end a release that was
// requested.
func TestHold(t *testing.T) {
	r := newRemoteNode(t, 1, nil)
	until(t, r.Source, ready(1))
	state := func(want model.State, reason string) {
		t.Helper()
		if status := r.Status(); status.State != want || !strings.HasPrefix(status.Reason, reason) {
			t.Errorf("%+v, want %s %q", status, want, reason)
		}
	}
	r.Hold("a label", time.Hour)
	r.gone("after Hold")
	state(model.StateReleased, "a label, until ")
	r.EndHold("another label")
	time.Sleep(5 * r.o.Interval)
	state(model.StateReleased, "a label, until ")
	r.EndHold("a label")
	until(t, r.Source, ready(1))

	requested := r.Release("an operator", time.Hour)
	r.Hold("a label", 2*time.Hour)
	state(model.StateReleased, "an operator, until ")
	r.EndHold("a label")
	time.Sleep(5 * r.o.Interval)
	state(model.StateReleased, "an operator, until ")
	if status := r.Status(); !status.Until.Equal(requested.Until) {
		t.Errorf("until %v, want %v", status.Until, requested.Until)
	}
	r.Resume()
	until(t, r.Source, ready(1))

	r.Hold("a label", time.Hour)
	r.Release("an operator", time.Minute) // ends with the hold
	r.EndHold("a label")
	state(model.StateReleased, "")
	r.Resume()
	until(t, r.Source, ready(1))
	r.Hold("a label", 10*r.o.Interval)
	until(t, r.Source, ready(1)) // the time is over

	r.Hold("a label", time.Hour)
	r.gone("after the last Hold")
	r.Resume() // by an operator, although the signal goes on
	until(t, r.Source, ready(1))
	time.Sleep(5 * r.o.Interval)
	state(model.StateOK, "")
	r.EndHold("a label")
	state(model.StateOK, "")
}

// TestRecoveryAction: the driver reports that the recovery action has changed, and the GPU is read again at once.
func TestRecoveryAction(t *testing.T) {
	r := newRemoteNode(t, 1, func(o *Options) { o.Interval = time.Hour })
	action := func(want string) func(model.Snapshot) bool {
		return func(s model.Snapshot) bool {
			return len(s.GPUs) == 1 && s.GPUs[0].RecoveryAction == want && s.GPUs[0].XIDs != nil
		}
	}
	until(t, r.Source, action(model.RecoveryNone))
	r.Recovery("0", 2)
	r.write()
	s := until(t, r.Source, action(model.RecoveryReboot))
	if !has(s.GPUs[0].Problems, model.ProblemRecovery) {
		t.Errorf("%+v", s.GPUs[0].Problems)
	}
	r.Recovery("0", 0)
	r.write()
	s = until(t, r.Source, action(model.RecoveryNone))
	if has(s.GPUs[0].Problems, model.ProblemRecovery) {
		t.Errorf("%+v", s.GPUs[0].Problems)
	}
}
