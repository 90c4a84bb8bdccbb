// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"debug/elf"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	nv "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"
)

// TestFake calls the fake through go-nvml, like the sensor: it must return the scenario's values and failures.
func TestFake(t *testing.T) {
	library, err := Build(t.Context(), t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	write := func() {
		t.Helper()
		if err := s.Write(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(15 * time.Millisecond) // the library checks every 5 ms
	}
	t.Setenv("NVML_FAKE_SCENARIO", s.file)
	t.Setenv("NVML_FAKE_CALLS", s.calls)
	is := func(name string, got, want any) {
		t.Helper()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}

	s.Fail(System, "nvmlInit", DriverNotLoaded)
	write()
	lib := nv.New(nv.WithLibraryPath(library))
	is("init without a driver", lib.Init(), nv.ERROR_DRIVER_NOT_LOADED)
	s.Heal(System, "nvmlInit")
	s.Node(100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111, 112)
	write()
	is("init", lib.Init(), nv.SUCCESS)
	n, ret := lib.DeviceGetCount()
	is("count", n, 8)
	is("count", ret, nv.SUCCESS)

	d, _ := lib.DeviceGetHandleByIndex(0)
	uuid, _ := d.GetUUID()
	is("uuid", uuid, UUID(0))
	processes, ret := d.GetComputeRunningProcesses()
	is("processes", ret, nv.SUCCESS)
	is("processes", processes, []nv.ProcessInfo{
		{Pid: 100, UsedGpuMemory: 200 * mib, GpuInstanceId: 0xffffffff, ComputeInstanceId: 0xffffffff},
		{Pid: 112, UsedGpuMemory: 212 * mib, GpuInstanceId: 0xffffffff, ComputeInstanceId: 0xffffffff},
	})
	memory, _ := d.GetMemoryInfo_v2()
	is("memory", memory.Used, uint64(476*mib))
	is("memory", memory.Total, memory.Used+memory.Free+memory.Reserved)
	utilization, _ := d.GetUtilizationRates()
	is("utilization", utilization, nv.Utilization{Gpu: 5 + 6, Memory: 2 + 3})
	for _, address := range []string{"0000:20:00.0", "00000000:20:00.0", "20:00.0"} {
		same, ret := lib.DeviceGetHandleByPciBusId(address)
		is(address, ret, nv.SUCCESS)
		is(address, same == d, true)
	}
	pci, _ := d.GetPciInfo()
	is("bus", pci.Bus, uint32(0x20))
	fields := []nv.FieldValue{{FieldId: nv.FI_DEV_POWER_INSTANT}, {FieldId: nv.FI_DEV_NVLINK_THROUGHPUT_DATA_RX, ScopeId: 3}, {FieldId: 9999}}
	is("fields", d.GetFieldValues(fields), nv.SUCCESS)
	is("power", [2]uint32{fields[0].ValueType, uint32(fields[0].Value[0]) | uint32(fields[0].Value[1])<<8 | uint32(fields[0].Value[2])<<16},
		[2]uint32{uint32(nv.VALUE_TYPE_UNSIGNED_INT), 355000})
	is("link", fields[1].Value[0], byte(3))
	margin, ret := d.GetMarginTemperature()
	is("margin", ret, nv.SUCCESS)
	is("margin", margin.MarginTemperature, int32(47))
	celsius, ret := d.GetTemperatureV().V1()
	is("temperature", ret, nv.SUCCESS)
	is("temperature", celsius.Temperature, int32(40))
	is("no such field", nv.Return(fields[2].NvmlReturn), nv.ERROR_NOT_SUPPORTED)

	// Samples are returned once.
	samples, ret := d.GetProcessUtilization(0)
	is("samples", ret, nv.SUCCESS)
	is("samples", len(samples) > 100, true)
	newest := slices.MaxFunc(samples, func(a, b nv.ProcessUtilizationSample) int { return int(int64(a.TimeStamp) - int64(b.TimeStamp)) })
	if _, ret = d.GetProcessUtilization(newest.TimeStamp + 1e6); ret != nv.ERROR_NOT_FOUND {
		t.Errorf("samples of the future: %v", ret)
	}

	// MIG: separate devices, and no samples.
	gpu, _ := lib.DeviceGetHandleByIndex(6)
	_, ret = gpu.GetProcessUtilization(0)
	is("samples with MIG", ret, nv.ERROR_NOT_SUPPORTED)
	mig, ret := gpu.GetMigDeviceHandleByIndex(1)
	is("MIG device", ret, nv.SUCCESS)
	processes, _ = mig.GetComputeRunningProcesses()
	is("processes of a MIG device", processes, []nv.ProcessInfo{{Pid: 107, UsedGpuMemory: 207 * mib, GpuInstanceId: 2}})
	_, ret = gpu.GetMigDeviceHandleByIndex(2)
	is("no such MIG device", ret, nv.ERROR_NOT_FOUND)
	s.SplitGPU(6, Profile3g)
	write()
	_, ret = mig.GetMemoryInfo()
	is("a MIG device that is gone", ret, nv.ERROR_INVALID_ARGUMENT)

	// Events: those after the registration.
	s.XID("0", 31)
	write()
	set, _ := lib.EventSetCreate()
	is("register", d.RegisterEvents(nv.EventTypeXidCriticalError, set), nv.SUCCESS)
	_, ret = set.Wait(20)
	is("no event", ret, nv.ERROR_TIMEOUT)
	s.XID("0", 79)
	write()
	event, ret := set.Wait(1000)
	is("event", ret, nv.SUCCESS)
	is("XID", event.EventData, uint64(79))
	is("device of the XID", event.Device == d, true)

	// A blocked call, a failing call, and a removed GPU.
	s.Block("0", "nvmlDeviceGetPowerUsage")
	s.Fail("0", "nvmlDeviceGetSerial", 999)
	write()
	_, ret = d.GetSerial()
	is("a call that fails", ret, nv.ERROR_UNKNOWN)
	done := make(chan nv.Return)
	go func() {
		_, ret := d.GetPowerUsage()
		done <- ret
	}()
	select {
	case <-done:
		t.Error("a call that blocks returned")
	case <-time.After(50 * time.Millisecond):
	}
	if _, ret := d.GetName(); ret != nv.SUCCESS {
		t.Errorf("during a blocked call: %v", ret)
	}
	s.Heal("0", "nvmlDeviceGetPowerUsage")
	write()
	is("a call that blocked", <-done, nv.SUCCESS)
	before, err := s.Calls()
	if err != nil {
		t.Fatal(err)
	}
	is("calls during a blocked call", before.Blocked(), uint64(1))
	s.Remove("0")
	write()
	_, ret = d.GetPowerUsage()
	is("a GPU that is gone", ret, nv.ERROR_GPU_IS_LOST)
	_, ret = set.Wait(1000)
	is("events of a GPU that is gone", ret, nv.ERROR_GPU_IS_LOST)
	after, err := s.Calls()
	if err != nil {
		t.Fatal(err)
	}
	is("calls", after.Since(before), Calls{"0 nvmlDeviceGetPowerUsage": 1, "- nvmlEventSetWait_v2": 1})
	is("shutdown", lib.Shutdown(), nv.SUCCESS)
	is("init again", lib.Init(), nv.SUCCESS)
	n, _ = lib.DeviceGetCount()
	is("count without a GPU", n, 7)
	d, _ = lib.DeviceGetHandleByIndex(0)
	uuid, _ = d.GetUUID()
	is("the first GPU now", uuid, UUID(1))
	is("shutdown", lib.Shutdown(), nv.SUCCESS)
}

// TestOldLibrary checks which functions the old library lacks, and that it has all original functions of NVML.
func TestOldLibrary(t *testing.T) {
	functions := func(old bool) []string {
		library, err := Build(t.Context(), t.TempDir(), old)
		if err != nil {
			t.Fatal(err)
		}
		file, err := elf.Open(library)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		symbols, err := file.DynamicSymbols()
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, s := range symbols {
			if s.Section != elf.SHN_UNDEF {
				names = append(names, s.Name)
			}
		}
		return names
	}
	now, then := functions(false), functions(true)
	for _, name := range []string{"nvmlInit_v2", "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetMigMode", "nvmlEventSetWait_v2"} {
		if !slices.Contains(then, name) {
			t.Errorf("the old library lacks %s", name)
		}
	}
	for _, name := range []string{
		"nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3", "nvmlGpmSampleGet", "nvmlDeviceGetTemperatureV",
		"nvmlDeviceGetMPSComputeRunningProcesses",
	} {
		if slices.Contains(then, name) || !slices.Contains(now, name) {
			t.Errorf("%s: want it in the new library, not in the old one", name)
		}
	}
}

// TestNodes checks which device nodes the library holds open, and until when.
func TestNodes(t *testing.T) {
	library, err := Build(t.Context(), t.TempDir(), false)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	s.AddH100(0)
	s.AddH100(1)
	if err := s.Write(); err != nil {
		t.Fatal(err)
	}
	dev := t.TempDir()
	for _, variable := range s.Holding(dev) {
		name, v, _ := strings.Cut(variable, "=")
		t.Setenv(name, v)
	}
	held := func(want ...string) {
		t.Helper()
		links, err := filepath.Glob("/proc/self/fd/*")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, link := range links {
			if file, err := os.Readlink(link); err == nil && strings.HasPrefix(file, dev) {
				got = append(got, filepath.Base(file))
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("open: %q, want %q", got, want)
		}
	}
	lib := nv.New(nv.WithLibraryPath(library))
	if ret := lib.Init(); ret != nv.ERROR_DRIVER_NOT_LOADED {
		t.Errorf("init without nodes: %v", ret)
	}
	for _, node := range []string{"nvidiactl", "nvidia0"} {
		if err := os.WriteFile(filepath.Join(dev, node), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if ret := lib.Init(); ret != nv.SUCCESS {
			t.Fatalf("init: %v", ret)
		}
	}
	held("nvidiactl")
	for range 2 {
		if _, ret := lib.DeviceGetHandleByIndex(0); ret != nv.SUCCESS {
			t.Errorf("handle: %v", ret)
		}
	}
	if _, ret := lib.DeviceGetHandleByIndex(1); ret != nv.ERROR_NO_PERMISSION {
		t.Errorf("handle without a node: %v", ret)
	}
	held("nvidia0", "nvidiactl")
	set, _ := lib.EventSetCreate()
	held("nvidia0", "nvidiactl", "nvidiactl")
	if ret := set.Free(); ret != nv.SUCCESS {
		t.Errorf("free: %v", ret)
	}
	if ret := lib.Shutdown(); ret != nv.SUCCESS {
		t.Errorf("shutdown: %v", ret)
	}
	held("nvidia0", "nvidiactl")
	if ret := lib.Shutdown(); ret != nv.SUCCESS {
		t.Errorf("last shutdown: %v", ret)
	}
	held()
}
