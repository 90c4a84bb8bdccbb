// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// Optional is a number that may be unknown. The zero Optional is unknown.
type Optional struct {
	Value float64
	Known bool
}

// Some returns a known number.
func Some(v float64) Optional { return Optional{v, true} }

// Usage is the node resources that a cgroup and its descendants use, from its controllers, in seconds and bytes. A
// limit that is not set is infinite.
type Usage struct {
	Cgroup CgroupID
	// Created is the creation time of the cgroup's directory.
	Created time.Time
	// Since is a time at which the cgroup did not exist; zero if unknown.
	Since                time.Time
	CPU                  CPUUsage
	Memory               MemoryUsage
	IO                   []DeviceIO
	IOWaiting, IOStalled Optional // pressure

	Processes  Optional
	Threads    Optional // pids.current
	ThreadsMax Optional // pids.max
}

// CPUUsage is the CPU time of tasks and their throttling.
type CPUUsage struct {
	Total  Optional
	User   Optional
	System Optional
	// Periods of the quota that have passed, periods with the quota used up, and the throttled time.
	Periods          Optional
	ThrottledPeriods Optional
	Throttled        Optional
	// Quota and Period are in microseconds, as in the kernel.
	Quota  Optional
	Period Optional
	Shares Optional // version 1; a weight of version 2 is converted
	// Waiting is the time in which some task waited for a CPU, Stalled the time in which all tasks waited.
	Waiting Optional
	Stalled Optional
}

// MemoryUsage is the memory that is charged to a cgroup.
type MemoryUsage struct {
	Usage      Optional
	Peak       Optional
	WorkingSet Optional // usage without inactive page cache
	RSS        Optional // anonymous memory
	Cache      Optional
	Swap       Optional
	MappedFile Optional
	Kernel     Optional

	Limit       Optional
	SwapLimit   Optional
	Reservation Optional
	LimitHits   Optional // how often the limit was hit

	// Faults and MajorFaults count the cgroup itself, FaultsBelow and MajorFaultsBelow also its descendants. On version
	// 2 the values are equal.
	Faults           Optional
	MajorFaults      Optional
	FaultsBelow      Optional
	MajorFaultsBelow Optional
	OOMKills         Optional
	Waiting, Stalled Optional // pressure
}

// DeviceIO is the I/O of a cgroup on one block device.
type DeviceIO struct {
	Device       string // /dev/sda; MAJOR:MINOR if its name is unknown
	Major, Minor uint32

	ReadBytes, WriteBytes, DiscardBytes Optional
	Reads, Writes                       Optional
}

// Namespace is one network namespace with containers in it.
type Namespace struct {
	Inode uint64
	// PID is a process in the namespace, and Cgroup its cgroup.
	PID    int
	Cgroup CgroupID
	// Host reports the node's own namespace.
	Host bool
	// Interfaces are the interfaces except the loopback; empty for the node's namespace.
	Interfaces []Interface
}

// Interface is one network interface with its counters (/proc/PID/net/dev).
type Interface struct {
	Name string

	ReceiveBytes, ReceivePackets, ReceiveErrors, ReceiveDropped     uint64
	TransmitBytes, TransmitPackets, TransmitErrors, TransmitDropped uint64
}
