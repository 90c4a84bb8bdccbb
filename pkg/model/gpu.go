// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// GPU is a GPU, or a part of a GPU that is used like a GPU: a MIG instance, a partition of an AMD accelerator. Values
// that the driver does not report are empty, nil or unknown. An unreadable GPU has only its identity and its problems.
type GPU struct {
	Vendor Vendor
	// ID is the number in the vendor's tools: 0; for a MIG instance the numbers of GPU and instance: 0:1.
	ID string
	// UUID is globally unique and never empty: GPU-…, MIG-…; for AMD the ASIC's unique ID, or the PCI address if the ID
	// is missing.
	UUID string
	// Parent is the UUID of the GPU of this part. Processes use the parts of a GPU: a GPU with parts has no processes.
	Parent string

	Name       string // market name
	Serial     string
	PCIAddress string // in lower case: 0000:c1:00.0
	PCIDevice  string // 0x74a1
	NUMANode   string
	VBIOS      string
	// OffPCIe reports that the GPU is part of a CPU or connected to a CPU by C2C, although it is a PCI function. It has
	// no PCIe speed and width.
	OffPCIe bool
	// Nodes are the device nodes of this GPU only: /dev/nvidia0, /dev/dri/card1, /dev/dri/renderD128,
	// /dev/nvidia-caps/nvidia-cap21.
	Nodes []string
	// Profile is the profile of a part, 1g.10gb, or the compute and memory partition modes of an AMD accelerator,
	// CPX/NPS4.
	Profile string
	// Instance is the driver's number of the GPU instance. It differs from the index in ID.
	Instance string
	// ComputeInstance is the number of the compute instance in the GPU instance.
	ComputeInstance string
	// Modes are the GPU's settings, by the names of the vendor's tools (mig: enabled, compute: exclusive_process,
	// persistence, mps). The driver bounds their number.
	Modes map[string]string
	// Suspended reports that runtime power management suspended the GPU. The sensor did not wake it: other values are
	// unknown.
	Suspended bool
	// Blocked reports that calls for the GPU wait for another, stuck GPU. Other values are unknown.
	Blocked bool
	// Unlisted reports that the GPU's processes could not be listed: GPUProcesses lacks them.
	Unlisted bool
	// Listed is when processes, Memory and Engines were read.
	Listed time.Time

	// Utilization is the fraction of time with anything running on the GPU, 0 to 1.
	Utilization Optional
	// Memory and Engines were read with the process list, so that shares of processes are consistent. Engines are the
	// busy ratios (0 to 1): sm, memory, encoder, decoder, gfx, compute, …
	Memory  VideoMemory
	Engines []Figure
	GTT     VideoMemory // host memory that an AMD GPU has mapped
	// UsesGTT reports that processes allocate GPU memory in host memory, too (APU). Memory then includes GTT.
	UsesGTT bool

	Temperatures      []Figure // in degrees Celsius, by sensor: gpu, memory, edge, junction
	TemperatureLimits []Figure // by effect: slowdown, shutdown
	// TemperatureMargin is how much warmer the GPU may get, in degrees Celsius, before the nearest limit slows it down.
	// TemperatureMarginLimits are the margins of the limits, by effect.
	TemperatureMargin       Optional
	TemperatureMarginLimits []Figure
	// Power is the value of the vendor's tools: on newer NVIDIA chips a mean of one second. PowerInstant is not
	// averaged.
	Power, PowerInstant, PowerLimit Optional // in watts
	Energy                          Optional // in joules, cumulative
	EnergyRead                      time.Time
	FanSpeed                        Optional // 0 to 1
	PerformanceState                Optional // 0 is the fastest
	Clocks, MaxClocks               []Figure // in hertz: graphics, sm, memory, video, soc, fabric
	Throttles                       []GPUCondition
	// Throttled is the cumulative throttled time by reason, in seconds.
	Throttled []Figure

	PCIe  GPUPCIe
	Links []GPULink
	// LinkErrors are the driver's own sums over all links. LinkPayload is the data in both directions since the
	// previous round, in bytes per second.
	LinkErrors  []Counter
	LinkPayload Optional
	// Rates are bytes per second since the previous round, with protocol overhead, by the names of Rate….
	Rates []Figure

	Errors []GPUErrors
	// RemappedRows and RetiredPages count memory taken out of use, by cause: correctable, uncorrectable.
	RemappedRows, RetiredPages []Figure
	XIDs                       []XID
	// Reset is when the sensor noticed a GPU reset or driver reload; zero without a reset. Earlier reports of the
	// driver are over.
	Reset time.Time

	// RecoveryAction is what the driver asks for so that the GPU works again: one of RecoveryActions, empty if unknown.
	RecoveryAction string
	// Fabric is the GPU's registration with the manager of its NVSwitches: one of FabricStates, empty without
	// NVSwitches.
	Fabric string
	// FabricCluster is the UUID of the GPU's NVLink domain, in lower case; FabricClique is the number of the part in
	// which GPUs reach each other. FabricCluster is empty until the registration has completed, and without a UUID.
	FabricCluster string
	FabricClique  uint32
	// PowerChange is suspending or resuming while runtime power management suspends or wakes the GPU.
	PowerChange string

	// Dropped are the impossible values of this reading, which were left out.
	Dropped []DroppedValue

	// Problems are all checked conditions, active or not. A GPU without an active condition is healthy. Nil if the
	// health is unknown.
	Problems []GPUCondition
}

// ActiveProblems returns the names of active problems: empty for a healthy GPU, nil if the health is unknown.
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

// The conditions of Problems. Names are the same for all vendors; each vendor reports a subset.
const (
	ProblemLost           = "lost"                // fell off the bus
	ProblemStuck          = "stuck"               // a call into the driver has not returned
	ProblemUnreadable     = "unreadable"          // the driver reports errors in place of its values
	ProblemXID            = "xid"                 // a critical XID since the driver was loaded
	ProblemECC            = "ecc_uncorrected"     // uncorrected errors since the driver was loaded
	ProblemRemapPending   = "row_remap_pending"   // rows are remapped at the next reset
	ProblemRemapFailure   = "row_remap_failure"   // no spare rows are left
	ProblemRetirePending  = "page_retire_pending" // pages are retired at the next reset
	ProblemThermal        = "thermal_slowdown"    // the hardware is throttled by heat
	ProblemPowerBrake     = "power_brake"         // throttled by an external signal of the power supply
	ProblemLinkDown       = "link_down"           // by the inventory: an NVLink or XGMI link went down, or other GPUs have more links
	ProblemResetRequired  = "reset_required"      // the driver asks for a reset
	ProblemInfoROM        = "inforom_corrupted"
	ProblemPCIeDegraded   = "pcie_degraded"   // fewer lanes than GPU and slot have
	ProblemMemoryBadPages = "bad_pages"       // more bad pages than the driver tolerates
	ProblemRecovery       = "recovery_action" // the driver asks for an action: RecoveryAction
	ProblemSRAM           = "sram_threshold"  // uncorrected errors on the chip exceed the vendor's criterion for a replacement
	ProblemFabric         = "fabric"          // the registration in the NVLink fabric failed, or the fabric is degraded
	// The engine adds these for states that last longer than normal: see verdict.IntermediateStates.
	ProblemFabricNotReady = "fabric_not_ready" // not registered in the NVLink fabric: CUDA does not start
	ProblemPowerChange    = "power_change"     // being suspended or woken
)

// The values of RecoveryAction.
const (
	RecoveryNone          = "none"
	RecoveryReset         = "reset"
	RecoveryReboot        = "reboot"
	RecoveryDrainP2P      = "drain_p2p"
	RecoveryDrainAndReset = "drain_and_reset"
	RecoveryOther         = "other"
)

// FabricCompleted means that the GPU has joined the NVLink fabric.
const FabricCompleted = "completed"

// FabricInProgress means that the fabric manager registers the GPU, or will.
const FabricInProgress = "in_progress"

// RecoveryActions and FabricStates list the values of RecoveryAction and Fabric.
var (
	RecoveryActions = []string{
		RecoveryNone, RecoveryReset, RecoveryReboot, RecoveryDrainP2P, RecoveryDrainAndReset, RecoveryOther,
	}
	FabricStates = []string{"not_started", FabricInProgress, FabricCompleted}
)

// GPUCondition is a condition that is active or not.
type GPUCondition struct {
	Name   string
	Active bool
}

// VideoMemory is memory of a GPU, in bytes.
type VideoMemory struct {
	Total, Used, Free, Reserved Optional
}

// GPUPCIe is the PCIe link of a GPU.
type GPUPCIe struct {
	Generation, MaxGeneration Optional
	Width, MaxWidth           Optional // lanes
	Replays                   Optional // cumulative, like the following counters
	// ReplayRollovers are overflows of the replay number, after which the link is retrained. Recoveries are transitions
	// from the normal state to training.
	ReplayRollovers, Recoveries Optional
	NAKsSent, NAKsReceived      Optional // refused packets
	// Receive and Transmit are bytes per second, from the GPU's point of view.
	Receive, Transmit Optional
}

// The names of GPU.Rates. C2C connects the chips of a Grace superchip; its data rates exclude protocol overhead.
const (
	RateNVLinkTransmit  = "nvlink_transmit"
	RateNVLinkReceive   = "nvlink_receive"
	RateC2CTransmit     = "c2c_transmit"
	RateC2CReceive      = "c2c_receive"
	RateC2CTransmitData = "c2c_transmit_data"
	RateC2CReceiveData  = "c2c_receive_data"
)

// LinkKind is the technology of a link between GPUs.
type LinkKind string

// The kinds of links.
const (
	NVLink LinkKind = "nvlink"
	XGMI   LinkKind = "xgmi"
)

// AllLinks is the number of a GPULink with values that the driver reports only as sums over all links.
const AllLinks = -1

// GPULink is one link of a GPU to another GPU or to a switch.
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
	Block string // location: dram, sram, l2_cache, umc, gfx, sdma, …; all: the sum
	Count uint64
}

// XID counts an error code of the NVIDIA driver since the sensor's start, with the time of the last error.
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
	GPU string // UUID of the GPU or of the part
	PID int
	// Cgroup is the cgroup of the process when it was listed; 0 if unknown.
	Cgroup CgroupID
	// Memory is the process's memory on the GPU, in bytes; GTT is the part in host memory, for GPUs with UsesGTT.
	Memory, GTT Optional
	// Engines are the ratios of time in which the process used each engine since the last listing. Nil if unknown,
	// empty if the process used no engine.
	Engines []Figure
	// MPS reports that the process uses the GPU through NVIDIA's multi-process service.
	MPS bool
}

// DRIDevice is a GPU in the kernel's Direct Rendering Manager, of any vendor.
type DRIDevice struct {
	Card       string // /dev/dri/card0
	CardID     int
	Render     string // /dev/dri/renderD128; may be empty
	PCIAddress string // of its PCI function; empty if it has none
	Driver     string // amdgpu, nvidia, virtio-pci
}

// DeviceClass is the purpose of a device node.
type DeviceClass string

// The classes of watched device nodes that are not specific to a GPU vendor.
const (
	ClassRDMA DeviceClass = "rdma" // /dev/infiniband/*
	ClassDRI  DeviceClass = "dri"  // /dev/dri/*
)

// DeviceHandles is a cgroup's number of open files of a device node.
type DeviceHandles struct {
	Cgroup CgroupID
	Device string // name of the node: uverbs0, nvidia0, nvidiactl, kfd, card0, renderD128
	Class  DeviceClass
	Count  uint64
}
