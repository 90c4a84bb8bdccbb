// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// Optional is a number that may not have been collected. The zero Optional was not.
type Optional struct {
	Value float64
	Known bool
}

// Some is a number that was collected.
func Some(v float64) Optional { return Optional{v, true} }

// Usage is what one cgroup and all below it use of the node, from its
// controllers. Times are in seconds, sizes in bytes; a limit that is not set is
// infinite.
type Usage struct {
	Cgroup uint64
	// Created is when the cgroup was made, as far as its directory tells.
	Created time.Time
	CPU     CPUUsage
	Memory  MemoryUsage
	// IO is what the block devices did for it.
	IO                   []DeviceIO
	IOWaiting, IOStalled Optional // pressure

	Processes  Optional
	Threads    Optional // pids.current
	ThreadsMax Optional // pids.max
}

// CPUUsage is the time that tasks ran, and how they are held back.
type CPUUsage struct {
	Total  Optional
	User   Optional
	System Optional
	// Periods of the quota that have passed, those in which it was used up, and
	// how long tasks had to wait for the next.
	Periods          Optional
	ThrottledPeriods Optional
	Throttled        Optional
	// Quota and Period are in microseconds, as everybody has them.
	Quota  Optional
	Period Optional
	Shares Optional // of version 1; a weight of version 2 is converted
	// Waiting is how long some task had no CPU, Stalled how long none had.
	Waiting Optional
	Stalled Optional
}

// MemoryUsage is the memory that is charged to a cgroup.
type MemoryUsage struct {
	Usage      Optional
	Peak       Optional
	WorkingSet Optional // usage without the page cache that was not used lately
	RSS        Optional // anonymous memory
	Cache      Optional
	Swap       Optional
	MappedFile Optional
	Kernel     Optional

	Limit       Optional
	SwapLimit   Optional
	Reservation Optional
	LimitHits   Optional // how often the limit was in the way

	// Faults and MajorFaults are those of the cgroup itself, the next two those of
	// all below it, too. Version 2 does not tell them apart: they are the same.
	Faults           Optional
	MajorFaults      Optional
	FaultsBelow      Optional
	MajorFaultsBelow Optional
	OOMKills         Optional
	Waiting, Stalled Optional // pressure
}

// DeviceIO is what one block device did for a cgroup.
type DeviceIO struct {
	Device       string // /dev/sda; MAJOR:MINOR when its name is not known
	Major, Minor uint32

	ReadBytes, WriteBytes, DiscardBytes Optional
	Reads, Writes                       Optional
}

// Namespace is one network namespace that containers are in.
type Namespace struct {
	// Inode is that of the namespace file, /proc/PID/ns/net.
	Inode uint64
	// PID is a process in it, and Cgroup that process's cgroup.
	PID    int
	Cgroup uint64
	// Host is the namespace of the node itself.
	Host bool
	// Interfaces are what it has but for the loopback; not those of the node.
	Interfaces []Interface
}

// Interface is one network interface and what it has counted (/proc/PID/net/dev).
type Interface struct {
	Name string

	ReceiveBytes, ReceivePackets, ReceiveErrors, ReceiveDropped     uint64
	TransmitBytes, TransmitPackets, TransmitErrors, TransmitDropped uint64
}
