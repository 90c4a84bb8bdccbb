// SPDX-License-Identifier: Apache-2.0

// Package model holds the facts that sources read and that everything else
// joins and presents. It imports the standard library only.
//
// A Source returns a partial Snapshot; the collector merges the partial ones
// into one, which nobody changes afterwards. In every slice and map nil means
// "not collected" and empty means "collected, and there is none": zero is a
// measurement. Facts carry the device they belong to, so that a join can never
// book one HCA's figure on another.
package model

import "errors"

// ErrAbsent says that what a source reads does not exist on this node (no
// HCA, no cgroup file system). It is a state, not a failure.
var ErrAbsent = errors.New("absent")

// ErrUnsupported says that the thing is there but this kernel, driver or build
// cannot tell us about it.
var ErrUnsupported = errors.New("unsupported")

// Snapshot is what is known at one moment.
type Snapshot struct {
	// HCAs are the RDMA devices that the node shows, sorted by name.
	HCAs []HCA
	// Resources are the objects of each HCA as the kernel's resource tracking
	// counts them, kernel-owned ones included: the device's own figure.
	Resources []Resource
	// Holdings are objects booked on the process that made them, from RDMA
	// netlink: read only while no probe counts objects in the kernel.
	Holdings []Holding

	// Objects, Registered, Verbs and VerbErrors are what cgroups did and hold,
	// counted in the kernel.
	Objects    []Objects
	Registered []Registered
	Verbs      []Verb
	VerbErrors []VerbError
	// RDMACgroups is what the rdma cgroup controller charges to each cgroup.
	RDMACgroups []RDMACgroup

	// Traffic, WorkRequests, CompletionErrors and Completions are what cgroups did
	// on the data path, Sampling how much of it is watched, and Budgets what that
	// costs them. VFs are virtual functions, as their physical ones tell of them.
	Traffic          []Traffic
	WorkRequests     []WorkRequests
	CompletionErrors []CompletionErrors
	Completions      []Completions
	Sampling         []Sampling
	Budgets          []Budget
	VFs              []VF

	// Tasks maps the process ids in Holdings to the id of their cgroup.
	Tasks map[int]uint64
	// Entities maps the cgroup ids that occur in this snapshot to what runs
	// there. An id that is missing has no known owner.
	Entities map[uint64]Entity
	// Expired are cgroup ids that are gone for longer than the grace time.
	Expired []uint64

	// JobSteps are the steps of the Slurm jobs on this node.
	JobSteps []JobStep
	// Containers and Pods are what runtimes and the kubelet tell. A container may
	// be told by several of them.
	Containers []Container
	Pods       []Pod
	// Allocations are the devices that the kubelet gave away, Allocatable those
	// that it has.
	Allocations []Allocation
	Allocatable []Allocatable
	PodStorage  []PodStorage
	NodeStorage *NodeStorage
	// Usages is what cgroups use of the node, Namespaces what their networks do.
	Usages     []Usage
	Namespaces []Namespace
	// Node is the node itself.
	Node *Node

	// GPUs are the GPUs of the node and their parts, each after its parent;
	// GPUProcesses who uses them. DRI is how the kernel numbers them.
	GPUs         []GPU
	GPUDrivers   []GPUDriver
	GPUProcesses []GPUProcess
	DRI          []DRIDevice
	// DeviceOpens and DeviceHandles are what cgroups do with the device nodes of HCAs
	// and GPUs.
	DeviceOpens   []DeviceOpens
	DeviceHandles []DeviceHandles
	// Fabric is the InfiniBand subnet, where this node is the one that reads it.
	Fabric *Fabric
	// Events is what became of the events that were to be sent.
	Events *EventStats

	// Hooks, Maps and Losses are the state of the sensor's own probes.
	Hooks  []Hook
	Maps   []Map
	Losses []Loss
	// DeviceStates says which devices could not be read, by which source.
	DeviceStates []DeviceState
	// DataPath is the state of the probes on the data path.
	DataPath *DataPathStats
	// UnresolvedCgroups counts cgroup ids that were seen in the kernel's
	// counters and could never be given a name.
	UnresolvedCgroups *uint64
}

// Counter is one cumulative figure under the name that the driver gives it.
type Counter struct {
	Name  string
	Value uint64
}

// HCA is one RDMA device.
type HCA struct {
	Name  string // name of the ib_device, as in /sys/class/infiniband
	Index uint32 // RDMA netlink device index; 0 is one, too, and what it is without netlink

	// The following are empty when the kernel does not tell.
	Firmware     string // fw_ver
	Board        string // board_id
	Type         string // hca_type
	NodeType     string // node_type without its number: "CA"
	NodeGUID     string // node_guid, as the kernel writes it
	SysImageGUID string // sys_image_guid
	NodeDesc     string // node_desc
	PCIAddress   string // of the function behind it: 0000:18:00.0
	NUMANode     string // device/numa_node, empty when -1
	CharDevice   string // uverbsN
	// PF is the HCA of the physical function, VF whether this is a virtual one.
	// The PF may be out of sight.
	VF bool
	PF string
	// Netns is the inode of the network namespace that the device was moved to;
	// 0 for that of the node.
	Netns uint64

	Ports []Port
	// HWCounters are the counters that the driver keeps for the whole device.
	HWCounters []Counter
}

// Port is one port of an HCA.
type Port struct {
	Number    int
	State     string // ACTIVE, DOWN, INIT, ARMED, ACTIVE_DEFER, NOP
	PhysState string // LinkUp, Disabled, Polling, …
	LinkLayer string // InfiniBand, Ethernet
	Netdev    string // network interface of a RoCE port
	LID       string // as the kernel writes it: 0x1
	SMLID     string
	PortGUID  string // lower half of GID 0

	// RateBits is the data rate in bits per second, Width the number of lanes
	// and Speed the name of the lane speed (SDR … XDR), empty when not told.
	RateBits float64
	Width    int
	Speed    string

	// Counters is the PMA set (sysfs counters/), in the units of the kernel:
	// port_*_data count words of four bytes. HWCounters is the driver's set
	// (sysfs hw_counters/, RDMA netlink STAT_GET).
	Counters   []Counter
	HWCounters []Counter
}

// Resource is the number of objects of one type on one HCA.
type Resource struct {
	Device string
	Type   ObjectType
	Count  uint64
}

// ObjectType names a kind of RDMA object, in the words of the kernel's
// resource tracking and uverbs object classes.
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
	// PID is the thread that made it, or, when that thread is gone, the one
	// that made its protection domain or context; 0 when nobody is known.
	PID   int
	Bytes uint64 // length of a memory region
	// What follows is of a connected queue pair: the number of its other end, its
	// own port, and what enum ib_qp_type and ib_qp_state number.
	RemoteQPN, Port uint32
	QPType, QPState uint8
}

// Holding is the number of objects of one type that one process made.
type Holding struct {
	Device string
	PID    int
	Type   ObjectType
	Count  uint64
	Bytes  uint64 // sum of the lengths of memory regions
}

// Objects is what one cgroup holds of one object type on one HCA.
type Objects struct {
	Cgroup  uint64
	Device  string
	Type    ObjectType
	Current uint64
	Created uint64 // since the sensor started, or since its restart
}

// Memory says where registered memory lies.
type Memory string

// Memory kinds: host is what ib_umem_get pinned, gpu a dma-buf whose exporter
// is a GPU driver, dmabuf one of any other exporter.
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

// Verb is what one cgroup called of one verb on one HCA.
type Verb struct {
	Cgroup   uint64
	Device   string
	Verb     string
	Duration Histogram
}

// VerbError is how often a verb returned one errno.
type VerbError struct {
	Cgroup uint64
	Device string
	Verb   string
	Errno  string // ENOMEM
	Count  uint64
}

// RDMACgroup is one line of rdma.current: contexts and objects charged.
type RDMACgroup struct {
	Cgroup  uint64
	Device  string
	Handles uint64
	Objects uint64
}

// Entity is what runs in a cgroup. The zero Entity is nobody.
type Entity struct {
	// Workload is the one readable key, never empty for an owner.
	Workload    string
	Namespace   string
	Pod         string
	Container   string
	ContainerID string

	// What follows is told by accelscope_workload_info only.
	PodUID  string
	Runtime string // containerd, cri-o, docker, podman, slurm, systemd
	Image   string
	User    string // whose Slurm job it is
	Step    string // Slurm job step
	Cgroup  string // path of the cgroup below its hierarchy
	// Claimed says that whoever is not the system could have made the cgroup: its
	// container id is a claim, and no proof.
	Claimed bool
}

// JobStep is one step of a Slurm job.
type JobStep struct {
	Job  string
	Step string // a number, or batch, extern, interactive
	User string // its name, or its number where that is not in the node's own list; empty for root
}

// Hook is one place in the kernel where a probe wants to be.
type Hook struct {
	Name   string // kernel function or tracepoint
	Tier   string // fentry, kprobe, tracepoint; empty when not attached
	State  State
	Reason string // why it is not attached
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

// State is how a source, a device or a hook does.
type State string

// The states. Absent is also that of hooks while there is no device to watch,
// quarantined that of a device that failed too often and is left alone.
const (
	StateOK          State = "ok"
	StateAbsent      State = "absent"
	StateUnsupported State = "unsupported"
	StateFailed      State = "failed"
	StateStuck       State = "stuck"
	StateQuarantined State = "quarantined"
)

// DeviceState is the state of one device in one source.
type DeviceState struct {
	Source string
	Device string
	State  State
	Reason string
}
