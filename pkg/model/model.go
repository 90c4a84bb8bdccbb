// SPDX-License-Identifier: Apache-2.0

// Package model holds the facts that sources read and that other packages join and present. It
// imports the standard library only.
//
// A Source returns a partial Snapshot; the engine merges the partial ones into one, which does
// not change afterwards. In every slice and map nil means "not collected" and empty means
// "collected, and there is none": zero is a measurement. Facts contain their device, so that a
// join can never credit one HCA's value to another.
package model

import (
	"errors"
	"time"
)

// ErrAbsent reports that the object of a source does not exist on this node (no HCA, no cgroup
// file system). It is a state, not a failure.
var ErrAbsent = errors.New("absent")

// ErrUnsupported reports that the object exists, but that this kernel, driver or build cannot
// report its values.
var ErrUnsupported = errors.New("unsupported")

// Snapshot is the set of facts of one moment.
type Snapshot struct {
	// HCAs are the RDMA devices of the node, sorted by name.
	HCAs []HCA
	// Resources are the objects of each HCA as counted by the kernel's resource tracking,
	// including kernel-owned ones: the device's own total.
	Resources []Resource
	// Holdings are the objects of each process, from RDMA netlink: read only while no probe
	// counts objects in the kernel.
	Holdings []Holding

	// Objects and Registered are the current objects and memory of cgroups, counted in the
	// kernel. Created counts the objects that they created, Verbs and VerbErrors the verbs
	// that they called.
	Objects    []Objects
	Registered []Registered
	Created    []Series[ObjectKey, Count]
	Verbs      []Series[VerbKey, Histogram]
	VerbErrors []Series[VerbErrorKey, Count]
	// RDMACgroups are the rdma cgroup controller's charges.
	RDMACgroups []RDMACgroup

	// Traffic, WorkRequests, CompletionErrors and Completions are the data-path counters of
	// cgroups, Sampling the ratio of time in which they are watched, and Budgets the cost of
	// the probes. VFs are virtual functions, as their physical functions report them.
	Traffic          []Traffic
	WorkRequests     []Series[WorkRequestKey, Requests]
	CompletionErrors []Series[CompletionErrorKey, Count]
	Completions      []Series[CompletionKey, FineHistogram]
	Sampling         []Sampling
	Budgets          []Budget
	Spent            []Series[SpentKey, CPUTime]
	VFs              []VF

	// Cgroups are the cgroups of this snapshot that have a known path. The others are
	// unattributed.
	Cgroups []Cgroup
	// Expired are the cgroups that ended before the grace period.
	Expired []CgroupID

	// JobSteps are the steps of the Slurm jobs on this node.
	JobSteps []JobStep
	// Containers and Pods are reported by runtimes and the kubelet. Several of them may report
	// the same container.
	Containers []Container
	Pods       []Pod
	// Allocations are the devices that the kubelet allocated, Allocatable the devices that it
	// has.
	Allocations []Allocation
	Allocatable []Allocatable
	PodStorage  []PodStorage
	NodeStorage *NodeStorage
	// Usages are the node resources that cgroups use, Namespaces the counters of their
	// networks.
	Usages     []Usage
	Namespaces []Namespace
	// Node is the node itself.
	Node *Node

	// GPUs are the GPUs of the node and their parts, each after its parent; GPUProcesses are
	// the processes that use them. DRI has the kernel's numbers of GPUs.
	GPUs         []GPU
	GPUDrivers   []GPUDriver
	GPUProcesses []GPUProcess
	DRI          []DRIDevice
	// DeviceOpens and DeviceHandles count the opens and open files of device nodes of HCAs and
	// GPUs.
	DeviceOpens   []Series[OpenKey, Opens]
	DeviceHandles []DeviceHandles
	// Fabric is the InfiniBand subnet, if this node reads it.
	Fabric *Fabric
	// Events counts sent and dropped events.
	Events *EventStats

	// Hooks, Maps and Losses are the state of the sensor's own probes.
	Hooks  []Hook
	Maps   []Map
	Losses []Loss
	// DeviceStates lists the state of each device, by source.
	DeviceStates []DeviceState
	// DataPath is the state of the probes on the data path.
	DataPath *DataPathStats
	// UnresolvedCgroups counts cgroup IDs in the kernel's counters that were never resolved to
	// a path.
	UnresolvedCgroups *uint64
}

// Counter is one cumulative value with the driver's name for it.
type Counter struct {
	Name  string
	Value uint64
}

// HCA is one RDMA device.
type HCA struct {
	Name  string // name of the ib_device, as in /sys/class/infiniband
	Index uint32 // RDMA netlink device index; 0 is valid, and also the value without netlink

	// The following are empty if the kernel does not report them.
	Firmware     string // fw_ver
	Board        string // board_id
	Type         string // hca_type
	NodeType     string // node_type without its number: "CA"
	NodeGUID     string // node_guid, in the kernel's format
	SysImageGUID string // sys_image_guid
	NodeDesc     string // node_desc
	PCIAddress   string // of its PCI function: 0000:18:00.0
	NUMANode     string // device/numa_node, empty when -1
	CharDevice   string // uverbsN
	// PF is the HCA of the physical function, VF reports whether this is a virtual one. The PF
	// may be invisible.
	VF bool
	PF string
	// Netns is the inode of the device's network namespace; 0 for the node's.
	Netns uint64

	Ports []Port
	// HWCounters are the driver's counters for the whole device.
	HWCounters []Counter
}

// Port is one port of an HCA.
type Port struct {
	Number    int
	State     string // ACTIVE, DOWN, INIT, ARMED, ACTIVE_DEFER, NOP
	PhysState string // LinkUp, Disabled, Polling, …
	LinkLayer string // InfiniBand, Ethernet
	Netdev    string // network interface of a RoCE port
	LID       string // in the kernel's format: 0x1
	SMLID     string
	PortGUID  string // lower half of GID 0

	// RateBits is the data rate in bits per second, Width the number of lanes and Speed the
	// name of the lane speed (SDR … XDR); empty if unknown.
	RateBits float64
	Width    int
	Speed    string

	// Counters is the PMA set (sysfs counters/), in the kernel's units: port_*_data count
	// words of four bytes. HWCounters is the driver's set (sysfs hw_counters/, RDMA netlink
	// STAT_GET).
	Counters   []Counter
	HWCounters []Counter
}

// Resource is the number of objects of one type on one HCA.
type Resource struct {
	Device string
	Type   ObjectType
	Count  uint64
}

// ObjectType is a kind of RDMA object, with the names of the kernel's resource tracking and
// uverbs object classes.
type ObjectType string

// The object types. The first seven are those of rdma_restrack.
const (
	PD        ObjectType = "pd"
	CQ        ObjectType = "cq"
	QP        ObjectType = "qp"
	CMID      ObjectType = "cm_id"
	MR        ObjectType = "mr"
	Context   ObjectType = "ctx"
	SRQ       ObjectType = "srq"
	AH        ObjectType = "ah"
	MW        ObjectType = "mw"
	Flow      ObjectType = "flow"
	XRCD      ObjectType = "xrcd"
	WQ        ObjectType = "wq"
	DM        ObjectType = "dm"
	DEVXObj   ObjectType = "devx_obj"
	DEVXUmem  ObjectType = "devx_umem"
	OtherType ObjectType = "other"
)

// Object is one live object as RDMA netlink dumps it.
type Object struct {
	Device string
	Index  uint32 // device index
	Type   ObjectType
	ID     uint32 // restrack id: LQPN for a QP, CQN, MRN, PDN, CTXN, …
	// PID is the thread that created it or, if that thread has ended, the one that created its
	// protection domain or context; 0 if unknown.
	PID   int
	Bytes uint64 // length of a memory region
	// The following fields belong to a connected queue pair: the number of its other end, its
	// own port, and its numbers in enum ib_qp_type and ib_qp_state.
	RemoteQPN, Port uint32
	QPType, QPState uint8
}

// Holding is the number of objects of one type that one process created.
type Holding struct {
	Device string
	PID    int
	Cgroup CgroupID // of the process when the objects were listed; 0 if unknown
	Type   ObjectType
	Count  uint64
	Bytes  uint64 // sum of the lengths of memory regions
}

// Objects is the number of objects of one type that one cgroup holds on one HCA.
type Objects struct {
	Cgroup  uint64
	Device  string
	Type    ObjectType
	Current uint64
}

// Memory is the kind of registered memory.
type Memory string

// Memory kinds: host was pinned by ib_umem_get, gpu is a dma-buf of a GPU driver, dmabuf that
// of any other exporter.
const (
	HostMemory   Memory = "host"
	GPUMemory    Memory = "gpu"
	DMABufMemory Memory = "dmabuf"
)

// Registered is the length of all live memory regions of one cgroup on one
// HCA, in bytes.
type Registered struct {
	Cgroup uint64
	Device string
	Memory Memory
	Bytes  uint64
}

// RDMACgroup is one line of rdma.current: contexts and objects charged.
type RDMACgroup struct {
	Cgroup  uint64
	Device  string
	Handles uint64
	Objects uint64
}

// JobStep is one step of a Slurm job.
type JobStep struct {
	Job  string
	Step string // a number, or batch, extern, interactive
	User string // its name, or its number if the node's own list lacks it; empty for root
}

// Hook is one kernel function or tracepoint for a probe.
type Hook struct {
	Name   string // kernel function or tracepoint
	Tier   string // fentry, kprobe, tracepoint, raw_tracepoint or iterator; empty if not attached
	State  State
	Reason string // why it is not attached
	Err    error  // the error of attaching, also in Reason; nil if it was not tried
}

// Map is the fill of one BPF map.
type Map struct {
	Name     string
	Entries  uint64
	Capacity uint64
}

// Loss counts what a probe could not record.
type Loss struct {
	Reason string
	Count  uint64
}

// State is the state of a source, a device or a hook.
type State string

// The states. Hooks are absent while there is no device to watch. A device is quarantined if
// it failed too often and is not read anymore.
const (
	StateOK          State = "ok"
	StateAbsent      State = "absent"
	StateUnsupported State = "unsupported"
	StateFailed      State = "failed"
	StateStuck       State = "stuck"
	StateQuarantined State = "quarantined"
)

// SourceState is the state of one source.
type SourceState struct {
	Source string
	State  State  // ok, absent, unsupported, failed or stuck
	Reason string // why it is not ok
	Err    error  // the error with the text Reason
	// Took is the duration of its last answer, Age the time since then: negative if there was
	// none.
	Took time.Duration
	Age  time.Duration
}

// DeviceState is the state of one device in one source.
type DeviceState struct {
	Source string
	Device string
	State  State
	Reason string
}
