// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// FaultDriver is a driver whose errors in the kernel log are read.
type FaultDriver string

// The drivers, by module name. NVIDIA's driver logs NVSwitches under their own name.
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

// OfHCA reports whether the driver drives HCAs, not GPUs or NVSwitches.
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
	// GPUInstance is the MIG slice's GPU instance, if the driver reports it, as in GPU.Instance.
	GPUInstance string
	// Code is the number of an XID or SXid, or a word from a closed list: page_fault.
	Code string
	// Severity is the severity that NVIDIA's driver reports for an error of an NVLink or NVSwitch; otherwise empty.
	Severity FaultSeverity
}

// FaultSeverity is a driver's word for the severity of a fault.
type FaultSeverity string

// The severities. After a fatal fault the device needs a reset; after a nonfatal fault it continues.
const (
	FaultFatal    FaultSeverity = "fatal"
	FaultNonfatal FaultSeverity = "nonfatal"
)

// FaultTotal counts the faults of a device since the sensor's start. Last is the time of the last fault, which may be
// before the start, and Recovered the time of the last recovery; zero without a fault or recovery.
type FaultTotal struct {
	FaultKey
	Count     uint64
	Last      time.Time
	Recovered time.Time
}

// Fault is an error of a GPU or an HCA that its driver logged, or the end of an error.
type Fault struct {
	ID uint64 // in the order of the log, from 1
	FaultKey
	// UUID is the GPU's UUID, from the kernel log or procfs; empty if unknown.
	UUID string
	Time time.Time
	// Repeated is the number of equal faults that followed, Last the time of the last fault.
	Repeated uint64
	Last     time.Time
	// Earlier reports that the fault was logged before the sensor's start: it is not counted.
	Earlier bool
	// Recovered reports the end of a fault: it is not counted.
	Recovered bool
	PID       int    // of the process that caused the fault; 0 if the driver reports no process
	Process   string // its name
	// Cgroup is the cgroup of the process; 0 if unknown.
	Cgroup CgroupID
	Text   string // as logged, with escapes for bytes that are not printable ASCII
}
