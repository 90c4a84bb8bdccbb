// SPDX-License-Identifier: Apache-2.0

package model

// CgroupID is the number of a cgroup in the kernel: the inode number of its directory, and
// the key under which BPF programs count. 0 is none.
type CgroupID = uint64

// CgroupPath is the path of a cgroup below the root of its hierarchy.
type CgroupPath string

// Cgroup is what the path of a cgroup shows of the workload in it.
type Cgroup struct {
	ID CgroupID
	// Path is that of the workload's own cgroup: this one, or one above it.
	Path CgroupPath
	// Workload is never empty: pod:UID/ID, docker:ID, slurm:JOB, unit:NAME, cgroup:/PATH.
	Workload    string
	ContainerID string
	PodUID      string
	Runtime     string // containerd, cri-o, docker, podman, slurm, systemd
	User        string // owner of the Slurm job
	Step        string // of the Slurm job
	// Claimed means that a user who is not root could have made the cgroup: its container
	// id is a claim and no proof.
	Claimed bool
}
