// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"cmp"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/accelscope/accelscope/pkg/model"
	nvmlchild "github.com/accelscope/accelscope/pkg/source/nvidia/nvml"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
	"github.com/accelscope/accelscope/tests/fakes/nvml/nvmltest"
)

func healthy(g model.GPU) bool {
	return g.Problems != nil && !slices.ContainsFunc(g.Problems, func(c model.GPUCondition) bool { return c.Active })
}

// TestNoHandle checks that a GPU without a handle ("Unable to determine the device handle:
// Unknown Error") is not reported as healthy.
func TestNoHandle(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	d.plug(address, "GPU-1", 0).ret.Store(int64(nvml.ERROR_UNKNOWN))
	got := until(t, d.source(), func(s model.Snapshot) bool { return state(s, address) == model.StateFailed })
	if len(got.GPUs) != 1 || healthy(got.GPUs[0]) {
		t.Errorf("%+v", got.GPUs)
	}
}

// TestNothingAnswers checks the same for a GPU that answered before: its firmware died.
func TestNothingAnswers(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	g := d.plug(address, "GPU-1", 0)
	g.GetCurrPcieLinkWidthFunc = answer(g, 16)
	s := d.source()
	until(t, s, ready(1))
	g.ret.Store(int64(nvml.ERROR_UNKNOWN))
	got := until(t, s, func(s model.Snapshot) bool { return state(s, "0") == model.StateFailed })
	if len(got.GPUs) != 1 || healthy(got.GPUs[0]) {
		t.Errorf("%+v", got.GPUs)
	}
}

// TestSlowToStart: without persistence mode the driver initializes one GPU after the other at
// their first use, which takes seconds each.
func TestSlowToStart(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	heal := d.plug(address, "GPU-1", 0).hang(t)
	begun := time.Now()
	s := d.source()
	for end := time.Now().Add(4*wire.ReadTimeout + 500*time.Millisecond); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		got, _ := s.Read(t.Context())
		if len(got.GPUs) > 0 && has(got.GPUs[0].Problems, model.ProblemStuck) && time.Since(begun) < 3*time.Second {
			t.Fatalf("a GPU during initialization is reported as stuck: %+v", got.GPUs[0])
		}
	}
	heal()
	until(t, s, ready(1))
}

// TestIdleLinkIsHealthy: an idle GPU may reduce its link width, see pcie.link.width.current in
// nvidia-smi.
func TestIdleLinkIsHealthy(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	g := d.plug(address, "GPU-1", 0)
	g.GetUtilizationRatesFunc = answer(g, nvml.Utilization{})
	g.GetPerformanceStateFunc = answer(g, nvml.PSTATE_8)
	g.GetCurrPcieLinkGenerationFunc = answer(g, 1)
	got := until(t, d.source(), ready(1))
	if !healthy(got.GPUs[0]) {
		t.Errorf("%+v", got.GPUs[0].Problems)
	}
}

// TestLostReportsXIDs checks that a lost GPU keeps its XIDs: they may be the cause.
func TestLostReportsXIDs(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	g := d.plug(address, "GPU-1", 0)
	s := d.source()
	until(t, s, ready(1))
	s.xids.Listen("GPU-1")
	s.xids.Add("GPU-1", 79, time.Now())
	g.ret.Store(int64(nvml.ERROR_GPU_IS_LOST))
	got := until(t, s, func(s model.Snapshot) bool { return has(s.GPUs[0].Problems, model.ProblemLost) })
	if x := got.GPUs[0].XIDs; len(x) != 1 || x[0].Code != 79 {
		t.Errorf("XIDs %+v", x)
	}
}

// TestMIGDeviceRecreated: the UUID of a MIG device depends on the numbers of its instances: a device
// with another profile may get the same UUID within one interval.
func TestMIGDeviceRecreated(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	g := d.plug(address, "GPU-1", 0)
	g.split("MIG-a")
	s := d.source()
	until(t, s, func(s model.Snapshot) bool { return len(s.GPUs) == 2 })
	g.mu.Lock()
	old := g.parts[0]
	g.parts[0] = nvmltest.Missing(&mock.Device{
		GetUUIDFunc: old.GetUUIDFunc, GetGpuInstanceIdFunc: old.GetGpuInstanceIdFunc, GetComputeInstanceIdFunc: old.GetComputeInstanceIdFunc,
		GetNameFunc: func() (string, nvml.Return) { return "NVIDIA Fake MIG 1g.10gb+me", nvml.SUCCESS },
	})
	g.mu.Unlock()
	until(t, s, func(s model.Snapshot) bool { return len(s.GPUs) == 2 && s.GPUs[1].Profile == "1g.10gb+me" })
}

// TestNodesOfComputeInstances: the node of a GPU instance belongs to all its compute
// instances; it does not assign the other ones.
func TestNodesOfComputeInstances(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	g := d.plug(address, "GPU-1", 2)
	g.split("MIG-a", "MIG-b")
	g.mu.Lock()
	g.parts[1].GetGpuInstanceIdFunc = g.parts[0].GetGpuInstanceIdFunc // 7
	g.parts[1].GetComputeInstanceIdFunc = func() (int, nvml.Return) { return 1, nvml.SUCCESS }
	g.mu.Unlock()
	gi := filepath.Join(d.options.Procfs, "driver/nvidia/capabilities/gpu2/mig/gi7")
	d.write(filepath.Join(gi, "access"), "DeviceFileMinor: 30\n")
	d.write(filepath.Join(gi, "ci0/access"), "DeviceFileMinor: 31\n")
	d.write(filepath.Join(gi, "ci1/access"), "DeviceFileMinor: 32\n")
	got := until(t, d.source(), func(s model.Snapshot) bool { return len(s.GPUs) == 3 })
	for _, node := range got.GPUs[1].Nodes {
		if slices.Contains(got.GPUs[2].Nodes, node) {
			t.Errorf("%s is of both %v and %v", node, got.GPUs[1].Nodes, got.GPUs[2].Nodes)
		}
	}
}

// TestNothingStaleAfterSleep checks that values from before a suspension are not reported
// afterwards.
func TestNothingStaleAfterSleep(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	g := d.plug(address, "GPU-1", 0)
	s := d.source()
	until(t, s, ready(1))
	d.power(address, "suspended")
	until(t, s, func(s model.Snapshot) bool { return s.GPUs[0].Suspended })
	heal := g.hang(t) // it is slow to wake up
	d.power(address, "active")
	time.Sleep(3 * d.options.Interval)
	got, _ := s.Read(t.Context())
	if got.GPUs[0].Utilization.Known || got.GPUs[0].Power.Known {
		t.Errorf("values from before the suspension: %+v", got.GPUs[0])
	}
	heal()
	until(t, s, ready(1))
}

// TestHungEventsCostEventsOnly checks that a hung wait for events does not end the workers.
func TestHungEventsCostEventsOnly(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	block, waits := make(chan struct{}), make(chan struct{})
	waiting := sync.OnceFunc(func() { close(waits) })
	release := sync.OnceFunc(func() { close(block) })
	t.Cleanup(release)
	g := d.plug(address, "GPU-1", 0)
	g.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.SUCCESS }
	open := func(o wire.Options) (*nvmlchild.Library, error) {
		l, err := d.open(o)
		if err == nil {
			m := l.Interface.(*mock.Interface)
			m.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return &mock.EventSet{}, nvml.SUCCESS }
			m.EventSetFreeFunc = func(nvml.EventSet) nvml.Return { return nvml.SUCCESS }
			m.EventSetWaitFunc = func(nvml.EventSet, uint32) (nvml.EventData, nvml.Return) {
				waiting()
				<-block
				return nvml.EventData{}, nvml.ERROR_TIMEOUT
			}
		}
		return l, err
	}
	s := newSource(d.options, local(open), 5*time.Millisecond)
	t.Cleanup(func() { _ = s.Close() })
	until(t, s, ready(1))
	nvmltest.Ended(t, waits) // a wait for events is in progress
	d.mkdir("bus/pci/drivers/nvidia/0000:c2:00.0")
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if got, err := s.Read(t.Context()); err != nil || len(got.GPUs) != 1 || !got.GPUs[0].Utilization.Known {
			t.Fatalf("%v %+v %+v", err, got.GPUs, got.DeviceStates)
		}
	}
	if d.closes.Load() != 0 {
		t.Error("the library was closed while a call was in it")
	}
	release()
	until(t, s, func(model.Snapshot) bool { return d.opens.Load() > 1 })
}

// TestListErrorStays checks that an error of the process list is reported while the next round
// runs.
func TestListErrorStays(t *testing.T) {
	t.Parallel()
	d := newDriver(t)
	g := d.plug(address, "GPU-1", 0)
	g.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_UNKNOWN }
	mode := g.GetComputeModeFunc
	g.GetComputeModeFunc = func() (nvml.ComputeMode, nvml.Return) { time.Sleep(3 * time.Millisecond); return mode() }
	s := d.source()
	until(t, s, func(s model.Snapshot) bool { return state(s, "0") == model.StateFailed })
	for range 200 {
		got, _ := s.Read(t.Context())
		if state(got, "0") != model.StateFailed {
			t.Fatalf("%+v", got.DeviceStates)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestEveryErrorOfADevice: a GPU that answers no call has a critical problem, whatever the error is, and again none when it answers.
// One value that fails is a note: the GPU keeps its health.
func TestEveryErrorOfADevice(t *testing.T) {
	t.Parallel()
	for _, ret := range []nvml.Return{
		nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NOT_FOUND, nvml.ERROR_TIMEOUT, nvml.ERROR_IRQ_ISSUE,
		nvml.ERROR_CORRUPTED_INFOROM, nvml.ERROR_RESET_REQUIRED, nvml.ERROR_OPERATING_SYSTEM, nvml.ERROR_MEMORY, nvml.ERROR_NO_DATA,
		nvml.ERROR_VGPU_ECC_NOT_SUPPORTED, nvml.ERROR_INSUFFICIENT_RESOURCES, nvml.ERROR_INVALID_STATE, nvml.ERROR_UNKNOWN,
	} {
		everyError(t, ret)
	}
}

func everyError(t *testing.T, ret nvml.Return) {
	t.Run(ret.Error(), func(t *testing.T) {
		t.Parallel()
		d := newDriver(t)
		g := d.plug(address, "GPU-1", 0)
		g.GetCurrPcieLinkWidthFunc = answer(g, 16)
		var fan atomic.Int64
		g.GetFanSpeedFunc = func() (uint32, nvml.Return) { return 0, cmp.Or(g.enter(), nvml.Return(fan.Load())) }
		s := d.source()
		until(t, s, ready(1))
		g.ret.Store(int64(ret))
		got := until(t, s, func(s model.Snapshot) bool { return state(s, "0") == model.StateFailed })
		if len(got.GPUs) != 1 || !has(got.GPUs[0].Problems, model.ProblemUnreadable) || !onlyIdentity(got.GPUs[0]) {
			t.Errorf("%+v", got.GPUs)
		}
		g.ret.Store(int64(nvml.SUCCESS))
		until(t, s, func(s model.Snapshot) bool { return ready(1)(s) && !has(s.GPUs[0].Problems, model.ProblemUnreadable) })
		fan.Store(int64(ret))
		note := !slices.Contains([]nvml.Return{nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_NOT_FOUND}, ret)
		got = until(t, s, func(s model.Snapshot) bool { return !s.GPUs[0].FanSpeed.Known })
		if of := got.DeviceStates[0]; of.State != model.StateOK || (of.Reason != "") != note {
			t.Errorf("the fan: %+v", of)
		}
		if ret != nvml.ERROR_RESET_REQUIRED && ret != nvml.ERROR_CORRUPTED_INFOROM && !healthy(got.GPUs[0]) {
			t.Errorf("the fan: %+v", got.GPUs[0].Problems)
		}
	})
}

// TestNoHandleAtAll: the same errors from the first call on.
func TestNoHandleAtAll(t *testing.T) {
	t.Parallel()
	for _, ret := range []nvml.Return{nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_TIMEOUT, nvml.ERROR_MEMORY, nvml.ERROR_INSUFFICIENT_RESOURCES} {
		d := newDriver(t)
		d.plug(address, "GPU-1", 0).ret.Store(int64(ret))
		got := until(t, d.source(), func(s model.Snapshot) bool { return state(s, address) == model.StateFailed })
		if len(got.GPUs) != 1 || !has(got.GPUs[0].Problems, model.ProblemUnreadable) {
			t.Errorf("%v: %+v", ret, got.GPUs)
		}
	}
}
