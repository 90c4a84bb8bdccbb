// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"context"
	"errors"
	"os"
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

// driver is a fake: go-nvml's mocks, and a tree of sysfs and procfs files. A function that a
// test did not set up is missing.
type driver struct {
	t       *testing.T
	options Options
	opens   atomic.Int64
	closes  atomic.Int64

	mu      sync.Mutex
	fails   error // error of opening
	devices map[string]*gpu
}

// gpu is one GPU of the fake driver.
type gpu struct {
	mock.Device
	uuid  string
	index int

	fill   sync.Once
	calls  atomic.Int64
	inside atomic.Int64 // calls that have not returned
	ret    atomic.Int64 // return code of all calls
	mu     sync.Mutex
	block  chan struct{} // calls block until it is closed
	parts  []*mock.Device
	mig    int
}

const address = "0000:c1:00.0"

// newDriver returns a driver without a GPU.
func newDriver(t *testing.T) *driver {
	t.Helper()
	d := &driver{t: t, devices: make(map[string]*gpu), options: Options{Options: wire.Options{
		Root: t.TempDir(), Sysfs: t.TempDir(), Procfs: t.TempDir(), Interval: 10 * time.Millisecond,
	}}}
	d.mkdir("bus/pci/drivers/nvidia")
	return d
}

func (d *driver) mkdir(path string) {
	d.t.Helper()
	if err := os.MkdirAll(filepath.Join(d.options.Sysfs, path), 0o755); err != nil {
		d.t.Fatal(err)
	}
}

func (d *driver) write(path, content string) {
	d.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		d.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		d.t.Fatal(err)
	}
}

// power sets the runtime power management status of a GPU.
func (d *driver) power(address, status string) {
	d.t.Helper()
	d.write(filepath.Join(d.options.Sysfs, "bus/pci/devices", address, "power/runtime_status"), status+"\n")
}

// plug adds a GPU.
func (d *driver) plug(address, uuid string, index int) *gpu {
	d.t.Helper()
	g := newGPU(uuid, index)
	d.mu.Lock()
	d.devices[address] = g
	d.mu.Unlock()
	d.mkdir("bus/pci/drivers/nvidia/" + address)
	return g
}

// unplug removes a GPU.
func (d *driver) unplug(address string) {
	d.t.Helper()
	d.mu.Lock()
	delete(d.devices, address)
	d.mu.Unlock()
	if err := os.Remove(filepath.Join(d.options.Sysfs, "bus/pci/drivers/nvidia", address)); err != nil {
		d.t.Fatal(err)
	}
}

func (d *driver) refuse(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fails = err
}

func (d *driver) source() *Source {
	d.t.Helper()
	s := newSource(d.options, local(d.open), 5*time.Millisecond)
	d.t.Cleanup(func() {
		if s.stop != nil {
			_ = s.Close()
		}
	})
	return s
}

// localSession is a session in this process.
type localSession struct{ *nvmlchild.Session }

func (s localSession) read(ctx context.Context) (model.Snapshot, error) { return s.Read(ctx) }
func (s localSession) tend()                                            { s.Tend() }
func (s localSession) known() map[string]wire.KnownDevice               { return s.Known() }
func (s localSession) open() []string                                   { return nil }
func (s localSession) split() []string                                  { return s.Split() }

// end waits for calls that hang. The real session kills its process instead.
func (s localSession) end() {
	for !s.End() {
		time.Sleep(time.Millisecond)
	}
}

// local returns a function that starts a session in this process.
func local(open func(wire.Options) (*nvmlchild.Library, error)) func(context.Context, start) (session, error) {
	return func(_ context.Context, st start) (session, error) {
		s, err := nvmlchild.Open(nvmlchild.Start{Start: st.Start, Counts: st.xids, Notify: st.notify, Logger: st.logger}, open)
		if err != nil {
			return nil, err
		}
		return localSession{s}, nil
	}
}

func (d *driver) open(wire.Options) (*nvmlchild.Library, error) {
	d.opens.Add(1)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fails != nil {
		return nil, d.fails
	}
	text := func(v string) func() (string, nvml.Return) {
		return func() (string, nvml.Return) { return v, nvml.SUCCESS }
	}
	return &nvmlchild.Library{
		Interface: nvmltest.Missing(&mock.Interface{
			SystemGetDriverVersionFunc: text("550.54.15"),
			SystemGetNVMLVersionFunc:   text("12.550.54.15"),
			DeviceGetHandleByPciBusIdFunc: func(address string) (nvml.Device, nvml.Return) {
				d.mu.Lock()
				g := d.devices[address]
				d.mu.Unlock()
				if g == nil {
					return nil, nvml.ERROR_NOT_FOUND
				}
				return g.filled(), g.enter()
			},
			DeviceGetCountFunc: func() (int, nvml.Return) {
				d.mu.Lock()
				defer d.mu.Unlock()
				return len(d.devices), nvml.SUCCESS
			},
			DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
				d.mu.Lock()
				defer d.mu.Unlock()
				for _, g := range d.devices {
					if g.index == i {
						return g.filled(), g.enter()
					}
				}
				return nil, nvml.ERROR_INVALID_ARGUMENT
			},
		}),
		Has: func(string) bool { return false },
		Close: func() error {
			d.closes.Add(1)
			return nil
		},
	}, nil
}

// filled returns g after the test has set up its functions.
func (g *gpu) filled() *gpu {
	g.fill.Do(func() { nvmltest.Missing(&g.Device) })
	return g
}

// enter is called first by every call.
func (g *gpu) enter() nvml.Return {
	g.calls.Add(1)
	g.mu.Lock()
	block := g.block
	g.mu.Unlock()
	if block != nil {
		g.inside.Add(1)
		<-block
		g.inside.Add(-1)
	}
	return nvml.Return(g.ret.Load())
}

// hang makes calls block until heal is called.
func (g *gpu) hang(t *testing.T) (heal func()) {
	t.Helper()
	block := make(chan struct{})
	g.mu.Lock()
	g.block = block
	g.mu.Unlock()
	heal = sync.OnceFunc(func() {
		g.mu.Lock()
		g.block = nil
		g.mu.Unlock()
		close(block)
	})
	t.Cleanup(heal)
	return heal
}

// caught waits until a call blocks.
func (g *gpu) caught(t *testing.T) {
	t.Helper()
	nvmltest.Eventually(t, "no call hangs", func() bool { return g.inside.Load() > 0 })
}

// settle waits for steps in progress.
func (g *gpu) settle(t *testing.T) {
	t.Helper()
	nvmltest.Eventually(t, "calls end", func() bool {
		before := g.calls.Load()
		time.Sleep(100 * time.Millisecond)
		return g.calls.Load() == before && g.inside.Load() == 0
	})
}

func answer[T any](g *gpu, v T) func() (T, nvml.Return) {
	return func() (T, nvml.Return) {
		if ret := g.enter(); ret != nvml.SUCCESS {
			var none T
			return none, ret
		}
		return v, nvml.SUCCESS
	}
}

// newGPU returns a GPU with the functions that all libraries have.
func newGPU(uuid string, index int) *gpu {
	g := &gpu{uuid: uuid, index: index}
	g.GetUUIDFunc = answer(g, uuid)
	g.GetIndexFunc = answer(g, index)
	g.GetMinorNumberFunc = answer(g, index)
	g.GetNameFunc = answer(g, "NVIDIA Fake")
	g.GetSerialFunc = answer(g, "1234")
	g.GetVbiosVersionFunc = answer(g, "96.00")
	g.GetPciInfoFunc = answer(g, nvml.PciInfo{
		PciDeviceId: 0x233010de, Domain: 0, Bus: 0xc1, BusId: [32]int8{'0'},
	})
	g.GetUtilizationRatesFunc = answer(g, nvml.Utilization{Gpu: 42})
	g.GetPowerUsageFunc = answer(g, uint32(123456))
	g.GetPerformanceStateFunc = answer(g, nvml.PSTATE_0)
	g.GetFanSpeedFunc = answer(g, uint32(0))
	g.GetComputeModeFunc = answer(g, nvml.COMPUTEMODE_EXCLUSIVE_PROCESS)
	g.GetPersistenceModeFunc = answer(g, nvml.FEATURE_ENABLED)
	g.GetCurrPcieLinkGenerationFunc = answer(g, 4)
	g.GetMaxPcieLinkGenerationFunc = answer(g, 5)
	g.GetCurrPcieLinkWidthFunc = answer(g, 8)
	g.GetMaxPcieLinkWidthFunc = answer(g, 16)
	g.GetEccModeFunc = func() (nvml.EnableState, nvml.EnableState, nvml.Return) {
		return nvml.FEATURE_ENABLED, nvml.FEATURE_ENABLED, g.enter()
	}
	g.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 33, g.enter() }
	clock := func(c nvml.ClockType) (uint32, nvml.Return) {
		if c == nvml.CLOCK_VIDEO {
			return 0, nvml.ERROR_NOT_SUPPORTED
		}
		return 1980, g.enter()
	}
	g.GetClockInfoFunc, g.GetMaxClockInfoFunc = clock, clock
	return g
}

// split sets the MIG instances of g, by UUID.
func (g *gpu) split(uuids ...string) {
	var parts []*mock.Device
	for i, uuid := range uuids {
		parts = append(parts, nvmltest.Missing(&mock.Device{
			GetUUIDFunc:              func() (string, nvml.Return) { return uuid, nvml.SUCCESS },
			GetNameFunc:              func() (string, nvml.Return) { return "NVIDIA Fake MIG 1g.10gb", nvml.SUCCESS },
			GetGpuInstanceIdFunc:     func() (int, nvml.Return) { return 7 + i, nvml.SUCCESS },
			GetComputeInstanceIdFunc: func() (int, nvml.Return) { return 0, nvml.SUCCESS },
		}))
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.parts, g.mig = parts, nvml.DEVICE_MIG_ENABLE
	if g.GetMigModeFunc != nil {
		return // a worker reads it
	}
	g.GetMigModeFunc = func() (int, int, nvml.Return) {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.mig, g.mig, nvml.SUCCESS
	}
	g.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	g.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if i >= len(g.parts) || g.parts[i] == nil {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return g.parts[i], nvml.SUCCESS
	}
}

var errRefused = errors.New("refused")

// has reports whether a condition is present and active.
func has(conditions []model.GPUCondition, name string) bool {
	return slices.Contains(conditions, model.GPUCondition{Name: name, Active: true})
}

// state returns the state of a device.
func state(s model.Snapshot, device string) model.State {
	for _, d := range s.DeviceStates {
		if d.Device == device {
			return d.State
		}
	}
	return ""
}
