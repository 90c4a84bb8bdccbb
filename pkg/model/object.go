// SPDX-License-Identifier: Apache-2.0

package model

// Resource is the number of objects of a type on an HCA.
type Resource struct {
	Device string
	Type   ObjectType
	Count  uint64
}

// ObjectTable identifies the objects of a type on an HCA. Index is the HCA's RDMA netlink index.
type ObjectTable struct {
	Index uint32
	Type  ObjectType
}

// ObjectType is a kind of RDMA object, with the kernel's names in resource tracking and uverbs object classes.
type ObjectType string

// The object types. The first seven are the types of rdma_restrack.
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

// Object is a live object as RDMA netlink dumps it.
type Object struct {
	Device string
	Index  uint32 // device index
	Type   ObjectType
	ID     uint32 // restrack id: LQPN for a QP, CQN, MRN, PDN, CTXN, …
	// PID is the thread that created the object or, if that thread has ended, the creator of its protection domain or
	// context; 0 if unknown.
	PID   int
	Bytes uint64 // length of a memory region, 0 for implicit ODP
	// Memory is the kind of a memory region, as far as the dump reports it.
	Memory Memory
	// Of a connected queue pair: the number of the other end, its own port, and its numbers in enum ib_qp_type and
	// ib_qp_state.
	RemoteQPN, Port uint32
	QPType, QPState uint8
}

// Holding is the number of objects of a type that a process created; memory regions are counted by kind of memory.
type Holding struct {
	Device string
	PID    int
	Cgroup CgroupID // of the process at the time of the list; 0 if unknown
	Type   ObjectType
	Memory Memory // of memory regions
	Count  uint64
	Bytes  uint64 // sum of the lengths of memory regions
}

// Objects is the number of objects of a type that a cgroup holds on an HCA.
type Objects struct {
	Cgroup  CgroupID
	Device  string
	Type    ObjectType
	Current uint64
}

// Memory is the kind of registered memory.
type Memory string

// The kinds of memory: host is the process's memory, gpu a dma-buf of a GPU driver, dmabuf a dma-buf of another
// exporter, device the HCA's memory (ibv_alloc_dm). An implicit ODP region covers the whole address space and has no
// length. The kind is unknown if no hook saw the registration, or if host memory cannot be distinguished from GPU
// memory.
const (
	HostMemory        Memory = "host"
	GPUMemory         Memory = "gpu"
	DMABufMemory      Memory = "dmabuf"
	DeviceMemory      Memory = "device"
	ImplicitODPMemory Memory = "implicit_odp"
	UnknownMemory     Memory = "unknown"
)

// Registered is the length of a cgroup's live memory regions on an HCA, in bytes.
type Registered struct {
	Cgroup CgroupID
	Device string
	Memory Memory
	Bytes  uint64
}
