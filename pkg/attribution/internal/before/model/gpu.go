// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// Vendor is who makes a GPU.
type Vendor string

// The vendors.
const (
	NVIDIA Vendor = "nvidia"
	AMD    Vendor = "amd"
)

// GPU is one GPU, or a part of one that is used as if it were one: a MIG instance,
// a partition of an AMD accelerator. What the driver does not tell is empty, nil or
// not known; of a GPU that cannot be read there is no more than its identity and
// its problems.
type GPU struct {
	Vendor Vendor
	// ID is the number that the vendor's tools give it: 0; of a MIG instance that of
	// its GPU and its own, 0:1.
	ID string
	// UUID is unique in the world and never empty: GPU-…, MIG-…; of AMD the unique id
	// of the ASIC, or the PCI address where it has none.
	UUID string
	// Parent is the UUID of the GPU that it is a part of. One that has parts is used
	// through them: it has no processes of its own.
	Parent string

	Name       string // market name
	Serial     string
	PCIAddress string // in lower case: 0000:c1:00.0
	PCIDevice  string // 0x74a1
	NUMANode   string
	VBIOS      string
	// Nodes are the paths of the device nodes that are this GPU's alone: /dev/nvidia0,
	// /dev/dri/card1, /dev/dri/renderD128, /dev/nvidia-caps/nvidia-cap21.
	Nodes []string
	// Profile is that of a part: 1g.10gb; the compute and memory partition modes of an
	// AMD accelerator: CPX/NPS4.
	Profile string
	// Instance is the number of the GPU instance that a MIG instance is (or is in), as
	// the driver has it: not its place among them, which is in ID.
	Instance string
	// Modes are what it is switched to, by the names of the vendor's tools (mig: enabled,
	// compute: exclusive_process, persistence, mps): few, and bounded by the driver.
	Modes map[string]string
	// Suspended says that runtime power management has put it to sleep. It was not
	// woken: nothing else is known of it now.
	Suspended bool
	// Unlisted says that its processes could not be listed, while those of others were:
	// that none of it is in GPUProcesses says nothing.
	Unlisted bool
	// Listed is when its processes, Memory and Engines were read.
	Listed time.Time

	// Utilization is the part of the time in which anything ran on it, from 0 to 1.
	Utilization Optional
	// Memory and Engines are of the moment at which its processes were listed, so that
	// the shares of these are shares of them. Engines are the parts of the time (0 to 1)
	// in which each of its engines worked: sm, memory, encoder, decoder, gfx, compute, …
	Memory  VideoMemory
	Engines []Figure
	GTT     VideoMemory // of the host, that an AMD GPU has mapped

	Temperatures      []Figure // in degrees Celsius, by sensor: gpu, memory, edge, junction
	TemperatureLimits []Figure // by what happens there: slowdown, shutdown
	Power, PowerLimit Optional // in watts
	Energy            Optional // in joules, cumulative
	FanSpeed          Optional // 0 to 1
	PerformanceState  Optional // 0 is the fastest
	Clocks, MaxClocks []Figure // in hertz: graphics, sm, memory, video, soc, fabric
	Throttles         []GPUCondition
	// Throttled is how long, cumulative and in seconds, it was slowed down for what.
	Throttled []Figure

	PCIe  GPUPCIe
	Links []GPULink

	Errors []GPUErrors
	// RemappedRows and RetiredPages are memory taken out of use, by cause: correctable,
	// uncorrectable.
	RemappedRows, RetiredPages []Figure
	XIDs                       []XID

	// Problems are all conditions that are looked for, present or not: a GPU is healthy
	// when none is. Nil when its health is not known.
	Problems []GPUCondition
}

// ActiveProblems are the names of the problems that the GPU has: none of a healthy one, nil when
// its health is not known.
func (g *GPU) ActiveProblems() []string {
	if g.Problems == nil {
		return nil
	}
	names := []string{}
	for _, p := range g.Problems {
		if p.Active {
			names = append(names, p.Name)
		}
	}
	return names
}

// The conditions of Problems. They have the same names for all
// vendors; each vendor tells those that it can.
const (
	ProblemLost           = "lost"                // fell off the bus
	ProblemStuck          = "stuck"               // a call into the driver has not returned
	ProblemXID            = "xid"                 // a critical XID since the driver was loaded
	ProblemECC            = "ecc_uncorrected"     // uncorrected errors since the driver was loaded
	ProblemRemapPending   = "row_remap_pending"   // rows are remapped at the next reset
	ProblemRemapFailure   = "row_remap_failure"   // no spare rows are left
	ProblemRetirePending  = "page_retire_pending" // pages are retired at the next reset
	ProblemThermal        = "thermal_slowdown"    // the hardware is slowed down by heat
	ProblemPowerBrake     = "power_brake"         // slowed down from outside: the power supply
	ProblemLinkDown       = "link_down"           // an NVLink or XGMI link that was up is not
	ProblemResetRequired  = "reset_required"      // the driver asks for a reset
	ProblemInfoROM        = "inforom_corrupted"
	ProblemPCIeDegraded   = "pcie_degraded" // fewer lanes than GPU and slot have
	ProblemMemoryBadPages = "bad_pages"     // more bad pages than the driver tolerates
)

// GPUCondition is something that is so or not.
type GPUCondition struct {
	Name   string
	Active bool
}

// VideoMemory is memory of a GPU, in bytes.
type VideoMemory struct {
	Total, Used, Free, Reserved Optional
}

// GPUPCIe is the link of a GPU to its slot.
type GPUPCIe struct {
	Generation, MaxGeneration Optional
	Width, MaxWidth           Optional // lanes
	Replays                   Optional // cumulative
	// Receive and Transmit are bytes per second in the last moments, as the GPU sees it.
	Receive, Transmit Optional
}

// LinkKind is the technology of a link between GPUs.
type LinkKind string

// The links.
const (
	NVLink LinkKind = "nvlink"
	XGMI   LinkKind = "xgmi"
)

// GPULink is one link of a GPU to another one, or to a switch.
type GPULink struct {
	Kind              LinkKind
	Number            int
	Up                Optional // 1 or 0
	Receive, Transmit Optional // bytes, cumulative
	Errors            []Counter
	Remote            string // PCI address of the other end
}

// GPUErrors counts errors of one kind in one part of a GPU.
type GPUErrors struct {
	Type  string // corrected, uncorrected, deferred
	Scope string // volatile: since the driver was loaded; aggregate: ever
	Block string // where: dram, sram, l2_cache, umc, gfx, sdma, …; all where it is a sum
	Count uint64
}

// XID is how often the NVIDIA driver reported one of its errors since the sensor
// looks, and when it did last.
type XID struct {
	Code  uint64
	Count uint64
	Last  time.Time
}

// GPUDriver is the driver of a vendor's GPUs.
type GPUDriver struct {
	Vendor  Vendor
	Version string
	Library string // version of NVML
	CUDA    string // most recent version that the driver supports
}

// GPUProcess is one process that uses a GPU.
type GPUProcess struct {
	GPU string // UUID of the GPU, or of the part, that it uses
	PID int
	// Cgroup is the one that it was in when it was listed; 0 when not known.
	Cgroup uint64
	// Memory is what it has allocated on the GPU, in bytes.
	Memory Optional
	// Engines are the parts of the time since the last listing in which it used each
	// engine of the GPU. Nil when not known, empty when it used none.
	Engines []Figure
	// MPS says that it shares the GPU through NVIDIA's multi-process service.
	MPS bool
}

// DRIDevice is one GPU as the kernel's Direct Rendering Manager shows it,
// whoever makes it.
type DRIDevice struct {
	Card       string // /dev/dri/card0
	CardID     int
	Render     string // /dev/dri/renderD128; empty without one
	PCIAddress string // of the function behind it; empty where it has none
	Driver     string // amdgpu, nvidia, virtio-pci
}

// DeviceClass says what a device node is for.
type DeviceClass string

// The classes of device nodes that are watched.
const (
	ClassRDMA   DeviceClass = "rdma"   // /dev/infiniband/*
	ClassNVIDIA DeviceClass = "nvidia" // /dev/nvidia*
	ClassAMDGPU DeviceClass = "amdgpu" // /dev/kfd
	ClassDRI    DeviceClass = "dri"    // /dev/dri/*
)

// DeviceOpens is how often one cgroup opened a device node, and how often its
// device cgroup did not let it.
type DeviceOpens struct {
	Cgroup          uint64
	Device          string // name of the node: uverbs0, nvidia0, nvidiactl, kfd, card0, renderD128
	Class           DeviceClass
	Allowed, Denied uint64
}

// DeviceHandles is how many open files of a device node the processes of one
// cgroup have.
type DeviceHandles struct {
	Cgroup uint64
	Device string
	Class  DeviceClass
	Count  uint64
}
