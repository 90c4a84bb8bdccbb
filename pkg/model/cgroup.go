// SPDX-License-Identifier: Apache-2.0

package model

// CgroupID is the kernel's number of a cgroup: the inode of its directory, and the key of BPF programs. 0 means no
// cgroup.
type CgroupID uint64

// CgroupPath is the path of a cgroup below the root of its hierarchy.
type CgroupPath string

// Cgroup describes the workload in a cgroup, as the path identifies it.
type Cgroup struct {
	ID CgroupID
	// Path is the path of the workload's cgroup: this cgroup or an ancestor.
	Path CgroupPath
	// Workload is never empty: pod:UID/ID, docker:ID, slurm:JOB, unit:NAME, cgroup:/PATH.
	Workload    string
	ContainerID string
	PodUID      string
	Runtime     string // containerd, cri-o, docker, podman, slurm, systemd
	User        string // owner of the Slurm job
	Step        string // of the Slurm job
	// Claimed reports that a user other than root could have created the cgroup: its container ID is not verified.
	Claimed bool
}

// RDMACgroup is a line of rdma.current: contexts and objects charged.
type RDMACgroup struct {
	Cgroup  CgroupID
	Device  string
	Handles uint64
	Objects uint64
}

// JobGPUs are the GPUs that a step of a Slurm job may use. Nodes is nil if neither the device cgroup nor the device
// program of the step shows them. UUIDs and Numbers then come from the environments of its processes, which the
// processes can change.
type JobGPUs struct {
	Cgroup  CgroupID
	Nodes   []string // device nodes: /dev/nvidia0
	UUIDs   []string // of GPUs and MIG instances
	Numbers []int    // Slurm's GPU numbers on the node, in the order of gres.conf
}

// JobStep is one step of a Slurm job.
type JobStep struct {
	Job  string
	Step string // a number, or batch, extern, interactive
	User string // the name, or the number if the node's user list lacks it; empty for root
	// Account, Partition and Name come from the environment of the job's processes, which the user can change.
	Account, Partition, Name string
}

// Ranks are the ranks of a workload's processes in its job, from their environments: 3, or 0..7, or 0,2. The processes
// can change them.
type Ranks struct {
	Cgroup CgroupID
	Ranks  string
}
