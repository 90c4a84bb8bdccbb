// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// FaultDriver is a driver whose errors in the kernel log are read.
type FaultDriver string

// The drivers, with the names of their modules. The NVSwitches of NVIDIA's driver log with a name of their own.
const (
	DriverNVIDIA   FaultDriver = "nvidia"
	DriverNVSwitch FaultDriver = "nvidia-nvswitch"
	DriverAMDGPU   FaultDriver = "amdgpu"
	DriverI915     FaultDriver = "i915"
	DriverXe       FaultDriver = "xe"
	DriverMLX5     FaultDriver = "mlx5_core"
	DriverIRDMA    FaultDriver = "irdma"
	DriverBNXT     FaultDriver = "bnxt_en"
	DriverBNXTRDMA FaultDriver = "bnxt_re"
	DriverEFA      FaultDriver = "efa"
)

// OfHCA reports whether the driver is that of an HCA, and not that of a GPU or of a switch between GPUs.
func (d FaultDriver) OfHCA() bool {
	switch d {
	case DriverMLX5, DriverIRDMA, DriverBNXT, DriverBNXTRDMA, DriverEFA:
		return true
	}
	return false
}

// FaultKey is the faults of one code on one device.
type FaultKey struct {
	Driver     FaultDriver
	PCIAddress string // with function: 0000:c1:00.0
	// GPUInstance is the GPU instance of a MIG slice if the driver reports it, as in GPU.Instance.
	GPUInstance string
	// Code is the number of an XID or SXid, or a word from a closed list: page_fault.
	Code string
	// Severity is what NVIDIA's driver says of an error of an NVLink or NVSwitch; empty for others.
	Severity FaultSeverity
}

// FaultSeverity is a word of a driver for how bad a fault is.
type FaultSeverity string

// The severities. After a fatal fault the device needs a reset; after another one it goes on.
const (
	FaultFatal    FaultSeverity = "fatal"
	FaultNonfatal FaultSeverity = "nonfatal"
)

// FaultTotal is the number of faults of a device since the sensor started. Last is the time of the last fault, which may
// be before the start, Recovered that of the last end of one. They are zero if there was none.
type FaultTotal struct {
	FaultKey
	Count     uint64
	Last      time.Time
	Recovered time.Time
}

// Fault is an error of a GPU or an HCA that its driver logged, or the end of one.
type Fault struct {
	ID uint64 // in the order of the log, from 1
	FaultKey
	// UUID is the UUID of the GPU, from the kernel log or from procfs; empty if unknown.
	UUID string
	Time time.Time
	// Repeated is the number of equal faults that followed, Last the time of the last one.
	Repeated uint64
	Last     time.Time
	// Earlier reports that it was logged before the sensor started: it is not counted.
	Earlier bool
	// Recovered reports that the device has recovered: it is not counted.
	Recovered bool
	PID       int    // of the process that caused it; 0 if the driver reports none
	Process   string // the name of that process
	// Cgroup is the cgroup of the process; 0 if unknown.
	Cgroup CgroupID
	Text   string // as logged, with escapes for bytes that are not printable ASCII
}
