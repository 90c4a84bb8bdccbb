// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
)

// gpuNode returns NVIDIA GPUs (shared and with errors; with two MIG instances; suspended; fell off the bus) and an AMD
// GPU. A container is allocated a MIG instance and does not use it.
func gpuNode() []engine.Registration {
	n := names(nodeNames())
	n.facts = model.Snapshot{
		Containers: []model.Container{
			{
				ID: "0a1b", Runtime: "containerd", Name: "main", Namespace: "ml", Pod: "train-0", PodUID: "11111111-2222",
				Devices: []string{"/dev/nvidiactl", "/dev/nvidia0"},
			},
			{ID: "0c2d", Runtime: "containerd", Name: "serve", Namespace: "ml", Pod: "infer-0", PodUID: "33333333-4444"},
			{ID: "0e3f", Runtime: "docker", Name: "root", AllDevices: true, Devices: []string{"/dev/nvidia0", "/dev/nvidia1"}},
		},
		Allocations: []model.Allocation{
			{Namespace: "ml", Pod: "infer-0", Container: "serve", Resource: "nvidia.com/mig-1g.10gb", ID: "MIG-2"},
			{Namespace: "ml", Pod: "train-0", Container: "main", Resource: "amd.com/gpu", ID: "0000:C1:00.0"},
		},
	}
	return []engine.Registration{
		{Source: &fake{name: "nvidia", facts: nvidiaFacts()}},
		{Source: &fake{name: "amdgpu", facts: amdFacts()}},
		{Source: &fake{name: "pci", facts: pciFacts()}},
		{Source: &fake{name: "access", facts: accessFacts()}},
		{Source: &fake{name: "kernellog", facts: faultFacts()}},
		{Source: &fake{name: "gpumemory", facts: allocationFacts()}},
		{Source: &fake{name: "collective", facts: collectiveFacts()}},
		{Source: &fake{name: "gpudriver", facts: driverFacts()}},
		{Source: n},
	}
}

func driverFacts() model.Snapshot {
	h := model.Histogram{Count: 3, Sum: 2_000_003_000}
	h.Buckets[2], h.Buckets[21] = 2, 1
	work, wait := model.DriverCallKey{Driver: "nvidia", Kind: model.DriverWork}, model.DriverCallKey{Driver: "amdgpu", Kind: model.DriverWait}
	return model.Snapshot{
		DriverCalls: []model.Series[model.DriverCallKey, model.Histogram]{
			{Cgroup: 101, Key: work, Value: h}, {Cgroup: 102, Key: wait, Value: h}, {Cgroup: 999, Key: work, Value: h},
		},
		DriverUses: []model.DriverUse{
			{Cgroup: 101, Driver: "nvidia", Oldest: 90 * time.Second, Stuck: 2}, {Cgroup: 102, Driver: "amdgpu"}, {Cgroup: 999, Driver: "nvidia"},
		},
		DriverTasks: []model.DriverTask{},
	}
}

// faultFacts are faults of a process on a GPU, of a MIG slice, of an NVSwitch, and of an HCA without a name.
func faultFacts() model.Snapshot {
	key := func(driver model.FaultDriver, address, code string) model.FaultKey {
		return model.FaultKey{Driver: driver, PCIAddress: address, Code: code}
	}
	memory, slice := key(model.DriverNVIDIA, "0000:18:00.0", "31"), key(model.DriverNVIDIA, "0000:2a:00.0", "13")
	slice.GPUInstance = "5"
	fatal := key(model.DriverNVSwitch, "0000:c5:00.0", "24007")
	fatal.Severity = model.FaultFatal
	at := time.UnixMilli(1700000001500)
	return model.Snapshot{
		Faults: []model.Series[model.FaultKey, model.Count]{
			{Cgroup: 101, Key: memory, Value: 3}, {Cgroup: 102, Key: memory, Value: 1}, {Cgroup: 102, Key: slice, Value: 2},
		},
		FaultTotals: []model.FaultTotal{
			{FaultKey: memory, Count: 5, Last: at, Recovered: at.Add(time.Minute)},
			{FaultKey: slice, Count: 2, Last: at},
			{FaultKey: key(model.DriverNVIDIA, "0000:18:00.0", "79"), Last: at.Add(-time.Hour)}, // before the start only
			{FaultKey: key(model.DriverNVSwitch, "0000:c5:00.0", "24007"), Count: 1, Last: at},
			{FaultKey: fatal, Count: 1, Last: at}, // same code, other severity
			{FaultKey: key(model.DriverMLX5, "0000:19:00.0", "health"), Count: 4, Last: at},
		},
		FaultHistory: []model.Fault{},
	}
}

func allocationFacts() model.Snapshot {
	alloc, malloc := model.AllocationKey{Vendor: model.NVIDIA, API: "cuMemAlloc"}, model.AllocationKey{Vendor: model.AMD, API: "hipMalloc"}
	return model.Snapshot{FailedAllocations: []model.Series[model.AllocationKey, model.Allocations]{
		{Cgroup: 101, Key: alloc, Value: model.Allocations{Count: 2, Bytes: 5 << 30}},
		{Cgroup: 102, Key: alloc, Value: model.Allocations{Count: 1, Bytes: 1 << 30}},
		{Cgroup: 103, Key: malloc},
		{Cgroup: 999, Key: malloc, Value: model.Allocations{Count: 1, Bytes: 4096}},
	}}
}

func nvidiaFacts() model.Snapshot {
	some := model.Some
	problems := func(name string) []model.GPUCondition {
		return []model.GPUCondition{
			{Name: model.ProblemLost, Active: name == model.ProblemLost},
			{Name: model.ProblemXID, Active: name == model.ProblemXID},
			{Name: model.ProblemRemapFailure},
		}
	}
	h100 := model.GPU{
		Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0", Name: "NVIDIA H100 80GB HBM3", Serial: "16524231", PCIAddress: "0000:18:00.0",
		PCIDevice: "0x2330", NUMANode: "0", VBIOS: "96.00.74.00.01", Nodes: []string{"/dev/nvidia0"},
		Modes:       map[string]string{"mig": "disabled", "compute": "default", "persistence": "enabled"},
		Utilization: some(0.75),
		Listed:      time.UnixMilli(1700000000250),
		Memory:      model.VideoMemory{Total: some(80 << 30), Used: some(30 << 30), Free: some(49 << 30), Reserved: some(1 << 30)},
		Engines: []model.Figure{
			{Name: "sm", Value: 0.75},
			{Name: "memory", Value: 0.5},
			{Name: "encoder"},
			{Name: "gr_active", Value: 0.625},
			{Name: "tensor_active", Value: 0.25},
			{Name: "dram_active", Value: 0.375},
		},
		Temperatures:      []model.Figure{{Name: "gpu", Value: 41}, {Name: "memory", Value: 52}},
		TemperatureLimits: []model.Figure{{Name: "slowdown", Value: 87}, {Name: "shutdown", Value: 92}},
		TemperatureMargin: some(46), TemperatureMarginLimits: []model.Figure{{Name: "shutdown", Value: -8}, {Name: "slowdown", Value: -2}},
		Power: some(312.5), PowerInstant: some(340.25), PowerLimit: some(700), Energy: some(123456.789), PerformanceState: some(0),
		Clocks:    []model.Figure{{Name: "graphics", Value: 1.98e9}, {Name: "sm", Value: 1.98e9}, {Name: "memory", Value: 2.619e9}},
		MaxClocks: []model.Figure{{Name: "sm", Value: 1.98e9}},
		Throttles: []model.GPUCondition{{Name: "idle"}, {Name: "power_cap", Active: true}},
		Throttled: []model.Figure{{Name: "power", Value: 1.5}, {Name: "thermal"}},
		PCIe: model.GPUPCIe{
			Generation: some(5), MaxGeneration: some(5), Width: some(16), MaxWidth: some(16), Replays: some(0),
			Receive: some(1e6), Transmit: some(2e6),
		},
		Links: []model.GPULink{
			{
				Kind: model.NVLink, Up: some(1), Receive: some(1000), Transmit: some(2000),
				Errors: []model.Counter{{Name: "replay"}, {Name: "crc_flit", Value: 3}},
			},
			{Kind: model.NVLink, Number: 1, Up: some(0)},
			{Kind: model.NVLink, Number: model.AllLinks, Errors: []model.Counter{{Name: "symbol", Value: 4}}},
		},
		Errors: []model.GPUErrors{
			{Type: "corrected", Scope: "volatile", Block: "dram", Count: 2},
			{Type: "corrected", Scope: "volatile", Block: "sram", Count: 3},
			{Type: "corrected", Scope: "aggregate", Block: "dram", Count: 12},
			{Type: "corrected", Scope: "aggregate", Block: "sram", Count: 13},
			{Type: "uncorrected", Scope: "volatile", Block: "dram"},
			{Type: "uncorrected", Scope: "volatile", Block: "sram"},
		},
		RemappedRows:   []model.Figure{{Name: "correctable", Value: 1}, {Name: "uncorrectable"}},
		RetiredPages:   []model.Figure{{Name: "uncorrectable"}},
		XIDs:           []model.XID{{Code: 13, Count: 2, Last: time.Unix(1800000000, 5e8)}, {Code: 79, Count: 1, Last: time.Unix(1700000000, 0)}},
		RecoveryAction: model.RecoveryDrainAndReset, Fabric: "completed", FabricCluster: "ab000000-0000-0000-0000-000000000001", FabricClique: 7, Reset: time.UnixMilli(1700000000750),
		Problems: problems(model.ProblemXID),
	}
	a100 := model.GPU{
		Vendor: model.NVIDIA, ID: "1", UUID: "GPU-1", Name: "NVIDIA A100-SXM4-80GB", PCIAddress: "0000:2a:00.0",
		Nodes: []string{"/dev/nvidia1"}, Modes: map[string]string{"mig": "enabled"},
		Memory:   model.VideoMemory{Total: some(80 << 30), Used: some(11 << 30), Free: some(69 << 30)},
		Power:    some(80),
		Problems: problems(""),
	}
	mig := func(id, uuid, instance, node string, used float64) model.GPU {
		return model.GPU{
			Vendor: model.NVIDIA, ID: id, UUID: uuid, Parent: "GPU-1", Name: "NVIDIA A100-SXM4-80GB MIG 1g.10gb", Profile: "1g.10gb",
			Instance: instance, PCIAddress: "0000:2a:00.0", Nodes: []string{node},
			Memory: model.VideoMemory{Total: some(10 << 30), Used: some(used), Free: some(10<<30 - used)},
		}
	}
	const mib = 1 << 20
	return model.Snapshot{
		GPUs: []model.GPU{
			h100, a100,
			mig("1:0", "MIG-1", "7", "/dev/nvidia-caps/nvidia-cap66", 1000*mib),
			mig("1:1", "MIG-2", "8", "/dev/nvidia-caps/nvidia-cap75", 15*mib),
			{Vendor: model.NVIDIA, ID: "2", UUID: "GPU-2", Name: "NVIDIA T4", PCIAddress: "0000:3b:00.0", Suspended: true},
			{Vendor: model.NVIDIA, ID: "3", UUID: "GPU-3", PCIAddress: "0000:5d:00.0", Problems: problems(model.ProblemLost)},
			{Vendor: model.NVIDIA, ID: "4", UUID: "GPU-4", PCIAddress: "0000:5e:00.0", Blocked: true},
		},
		GPUUses:    []model.GPUUse{{GPU: "GPU-0"}},
		GPUDrivers: []model.GPUDriver{{Vendor: model.NVIDIA, Version: "550.54.15", Library: "12.550.54.15", CUDA: "12.4"}},
		GPUProcesses: []model.GPUProcess{
			{GPU: "GPU-0", PID: 11, Cgroup: 101, Memory: some(20 << 30), Engines: []model.Figure{{Name: "sm", Value: 0.5}}},
			{GPU: "GPU-0", PID: 12, Cgroup: 102, Memory: some(4 << 30), Engines: []model.Figure{{Name: "sm", Value: 0.125}}, MPS: true},
			{GPU: "GPU-0", PID: 13, Cgroup: 103, Memory: some(2 << 30), Engines: []model.Figure{}, MPS: true},
			{GPU: "GPU-0", PID: 14, Cgroup: 999, Engines: []model.Figure{{Name: "memory", Value: 0.25}}}, // unattributed
			{GPU: "MIG-1", PID: 15, Cgroup: 101, Memory: some(990 * mib)},
			{GPU: "MIG-1", PID: 16, Memory: some(5 * mib)}, // with an unknown cgroup
		},
	}
}

func amdFacts() model.Snapshot {
	some := model.Some
	return model.Snapshot{
		GPUs: []model.GPU{{
			Vendor: model.AMD, ID: "0", UUID: "a1b2c3d4e5f60718", Name: "AMD Instinct MI300X", PCIAddress: "0000:c1:00.0",
			PCIDevice: "0x74a1", Nodes: []string{"/dev/dri/card1", "/dev/dri/renderD128"}, Profile: "SPX/NPS1",
			Utilization: some(0), Memory: model.VideoMemory{Total: some(192 << 30), Used: some(1 << 30)},
			GTT:     model.VideoMemory{Total: some(64 << 30), Used: some(0)},
			Engines: []model.Figure{{Name: "gfx"}}, FanSpeed: some(0.5),
			PCIe:     model.GPUPCIe{ReplayRollovers: some(1), Recoveries: some(9), NAKsSent: some(11), NAKsReceived: some(12)},
			Links:    []model.GPULink{{Kind: model.XGMI, Up: some(1), Receive: some(5), Transmit: some(6)}},
			Errors:   []model.GPUErrors{{Type: "deferred", Scope: "volatile", Block: "umc", Count: 1}},
			Problems: []model.GPUCondition{{Name: model.ProblemECC}},
		}},
		GPUDrivers:   []model.GPUDriver{{Vendor: model.AMD, Version: "6.8.5"}},
		GPUProcesses: []model.GPUProcess{},
	}
}

func accessFacts() model.Snapshot {
	return model.Snapshot{
		DeviceOpens: []model.Series[model.OpenKey, model.Opens]{
			{Cgroup: 101, Key: model.OpenKey{Device: "nvidia0", Class: model.ClassNVIDIA}, Value: model.Opens{Allowed: 3}},
			{Cgroup: 102, Key: model.OpenKey{Device: "nvidia0", Class: model.ClassNVIDIA}, Value: model.Opens{Allowed: 1}},
			{Cgroup: 103, Key: model.OpenKey{Device: "nvidia0", Class: model.ClassNVIDIA}, Value: model.Opens{Allowed: 1, Denied: 7}},
			{Cgroup: 999, Key: model.OpenKey{Device: "renderD128", Class: model.ClassDRI}, Value: model.Opens{Denied: 1}},
		},
		DeviceHandles: []model.DeviceHandles{
			{Cgroup: 101, Device: "nvidia0", Class: model.ClassNVIDIA, Count: 2},
			{Cgroup: 102, Device: "uverbs0", Class: model.ClassRDMA},
		},
	}
}
