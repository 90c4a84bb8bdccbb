// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// DriverCallKind is whether a request to a GPU driver waits on purpose.
type DriverCallKind string

// The kinds of requests.
const (
	DriverWork DriverCallKind = "work"
	// DriverWait waits on purpose: for the end of a computation, an event or the display.
	DriverWait DriverCallKind = "wait"
)

// DriverCallKey is a GPU driver's ioctls of one kind.
type DriverCallKey struct {
	Driver string // name of the module: amdgpu, nvidia_uvm
	Kind   DriverCallKind
}

// DriverUse is a cgroup's ioctls of a GPU driver in progress, without DriverWait.
type DriverUse struct {
	Cgroup CgroupID
	Driver string
	// Oldest is the age of the oldest ioctl, or 0.
	Oldest time.Duration
	// Stuck is the number of tasks that have been in one ioctl for long.
	Stuck uint64
}

// DriverTask is a task that has been in an ioctl of a GPU driver for long.
type DriverTask struct {
	Cgroup   CgroupID
	Driver   string
	Request  uint32 // the second argument of ioctl(2)
	PID, TID int    // in the initial PID namespace
	Process  string // name of the thread; empty if unknown
	// Function is the kernel function in which the thread sleeps (/proc/TID/wchan); empty if the thread runs or if
	// unknown. Before Linux 5.16, get_wchan does not follow stacks that only ORC describes: Function is mostly empty,
	// and may be a function that has returned.
	Function string
	Since    time.Time
	// HolderPID and HolderTID are the owner of the lock for which the task waits, 0 if unknown: few kernels record it.
	// HolderProcess is the name of that thread.
	HolderPID, HolderTID int
	HolderProcess        string
}
