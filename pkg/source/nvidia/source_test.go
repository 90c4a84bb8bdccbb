// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
	"github.com/accelscope/accelscope/tests/fakes/nvml/nvmltest"
)

// ready returns a condition: all n GPUs answer, and their slow values were read.
func ready(n int) func(model.Snapshot) bool {
	return func(s model.Snapshot) bool {
		return len(s.GPUs) == n && !slices.ContainsFunc(s.GPUs, func(g model.GPU) bool {
			return !g.Utilization.Known || !g.PCIe.Width.Known
		})
	}
}

// identity returns the part of a GPU that is known when it cannot be read.
func identity(g model.GPU) model.GPU {
	return model.GPU{
		Vendor: g.Vendor, ID: g.ID, UUID: g.UUID, Parent: g.Parent, Name: g.Name, Serial: g.Serial, PCIAddress: g.PCIAddress,
		PCIDevice: g.PCIDevice, NUMANode: g.NUMANode, VBIOS: g.VBIOS, Nodes: g.Nodes, Profile: g.Profile,
		Instance: g.Instance, ComputeInstance: g.ComputeInstance,
	}
}

func onlyIdentity(g model.GPU) bool {
	bare := identity(g)
	bare.Problems, bare.Suspended = g.Problems, g.Suspended
	return reflect.DeepEqual(g, bare)
}

// TestOneGPU uses a fake driver, as do the tests below. Its library is the oldest one: calling
// a function that not all libraries have panics.
func TestOneGPU(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	d.plug(address, "GPU-1", 3)
	dir := filepath.Join(d.options.Sysfs, "bus/pci/devices", address)
	d.write(filepath.Join(dir, "numa_node"), "1\n")
	d.mkdir("bus/pci/devices/" + address + "/drm/card1")
	d.mkdir("bus/pci/devices/" + address + "/drm/renderD129")
	s := until(t, d.source(), ready(1))
	want := model.GPU{
		Vendor: model.NVIDIA, ID: "3", UUID: "GPU-1", Name: "NVIDIA Fake", Serial: "1234", VBIOS: "96.00",
		PCIAddress: address, PCIDevice: "0x2330", NUMANode: "1",
		Nodes:       []string{"/dev/nvidia3", "/dev/dri/card1", "/dev/dri/renderD129"},
		Unlisted:    true, // the oldest library lists no processes
		Modes:       map[string]string{"compute": "exclusive_process", "persistence": "enabled", "ecc": "enabled"},
		Utilization: model.Some(0.42), Power: model.Some(123.456), FanSpeed: model.Some(0), PerformanceState: model.Some(0),
		Engines:      []model.Figure{{Name: "sm", Value: 0.42}, {Name: "memory", Value: 0}},
		Temperatures: []model.Figure{{Name: "gpu", Value: 33}},
		Clocks:       []model.Figure{{Name: "graphics", Value: 1.98e9}, {Name: "sm", Value: 1.98e9}, {Name: "memory", Value: 1.98e9}},
		MaxClocks:    []model.Figure{{Name: "graphics", Value: 1.98e9}, {Name: "sm", Value: 1.98e9}, {Name: "memory", Value: 1.98e9}},
		PCIe: model.GPUPCIe{
			Generation: model.Some(4), MaxGeneration: model.Some(5), Width: model.Some(8), MaxWidth: model.Some(16),
		},
		Problems: []model.GPUCondition{
			{Name: model.ProblemLost},
			{Name: model.ProblemStuck},
			{Name: model.ProblemUnreadable},
			{Name: model.ProblemResetRequired},
			{Name: model.ProblemPCIeDegraded, Active: true},
		},
	}
	if ago := time.Since(s.GPUs[0].Listed); ago < time.Minute {
		want.Listed = s.GPUs[0].Listed
	}
	if !reflect.DeepEqual(s.GPUs[0], want) {
		t.Errorf("got  %+v\nwant %+v", s.GPUs[0], want)
	}
	drivers := []model.GPUDriver{{Vendor: model.NVIDIA, Version: "550.54.15", Library: "12.550.54.15"}}
	if !reflect.DeepEqual(s.GPUDrivers, drivers) {
		t.Errorf("driver %+v", s.GPUDrivers)
	}
	if state(s, "3") != model.StateOK {
		t.Errorf("states %+v", s.DeviceStates)
	}
}

func TestNoDriver(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	if err := os.RemoveAll(d.options.Sysfs + "/bus"); err != nil {
		t.Fatal(err)
	}
	s := d.source()
	<-s.ready
	if _, err := s.Read(t.Context()); !errors.Is(err, model.ErrAbsent) {
		t.Errorf("error %v", err)
	}
	if d.opens.Load() != 0 {
		t.Error("the library was opened without a driver")
	}
	d.plug(address, "GPU-1", 0) // the driver is loaded
	until(t, s, ready(1))
}

// TestNothingToRead: without a driver there is nothing about children, and the source looks for one once per Interval only.
func TestNothingToRead(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		opened := make(chan time.Time, 1)
		refuse := func(context.Context, start) (session, error) {
			opened <- time.Now()
			return nil, errors.New("no permission")
		}
		s := newSource(Options{Options: wire.Options{Root: dir, Sysfs: dir, Procfs: dir, Interval: 5 * time.Second}}, refuse, time.Minute)
		defer s.Close() //nolint:errcheck // returns nil
		begun := time.Now()
		if got, err := s.Read(t.Context()); !errors.Is(err, model.ErrAbsent) || got.Children != nil {
			t.Errorf("%+v %v", got, err)
		}
		if err := os.MkdirAll(filepath.Join(dir, "bus/pci/drivers/nvidia", address), 0o755); err != nil {
			t.Fatal(err)
		}
		if after := (<-opened).Sub(begun); after != 5*time.Second {
			t.Errorf("opened after %v", after)
		}
		synctest.Wait()
		if got, _ := s.Read(t.Context()); len(got.Children) != 1 {
			t.Errorf("%+v", got.Children)
		}
	})
}

func TestStuckDevice(t *testing.T) {
	d := newDriver(t)
	d.plug(address, "GPU-1", 0)
	stuck := d.plug("0000:c2:00.0", "GPU-2", 1)
	s := d.source()
	before := until(t, s, ready(2))
	begun := time.Now()
	heal := stuck.hang(t)
	stuck.caught(t) // a round hangs

	got, err := s.Read(t.Context())
	took := time.Since(begun)
	if err != nil || took > nvmltest.Long {
		t.Errorf("Read took %v: %v", took, err)
	}
	check := func(got model.Snapshot) {
		t.Helper()
		if len(got.GPUs) != 2 || !got.GPUs[0].Utilization.Known || state(got, "0") != model.StateOK {
			t.Errorf("the other GPU: %+v %+v", got.GPUs, got.DeviceStates)
		}
		g := got.GPUs[1]
		if !onlyIdentity(g) || !reflect.DeepEqual(identity(g), identity(before.GPUs[1])) ||
			!has(g.Problems, model.ProblemStuck) || state(got, "1") != model.StateStuck {
			t.Errorf("the stuck GPU: %+v %+v", g, got.DeviceStates)
		}
	}
	// On a very busy machine it may count as hung.
	if g := got.GPUs[1]; took < time.Second && (!g.Utilization.Known || state(got, "1") != model.StateOK) {
		t.Errorf("the GPU is only late and does not return its last values: %+v %+v", g, got.DeviceStates)
	}
	got = until(t, s, func(s model.Snapshot) bool { return state(s, "1") == model.StateStuck })
	check(got)
	goroutines := runtime.NumGoroutine()
	begun = time.Now()
	for range 20 {
		got, _ = s.Read(t.Context())
		check(got)
	}
	if took := time.Since(begun); took > 10*wire.ReadTimeout { // half of the time that waiting in each read would take
		t.Errorf("20 reads with a stuck GPU took %v", took)
	}
	// The last ones may be about to end.
	nvmltest.Eventually(t, "goroutines have ended", func() bool { return runtime.NumGoroutine() <= goroutines+2 })
	// The device list changes: the library must stay open during the call.
	d.plug("0000:c3:00.0", "GPU-3", 2)
	time.Sleep(5 * d.options.Interval)
	if d.closes.Load() != 0 {
		t.Error("the library was closed while a call was in it")
	}
	got, _ = s.Read(t.Context())
	check(got)
	heal()
	until(t, s, ready(3))
}

func TestCloseWithStuckDevice(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	g := d.plug(address, "GPU-1", 0)
	s := newSource(d.options, local(d.open), time.Millisecond)
	until(t, s, ready(1))
	heal := g.hang(t)
	g.caught(t)
	begun := time.Now()
	if err := s.Close(); err != nil || time.Since(begun) > nvmltest.Long {
		t.Errorf("Close took %v: %v", time.Since(begun), err)
	}
	if d.closes.Load() != 0 {
		t.Error("the library was closed while a call was in it")
	}
	heal()
}

// A panic in the goroutine that opens the library does not end the sensor.
func TestKeeperPanics(t *testing.T) {
	d := newDriver(t)
	d.plug(address, "GPU-1", 0)
	s := newSource(d.options, func(context.Context, start) (session, error) { panic("driver") }, time.Millisecond)
	nvmltest.Ended(t, s.done)
	if _, err := s.Read(t.Context()); err == nil {
		t.Error("a source without its keeper reads")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestCloseEndsEverything(t *testing.T) {
	d := newDriver(t)
	goroutines := runtime.NumGoroutine()
	for i := range 8 {
		d.plug(fmt.Sprintf("0000:c%d:00.0", i), fmt.Sprint("GPU-", i), i)
	}
	s := newSource(d.options, local(d.open), time.Millisecond)
	until(t, s, ready(8))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	nvmltest.Ended(t, s.done)
	if d.closes.Load() != 1 {
		t.Errorf("the library was closed %d times", d.closes.Load())
	}
	// The last one is about to end.
	nvmltest.Eventually(t, "goroutines have ended", func() bool { return runtime.NumGoroutine() <= goroutines })
	if _, err := s.Read(context.Background()); err == nil {
		t.Error("a closed source reads")
	}
}

func TestLostDevice(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	g := d.plug(address, "GPU-1", 0)
	d.plug("0000:c2:00.0", "GPU-2", 1)
	s := d.source()
	before := until(t, s, ready(2))
	g.ret.Store(int64(nvml.ERROR_GPU_IS_LOST))
	got := until(t, s, func(s model.Snapshot) bool { return has(s.GPUs[0].Problems, model.ProblemLost) })
	if !onlyIdentity(got.GPUs[0]) || !reflect.DeepEqual(identity(got.GPUs[0]), identity(before.GPUs[0])) {
		t.Errorf("the lost GPU: %+v", got.GPUs[0])
	}
	if state(got, "0") != model.StateFailed || state(got, "1") != model.StateOK || !got.GPUs[1].Utilization.Known {
		t.Errorf("states %+v", got.DeviceStates)
	}
	// The GPU keeps its name when the library is reopened.
	d.plug("0000:c3:00.0", "GPU-3", 2)
	got = until(t, s, func(s model.Snapshot) bool {
		return len(s.GPUs) == 3 && s.GPUs[2].Utilization.Known && has(s.GPUs[0].Problems, model.ProblemLost)
	})
	if got.GPUs[0].UUID != "GPU-1" {
		t.Errorf("after opening again: %+v", got.GPUs[0])
	}
	g.ret.Store(int64(nvml.SUCCESS)) // it was reset
	until(t, s, ready(3))
}

// TestLostFromTheStart checks that a GPU that was lost earlier is identified by the driver's
// proc file.
func TestLostFromTheStart(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	d.plug(address, "GPU-1", 0).ret.Store(int64(nvml.ERROR_GPU_IS_LOST))
	d.write(filepath.Join(d.options.Procfs, "driver/nvidia/gpus", address, "information"),
		"Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-1\nVideo BIOS: \t ??.??.??.??.??\nDevice Minor: \t 5\n")
	got := until(t, d.source(), func(s model.Snapshot) bool {
		return len(s.GPUs) == 1 && has(s.GPUs[0].Problems, model.ProblemLost)
	})
	want := model.GPU{
		Vendor: model.NVIDIA, ID: "0", UUID: "GPU-1", Name: "NVIDIA H100", PCIAddress: address, Nodes: []string{"/dev/nvidia5"},
	}
	if !reflect.DeepEqual(identity(got.GPUs[0]), want) {
		t.Errorf("got %+v, want %+v", got.GPUs[0], want)
	}
}

// TestHiddenDevice: a GPU that this container may not open has a state by its address, and no values.
func TestHiddenDevice(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	d.plug(address, "GPU-1", 0)
	d.mkdir("bus/pci/drivers/nvidia/0000:c2:00.0") // the kernel lists it, NVML hides it
	got := until(t, d.source(), ready(1))
	if state(got, "0") != model.StateOK || state(got, "0000:c2:00.0") != model.StateUnsupported || len(got.DeviceStates) != 2 {
		t.Errorf("states %+v", got.DeviceStates)
	}
}

func TestFailedValue(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	g := d.plug(address, "GPU-1", 0)
	g.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 1, nvml.ERROR_NO_PERMISSION }
	s := d.source()
	got := until(t, s, ready(1))
	if got.GPUs[0].Power.Known || state(got, "0") != model.StateOK {
		t.Errorf("%+v %+v", got.GPUs[0], got.DeviceStates)
	}
}

// TestDriverReload: the driver is unloaded and loaded, and the library cannot be opened for a
// while.
func TestDriverReload(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	g := d.plug(address, "GPU-1", 0)
	s := d.source()
	until(t, s, ready(1))
	d.refuse(errRefused)
	g.ret.Store(int64(nvml.ERROR_UNINITIALIZED))
	nvmltest.Eventually(t, "it is refused", func() bool {
		_, err := s.Read(t.Context())
		return errors.Is(err, errRefused)
	})
	if _, err := s.Read(t.Context()); !errors.Is(err, errRefused) {
		t.Fatalf("error %v", err)
	}
	if d.closes.Load() != 1 {
		t.Errorf("the library was closed %d times", d.closes.Load())
	}
	tries := d.opens.Load()
	time.Sleep(200 * time.Millisecond)             // pauses of 5, 10, 20, 40, 80 ms …
	if more := d.opens.Load() - tries; more > 20 { // of 40 without longer pauses
		t.Errorf("opened %d times in 200 ms", more)
	}
	g.ret.Store(int64(nvml.SUCCESS))
	d.refuse(nil)
	until(t, s, ready(1))
}

// TestReopeningBacksOff checks that a persistent error does not reopen the library all the
// time.
func TestReopeningBacksOff(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	g := d.plug(address, "GPU-1", 0)
	begun := time.Now()
	s := d.source()
	until(t, s, ready(1))
	g.ret.Store(int64(nvml.ERROR_LIB_RM_VERSION_MISMATCH))
	for end := time.Now().Add(300 * time.Millisecond); time.Now().Before(end); time.Sleep(time.Millisecond) {
		_, _ = s.Read(t.Context())
	}
	nvmltest.Eventually(t, "it is opened again and again", func() bool {
		_, _ = s.Read(t.Context())
		return d.opens.Load() >= 3
	})
	// The pauses are 5, 10, 20 … ms.
	n := d.opens.Load()
	if took := time.Since(begun); n > 12 || took < 5*time.Millisecond*(1<<(n-1)-1) {
		t.Errorf("opened %d times in %v", n, took)
	}
}

func TestHotPlug(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	s := d.source()
	<-s.ready
	absent := func() bool {
		got, err := s.Read(t.Context())
		return errors.Is(err, model.ErrAbsent) && got.GPUs == nil
	}
	if !absent() || d.opens.Load() != 0 {
		t.Error("the library is opened without a GPU")
	}
	d.plug(address, "GPU-1", 0)
	until(t, s, ready(1))
	d.plug("0000:01:00.0", "GPU-0", 1)
	got := until(t, s, ready(2))
	if got.GPUs[0].UUID != "GPU-0" { // in the order of PCI addresses
		t.Errorf("%+v", got.GPUs)
	}
	d.unplug(address)
	got = until(t, s, ready(1))
	if got.GPUs[0].UUID != "GPU-0" {
		t.Errorf("%+v", got.GPUs)
	}
	// The last one is unbound: the driver waits until the library is closed.
	opens := d.opens.Load()
	d.unplug("0000:01:00.0")
	nvmltest.Eventually(t, "there is no GPU", absent)
	if d.closes.Load() != opens {
		t.Errorf("opened %d times, closed %d times", opens, d.closes.Load())
	}
	time.Sleep(20 * d.options.Interval)
	if d.opens.Load() != opens {
		t.Error("the library is opened without a GPU")
	}
	d.plug(address, "GPU-1", 0)
	until(t, s, ready(1))
}

func TestMIG(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	g := d.plug(address, "GPU-1", 2)
	g.split("MIG-a", "MIG-b")
	capabilities := filepath.Join(d.options.Procfs, "driver/nvidia/capabilities/gpu2/mig/gi8")
	d.write(filepath.Join(capabilities, "access"), "DeviceFileMinor: 30\nDeviceFileMode: 256\n")
	d.write(filepath.Join(capabilities, "ci0/access"), "DeviceFileMinor: 31\nDeviceFileMode: 256\n")
	s := d.source()
	got := until(t, s, func(s model.Snapshot) bool { return len(s.GPUs) == 3 })
	want := model.GPU{
		Vendor: model.NVIDIA, ID: "2:1", UUID: "MIG-b", Parent: "GPU-1", Name: "NVIDIA Fake MIG 1g.10gb", Serial: "1234",
		VBIOS: "96.00", PCIAddress: address, PCIDevice: "0x2330", Profile: "1g.10gb", Instance: "8", ComputeInstance: "0",
		Nodes: []string{"/dev/nvidia-caps/nvidia-cap31"},
	}
	if !reflect.DeepEqual(identity(got.GPUs[2]), want) || got.GPUs[0].UUID != "GPU-1" || got.GPUs[0].Modes["mig"] != "enabled" {
		t.Errorf("got  %+v\nwant %+v", got.GPUs[2], want)
	}
	g.split("MIG-c", "MIG-d", "MIG-e") // reconfigured: the old instances are gone
	got = until(t, s, func(s model.Snapshot) bool { return len(s.GPUs) == 4 })
	for i, uuid := range []string{"GPU-1", "MIG-c", "MIG-d", "MIG-e"} {
		if got.GPUs[i].UUID != uuid {
			t.Errorf("GPU %d is %s, want %s", i, got.GPUs[i].UUID, uuid)
		}
	}
	g.mu.Lock()
	g.mig = nvml.DEVICE_MIG_DISABLE
	g.mu.Unlock()
	until(t, s, ready(1))
}

func TestStuckParts(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	g := d.plug(address, "GPU-1", 0)
	g.split("MIG-a")
	s := d.source()
	until(t, s, func(s model.Snapshot) bool { return len(s.GPUs) == 2 })
	defer g.hang(t)()
	got := until(t, s, func(s model.Snapshot) bool { return has(s.GPUs[0].Problems, model.ProblemStuck) })
	if len(got.GPUs) != 2 || !has(got.GPUs[1].Problems, model.ProblemStuck) || !onlyIdentity(got.GPUs[1]) {
		t.Errorf("%+v", got.GPUs)
	}
}

func TestSuspendedIsNotTouched(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	g := d.plug(address, "GPU-1", 0)
	d.power(address, "suspended")
	d.write(filepath.Join(d.options.Procfs, "driver/nvidia/gpus", address, "information"),
		"Model: NVIDIA H100\nGPU UUID: GPU-????????-????-????-????-????????????\n")
	s := d.source()
	got := until(t, s, func(s model.Snapshot) bool { return len(s.GPUs) == 1 })
	time.Sleep(3 * d.options.Interval)
	if g.calls.Load() != 0 {
		t.Errorf("%d calls woke it", g.calls.Load())
	}
	if !got.GPUs[0].Suspended || got.GPUs[0].UUID != address || got.GPUs[0].Name != "NVIDIA H100" || !onlyIdentity(got.GPUs[0]) {
		t.Errorf("%+v", got.GPUs[0])
	}
	d.power(address, "active")
	until(t, s, ready(1))
	d.power(address, "suspended")
	g.settle(t)
	calls := g.calls.Load()
	for range 10 {
		got, _ = s.Read(t.Context())
		time.Sleep(d.options.Interval)
	}
	if g.calls.Load() != calls {
		t.Errorf("%d calls woke it", g.calls.Load()-calls)
	}
	if !got.GPUs[0].Suspended || got.GPUs[0].UUID != "GPU-1" || !onlyIdentity(got.GPUs[0]) || state(got, "0") != model.StateOK {
		t.Errorf("%+v", got.GPUs[0])
	}
}

// TestByIndex: if the kernel lists no devices of the driver, NVML's count is used.
func TestByIndex(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	if err := os.RemoveAll(d.options.Sysfs + "/bus"); err != nil {
		t.Fatal(err)
	}
	d.write(filepath.Join(d.options.Procfs, "driver/nvidia/version"), "NVRM version: …\n")
	d.mu.Lock()
	d.devices["x"] = newGPU("GPU-1", 0)
	d.mu.Unlock()
	got := until(t, d.source(), ready(1))
	if got.GPUs[0].PCIAddress != address {
		t.Errorf("%+v", got.GPUs[0])
	}
}
