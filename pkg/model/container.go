// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// Container is one container, as a runtime or the kubelet reports it. Fields that none of them
// reports are empty.
type Container struct {
	ID      string // usually 64 hexadecimal digits; containerd lets a client choose
	Runtime string // containerd, cri-o, docker, podman
	// Name is the name in the pod's specification, or outside a pod the runtime's name.
	Name string
	// Namespace, Pod and PodUID are those of Kubernetes. PodUID is the UID in the cgroup path,
	// which for a static pod is the hash of its file.
	Namespace string
	Pod       string
	PodUID    string
	// Sandbox marks the container that only holds the namespaces of a pod.
	Sandbox bool

	Image   string // as requested: registry/name:tag
	ImageID string // its digest
	// Labels are labels and annotations of the container and its pod: only those that the user
	// listed.
	Labels map[string]string
	// Cgroup is the path below the root of the hierarchy, for containers that this path alone does
	// not name.
	Cgroup string
	// NoCgroup reports that it runs in the cgroup of another workload (podman --cgroups=disabled), or below one (a container
	// in a job): what it uses is not known under its name.
	NoCgroup bool
	// PID is the PID of the first process in the host's namespace; 0 if none runs.
	PID int
	// Devices are the device nodes in the container: /dev/infiniband/uverbs0.
	Devices []string
	// AllDevices reports that it may use any device of the node (it is privileged): its
	// Devices are not an assignment.
	AllDevices bool
	// GPURequests are the GPUs that were requested from the runtime by name and are not in
	// Devices (docker run --gpus): UUIDs, numbers, or all; amd.com/gpu=all if they are
	// certainly AMD's.
	GPURequests []string

	Status   ContainerStatus
	Health   string  // healthy, unhealthy, starting; empty without a health check
	Restarts *uint64 // nil if unknown
	Created  time.Time
	Started  time.Time
	Finished time.Time
	ExitCode *uint32 // of an exited container
}

// LacksPod reports whether Labels are not those of the pod, too: Docker does not know pods, whose labels cri-dockerd keeps for itself.
func (c *Container) LacksPod() bool { return c.PodUID != "" && c.Runtime == RuntimeDocker }

// ContainerStatus is the state of a container.
type ContainerStatus string

// The states of containers, the same for all runtimes.
const (
	ContainerCreated ContainerStatus = "created"
	ContainerRunning ContainerStatus = "running"
	ContainerPaused  ContainerStatus = "paused"
	ContainerExited  ContainerStatus = "exited"
)

// Pod is one pod, as the kubelet reports it.
type Pod struct {
	UID string
	// StaticUID is the hash of a static pod's file, which replaces the UID in the cgroup path.
	StaticUID string
	Namespace string
	Name      string
	Labels    map[string]string // those that the user listed, including annotations
	Job       Job               // zero if the pod is in no known job and no queue
	Networks  []PodNetwork
}

// PodNetwork is one entry of the network-status annotation of a pod (Network Plumbing Working
// Group). Its device-info names the device.
type PodNetwork struct {
	Name       string // of the network attachment: namespace/name
	Interface  string // in the pod
	PCIAddress string // 0000:18:00.2
	RDMADevice string // mlx5_2
}

// Allocation is one device that the kubelet allocated to a container, by device plugin or
// resource claim.
type Allocation struct {
	Namespace string
	Pod       string
	Container string
	Resource  string // nvidia.com/gpu, rdma/hca_shared; of a claim DRIVER/POOL
	ID        string // the plugin's ID: a GPU's UUID, a PCI address, any text
	Claim     string // name of the resource claim; empty for device plugins
	ShareID   string // of a part of a device that several claims share; empty if the claim has all of it
	// Unhealthy reports that the plugin or driver of the device reports it as unhealthy.
	Unhealthy bool
	// Nodes are the host's device nodes of a claimed device, by the specifications of the Container
	// Device Interface: /dev/nvidia0. Nil if no specification has the device.
	Nodes []string
}

// Allocatable is the number of allocatable devices of a resource.
type Allocatable struct {
	Resource string
	IDs      []string
}

// PodStorage is the ephemeral storage that a pod uses.
type PodStorage struct {
	UID       string
	Namespace string
	Pod       string
	UsedBytes uint64
}

// NodeStorage is the file system that provides ephemeral storage.
type NodeStorage struct {
	UsedBytes      uint64
	AvailableBytes uint64
	CapacityBytes  uint64
}

// Event is an event in the life of a container, or a fault of a device.
type Event struct {
	Type EventType
	// Time is the time of the event, by the runtime's clock; for a reconciled event, the time
	// of its detection.
	Time time.Time
	// Container is the container after the event.
	Container Container
	ExitCode  *uint32
	Signal    int // that ended it; 0 for none
	Device    string
	// Fault is the fault of a device. Container and Workload are those of its owner; empty for an unattributed fault.
	Fault    *Fault
	Workload string
	Flap     *LinkFlap // of a port
	SMChange *SMChange // of a port
	// Reconciled reports that the event was not observed: it was derived when the runtime's
	// list was compared with the known containers.
	Reconciled bool
}

// EventType is the kind of an event.
type EventType string

// The events in the life of a container.
const (
	EventCreate EventType = "create"
	EventStart  EventType = "start"
	EventPause  EventType = "pause"
	EventResume EventType = "resume"
	EventOOM    EventType = "oom"
	EventExit   EventType = "exit"
	EventDelete EventType = "delete"
	EventHealth EventType = "health"
	// EventDevice is the first open of a device by a container.
	EventDevice EventType = "device_open"
	// EventFault is a fault of a GPU or an HCA.
	EventFault EventType = "fault"
	// EventFlap is a loss of the carrier of a port of an HCA that has ended.
	EventFlap EventType = "link_flap"
	// EventSM is the change of an InfiniBand port to another subnet manager.
	EventSM EventType = "sm_change"
)
