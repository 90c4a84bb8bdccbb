// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// GPUUse is a cgroup's use of a GPU, or the use of a MIG instance by all, since the sensor's start. The driver's list
// of processes is read in rounds. The row with neither a cgroup nor an instance exists once the GPU had a round.
type GPUUse struct {
	GPU      string // UUID of the whole GPU
	Instance string // see GPU.Instance; empty for a cgroup
	// Cgroup 0 stands for unknown cgroups, and for users that a round may have missed.
	Cgroup CgroupID
	// Listed counts the rounds of the GPU, Active the rounds in which something ran on it, or may have: both in the row
	// with neither a cgroup nor an instance.
	Listed, Active uint64
	// Rounds counts the rounds with a process of the cgroup, Unknown the rounds in which its activity was not reported.
	Rounds, Unknown uint64
	// Busy is the time in which the processes used the compute units or engines of the GPU, summed over processes.
	Busy time.Duration
}
