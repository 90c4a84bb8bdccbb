// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// DriverCallKind says whether a request of a GPU driver waits on purpose.
type DriverCallKind string

// The kinds of requests.
const (
	DriverWork DriverCallKind = "work"
	// DriverWait is a request that waits on purpose: for the end of a computation, an event or the display.
	DriverWait DriverCallKind = "wait"
)

// DriverCallKey is the ioctls of one kind of a GPU driver.
type DriverCallKey struct {
	Driver string // name of the module: amdgpu, nvidia_uvm
	Kind   DriverCallKind
}

// DriverUse is the ioctls of a GPU driver that tasks of a cgroup are in, without those that wait on purpose.
type DriverUse struct {
	Cgroup CgroupID
	Driver string
	// Oldest is the age of the oldest ioctl, 0 if there is none.
	Oldest time.Duration
	// Stuck is the number of tasks that are in one ioctl for long.
	Stuck uint64
}

// DriverTask is a task that is in an ioctl of a GPU driver for long.
type DriverTask struct {
	Cgroup   CgroupID
	Driver   string
	Request  uint32 // the second argument of ioctl(2)
	PID, TID int    // process and thread, in the initial PID namespace
	Process  string // name of the thread; empty if unknown
	// Function is the function of the kernel in which the thread sleeps (/proc/TID/wchan); empty if it runs or is unknown.
	// Before Linux 5.16 the kernel does not follow stacks that only ORC describes (get_wchan): mostly empty there, and it
	// may be a function that has returned.
	Function string
	Since    time.Time
	// HolderPID and HolderTID are the process and the thread that have the lock that the task waits for, 0 if unknown: few
	// kernels record it. HolderProcess is the name of that thread.
	HolderPID, HolderTID int
	HolderProcess        string
}
