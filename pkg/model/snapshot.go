// SPDX-License-Identifier: Apache-2.0

// Package model holds the facts that sources read and that other packages join and present. It imports the standard
// library only.
//
// A Source returns a partial Snapshot; the engine merges partial snapshots into one that does not change afterwards. In
// every slice and map, nil means "not collected", and empty means "collected, and there are no elements". Facts contain
// their device, so that a join cannot credit a value to another HCA.
package model

import "time"

// Snapshot is the set of facts of one moment.
type Snapshot struct {
	// Counted is a time before all cumulative values of this Snapshot were read.
	Counted time.Time

	// HCAs are the RDMA devices of the node, sorted by name.
	HCAs []HCA
	// Links are the links of interfaces behind ports of HCAs, LinkFlaps the last flaps, oldest first.
	Links     []Link
	LinkFlaps []LinkFlap
	BitErrors []BitErrors
	// Resources are the objects of each HCA in the kernel's resource tracking, including the kernel's objects: the
	// device's total.
	Resources []Resource
	// Domains are the protection domains of each HCA. An HCA with listed protection domains has a line for processes.
	Domains []Domains
	// KernelIDs are the connection manager ids of kernel modules. They are read of HCAs with a consumer in the kernel.
	KernelIDs []KernelID
	// Holdings are the objects of each process, from RDMA netlink. They are read only while no probe counts objects in
	// the kernel.
	Holdings []Holding

	// Objects and Registered are the current objects and memory of cgroups, counted in the kernel. Created counts
	// created objects, Verbs and VerbErrors called verbs.
	Objects    []Objects
	Registered []Registered
	Created    []Series[ObjectKey, Count]
	Verbs      []Series[VerbKey, Histogram]
	VerbErrors []Series[VerbErrorKey, Count]
	// RDMACgroups are the rdma cgroup controller's charges.
	RDMACgroups []RDMACgroup

	// Traffic, WorkRequests, CompletionErrors and Completions are the data-path counters of cgroups. They lack the
	// first operations of the contexts in Late, the received bytes of the completions in Unread, and at present what
	// Coverage says. Surveys are what cgroups that are not always counted moved in the last survey. Budgets is the cost
	// of the probes. VFs are virtual functions, as their physical functions report them.
	Traffic          []Traffic
	WorkRequests     []Series[WorkRequestKey, Requests]
	CompletionErrors []Series[CompletionErrorKey, Count]
	Completions      []Series[CompletionKey, FineHistogram]
	Late             []Series[DeviceKey, Count]
	Unread           []Series[DeviceKey, Count]
	ReceiveWaits     []Series[DeviceKey, WaitTime]
	Coverage         []Coverage
	Surveys          []Survey
	Budgets          []Budget
	Spent            []Series[SpentKey, CPUTime]
	VFs              []VF
	// Outstanding are the work requests that wait for a completion, Stalled the queue pairs that have waited for long.
	Outstanding []Outstanding
	Stalled     []StalledQueuePair
	// QueuePairWaits are the queue pairs that wait or have waited for receives, whose total by HCA is in ReceiveWaits.
	QueuePairWaits []QueuePairWait

	// Cgroups are the cgroups of this snapshot with a known path. Other cgroups are unattributed.
	Cgroups []Cgroup
	// Expired are the cgroups that ended before the grace period.
	Expired []CgroupID

	// JobSteps are the steps of the Slurm jobs on this node, JobGPUs the GPUs that they may use.
	JobSteps []JobStep
	JobGPUs  []JobGPUs
	// Ranks are the ranks of workloads in their jobs, read only if the user listed variables for them.
	Ranks []Ranks
	// Containers and Pods come from runtimes and the kubelet. Several of them may report the same container.
	Containers []Container
	Pods       []Pod
	// Allocations are the devices that the kubelet allocated, Allocatable the allocatable devices.
	Allocations []Allocation
	Allocatable []Allocatable
	PodStorage  []PodStorage
	NodeStorage *NodeStorage
	// Usages are the node resources of cgroups, Namespaces their network counters.
	Usages     []Usage
	Namespaces []Namespace
	Node       *Node

	// PCI are the PCI functions of HCAs and GPUs, and of other network controllers.
	PCI []PCIFunction

	// GPUs are the GPUs of the node and their parts, each part after its GPU. GPUProcesses are the processes that use
	// them, GPUUses who used whole GPUs since the start. DRI has the kernel's GPU numbers.
	GPUs          []GPU
	GPUDrivers    []GPUDriver
	GPUProcesses  []GPUProcess
	GPUUses       []GPUUse
	DRI           []DRIDevice
	DeviceOpens   []Series[OpenKey, Opens]
	DeviceHandles []DeviceHandles
	// DenialsUnseen: the kernel denies opens without an attached hook that sees denials. DeviceOpens has only allowed
	// opens.
	DenialsUnseen bool
	// FailedAllocations count the allocations of GPU memory that failed for lack of memory.
	FailedAllocations []Series[AllocationKey, Allocations]
	// Communicators are the ranks of communicators of NCCL and RCCL, Collectives the launches in communicators that are not listed.
	// CollectiveCoverage says what both lack.
	Communicators      []Communicator
	Collectives        []Series[CollectiveKey, Launches]
	CollectiveCoverage []CollectiveCoverage
	// Clock is the state of the node's clock; nil: unknown.
	Clock *Clock
	// Faults and FaultTotals count logged errors of GPUs and HCAs since the sensor's start, by cgroup and by device.
	// FaultHistory are the last faults, oldest first.
	Faults       []Series[FaultKey, Count]
	FaultTotals  []FaultTotal
	FaultHistory []Fault
	// DriverCalls are the durations of GPU driver ioctls, DriverUses the ioctls in progress, DriverTasks the tasks in
	// one ioctl for long.
	DriverCalls []Series[DriverCallKey, Histogram]
	DriverUses  []DriverUse
	DriverTasks []DriverTask
	// Fabric is the InfiniBand subnet, if this node reads it.
	Fabric *Fabric
	Events *EventStats

	// FabricManager manages the node's NVSwitches; nil if the node needs no manager, or if unknown.
	FabricManager *FabricManager
	// Lingering are the devices that stay in an intermediate state for longer than normal.
	Lingering []Lingering

	// Missing are the devices that the node had and has no more, by the inventory; nil if not compared.
	Missing []MissingDevice

	// Hooks, Maps, Losses and Repairs are the state of the sensor's own probes.
	Hooks   []Hook
	Maps    []Map
	Losses  []Loss
	Repairs []Repair
	// SkippedLines counts unparsable lines of kernel files. Several sources may read the same file.
	SkippedLines []SkippedLines
	// ProbeDurations are the times to attach and detach uprobes.
	ProbeDurations []ProbeDurations
	// OwnerLosses are the losses of cgroups that used up their share of a BPF map.
	OwnerLosses  []Series[LossKey, Count]
	DeviceStates []DeviceState
	Children     []ChildProcesses
	// DataPath is the state of the probes on the data path.
	DataPath *DataPathStats
	// UnresolvedCgroups counts cgroup IDs in kernel counters whose path was never found.
	UnresolvedCgroups *uint64
}

// lists has a line for every list of facts in a Snapshot. Facts with a cgroup name its field.
var lists = []factList{
	list(func(s *Snapshot) *[]HCA { return &s.HCAs }),
	list(func(s *Snapshot) *[]Link { return &s.Links }),
	list(func(s *Snapshot) *[]LinkFlap { return &s.LinkFlaps }),
	list(func(s *Snapshot) *[]BitErrors { return &s.BitErrors }),
	list(func(s *Snapshot) *[]Resource { return &s.Resources }),
	list(func(s *Snapshot) *[]Domains { return &s.Domains }),
	list(func(s *Snapshot) *[]KernelID { return &s.KernelIDs }),
	byCgroup(func(s *Snapshot) *[]Holding { return &s.Holdings }, func(f *Holding) CgroupID { return f.Cgroup }),
	byCgroup(func(s *Snapshot) *[]Objects { return &s.Objects }, func(f *Objects) CgroupID { return f.Cgroup }),
	byCgroup(func(s *Snapshot) *[]Registered { return &s.Registered }, func(f *Registered) CgroupID { return f.Cgroup }),
	series(func(s *Snapshot) *[]Series[ObjectKey, Count] { return &s.Created }),
	series(func(s *Snapshot) *[]Series[VerbKey, Histogram] { return &s.Verbs }),
	series(func(s *Snapshot) *[]Series[VerbErrorKey, Count] { return &s.VerbErrors }),
	series(func(s *Snapshot) *[]Series[LossKey, Count] { return &s.OwnerLosses }),
	byCgroup(func(s *Snapshot) *[]RDMACgroup { return &s.RDMACgroups }, func(f *RDMACgroup) CgroupID { return f.Cgroup }),
	byCgroup(func(s *Snapshot) *[]Traffic { return &s.Traffic }, func(f *Traffic) CgroupID { return f.Cgroup }),
	series(func(s *Snapshot) *[]Series[WorkRequestKey, Requests] { return &s.WorkRequests }),
	series(func(s *Snapshot) *[]Series[CompletionErrorKey, Count] { return &s.CompletionErrors }),
	series(func(s *Snapshot) *[]Series[CompletionKey, FineHistogram] { return &s.Completions }),
	series(func(s *Snapshot) *[]Series[DeviceKey, Count] { return &s.Late }),
	series(func(s *Snapshot) *[]Series[DeviceKey, Count] { return &s.Unread }),
	series(func(s *Snapshot) *[]Series[DeviceKey, WaitTime] { return &s.ReceiveWaits }),
	byCgroup(func(s *Snapshot) *[]Coverage { return &s.Coverage }, func(f *Coverage) CgroupID { return f.Cgroup }),
	byCgroup(func(s *Snapshot) *[]Survey { return &s.Surveys }, func(f *Survey) CgroupID { return f.Cgroup }),
	byCgroup(func(s *Snapshot) *[]Budget { return &s.Budgets }, func(f *Budget) CgroupID { return f.Cgroup }),
	series(func(s *Snapshot) *[]Series[SpentKey, CPUTime] { return &s.Spent }),
	list(func(s *Snapshot) *[]VF { return &s.VFs }),
	byCgroup(func(s *Snapshot) *[]Outstanding { return &s.Outstanding }, func(f *Outstanding) CgroupID { return f.Cgroup }),
	byCgroup(func(s *Snapshot) *[]StalledQueuePair { return &s.Stalled }, func(f *StalledQueuePair) CgroupID { return f.Cgroup }),
	byCgroup(func(s *Snapshot) *[]QueuePairWait { return &s.QueuePairWaits }, func(f *QueuePairWait) CgroupID { return f.Cgroup }),
	byCgroup(func(s *Snapshot) *[]Usage { return &s.Usages }, func(f *Usage) CgroupID { return f.Cgroup }),
	byCgroup(func(s *Snapshot) *[]Namespace { return &s.Namespaces }, func(f *Namespace) CgroupID { return f.Cgroup }),
	byCgroup(func(s *Snapshot) *[]GPUProcess { return &s.GPUProcesses }, func(f *GPUProcess) CgroupID { return f.Cgroup }),
	byCgroup(func(s *Snapshot) *[]GPUUse { return &s.GPUUses }, func(f *GPUUse) CgroupID { return f.Cgroup }),
	series(func(s *Snapshot) *[]Series[OpenKey, Opens] { return &s.DeviceOpens }),
	byCgroup(func(s *Snapshot) *[]DeviceHandles { return &s.DeviceHandles }, func(f *DeviceHandles) CgroupID { return f.Cgroup }),
	series(func(s *Snapshot) *[]Series[AllocationKey, Allocations] { return &s.FailedAllocations }),
	byCgroup(func(s *Snapshot) *[]Communicator { return &s.Communicators }, func(f *Communicator) CgroupID { return f.Cgroup }),
	series(func(s *Snapshot) *[]Series[CollectiveKey, Launches] { return &s.Collectives }),
	byCgroup(func(s *Snapshot) *[]CollectiveCoverage { return &s.CollectiveCoverage },
		func(f *CollectiveCoverage) CgroupID { return f.Cgroup }),
	series(func(s *Snapshot) *[]Series[FaultKey, Count] { return &s.Faults }),
	list(func(s *Snapshot) *[]FaultTotal { return &s.FaultTotals }),
	byCgroup(func(s *Snapshot) *[]Fault { return &s.FaultHistory }, func(f *Fault) CgroupID { return f.Cgroup }),
	series(func(s *Snapshot) *[]Series[DriverCallKey, Histogram] { return &s.DriverCalls }),
	byCgroup(func(s *Snapshot) *[]DriverUse { return &s.DriverUses }, func(f *DriverUse) CgroupID { return f.Cgroup }),
	byCgroup(func(s *Snapshot) *[]DriverTask { return &s.DriverTasks }, func(f *DriverTask) CgroupID { return f.Cgroup }),
	list(func(s *Snapshot) *[]Cgroup { return &s.Cgroups }),
	list(func(s *Snapshot) *[]CgroupID { return &s.Expired }),
	list(func(s *Snapshot) *[]JobStep { return &s.JobSteps }),
	byCgroup(func(s *Snapshot) *[]JobGPUs { return &s.JobGPUs }, func(f *JobGPUs) CgroupID { return f.Cgroup }),
	byCgroup(func(s *Snapshot) *[]Ranks { return &s.Ranks }, func(f *Ranks) CgroupID { return f.Cgroup }),
	list(func(s *Snapshot) *[]Container { return &s.Containers }),
	list(func(s *Snapshot) *[]Pod { return &s.Pods }),
	list(func(s *Snapshot) *[]Allocation { return &s.Allocations }),
	list(func(s *Snapshot) *[]Allocatable { return &s.Allocatable }),
	list(func(s *Snapshot) *[]PodStorage { return &s.PodStorage }),
	list(func(s *Snapshot) *[]PCIFunction { return &s.PCI }),
	list(func(s *Snapshot) *[]GPU { return &s.GPUs }),
	list(func(s *Snapshot) *[]GPUDriver { return &s.GPUDrivers }),
	list(func(s *Snapshot) *[]DRIDevice { return &s.DRI }),
	list(func(s *Snapshot) *[]Lingering { return &s.Lingering }),
	list(func(s *Snapshot) *[]MissingDevice { return &s.Missing }),
	list(func(s *Snapshot) *[]Hook { return &s.Hooks }),
	list(func(s *Snapshot) *[]Map { return &s.Maps }),
	list(func(s *Snapshot) *[]Loss { return &s.Losses }),
	list(func(s *Snapshot) *[]Repair { return &s.Repairs }),
	list(func(s *Snapshot) *[]SkippedLines { return &s.SkippedLines }),
	list(func(s *Snapshot) *[]ProbeDurations { return &s.ProbeDurations }),
	list(func(s *Snapshot) *[]ChildProcesses { return &s.Children }),
	list(func(s *Snapshot) *[]DeviceState { return &s.DeviceStates }),
}
