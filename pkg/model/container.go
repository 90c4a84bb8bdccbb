// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// Container is a container, as a runtime or the kubelet reports it. Unreported fields are empty.
type Container struct {
	ID      string // usually 64 hexadecimal digits; containerd lets a client choose
	Runtime string // containerd, cri-o, docker, podman
	// Name is the name in the pod's specification, or the runtime's name outside a pod.
	Name string
	// Namespace, Pod and PodUID are Kubernetes names. PodUID is the UID in the cgroup path: for a static pod, the hash
	// of its file.
	Namespace string
	Pod       string
	PodUID    string
	// Sandbox marks the container that only holds a pod's namespaces.
	Sandbox bool

	Image   string // as requested: registry/name:tag
	ImageID string // its digest
	// Labels are the labels and annotations of the container and its pod that the user listed.
	Labels map[string]string
	// Cgroup is the path below the root of the hierarchy, for containers that cannot be named by the path alone.
	Cgroup string
	// NoCgroup reports that the container runs in another workload's cgroup (podman --cgroups=disabled), or below it (a
	// container in a job): its usage is not known by container.
	NoCgroup bool
	// PID is the first process, in the host's PID namespace; 0 if the container does not run.
	PID int
	// Devices are the device nodes in the container: /dev/infiniband/uverbs0.
	Devices []string
	// AllDevices reports a privileged container, which may use any device of the node: Devices is not an assignment.
	AllDevices bool
	// GPURequests are the GPUs that were requested from the runtime by name and are not in Devices (docker run --gpus):
	// UUIDs, numbers, or all; amd.com/gpu=all if they are certainly AMD GPUs.
	GPURequests []string

	Status   ContainerStatus
	Health   string  // healthy, unhealthy, starting; empty without a health check
	Restarts *uint64 // nil if unknown
	Created  time.Time
	Started  time.Time
	Finished time.Time
	ExitCode *uint32 // of an exited container
}

// LacksPod reports whether Labels lack the pod's labels: Docker does not know pods, and cri-dockerd does not pass their
// labels on.
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

// Pod is a pod, as the kubelet reports it.
type Pod struct {
	UID string
	// StaticUID is the hash of a static pod's file, which replaces the UID in the cgroup path.
	StaticUID string
	Namespace string
	Name      string
	Labels    map[string]string // labels and annotations that the user listed
	Job       Job               // zero if the pod has no known job and no queue
	Networks  []PodNetwork
}

// PodNetwork is an entry of a pod's network-status annotation (Network Plumbing Working Group). Its device-info names
// the device.
type PodNetwork struct {
	Name       string // of the network attachment: namespace/name
	Interface  string // in the pod
	PCIAddress string // 0000:18:00.2
	RDMADevice string // mlx5_2
}

// Allocation is a device that the kubelet allocated to a container, by device plugin or resource claim.
type Allocation struct {
	Namespace string
	Pod       string
	Container string
	Resource  string // nvidia.com/gpu, rdma/hca_shared; DRIVER/POOL of a claim
	ID        string // the plugin's ID: a GPU's UUID, a PCI address, any text
	Claim     string // name of the resource claim; empty for device plugins
	ShareID   string // of a part of a device that several claims share; empty if the claim has the whole device
	// Unhealthy reports that the device's plugin or driver reports the device as unhealthy.
	Unhealthy bool
	// Nodes are the host's device nodes of a claimed device, from the specifications of the Container Device Interface:
	// /dev/nvidia0. Nil if no specification has the device.
	Nodes []string
}

// Allocatable lists the allocatable devices of a resource.
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
	// Time is the time by the runtime's clock; for a reconciled event, the time of its detection.
	Time time.Time
	// Container is the container after the event.
	Container Container
	ExitCode  *uint32
	Signal    int // that ended the container; 0: no signal
	Device    string
	// Fault is a device fault. Container and Workload are its owner, empty if the fault is unattributed.
	Fault    *Fault
	Workload string
	Flap     *LinkFlap // of a port
	SMChange *SMChange // of a port
	// Reconciled reports that the event was not observed, but derived from a comparison of the runtime's list with the
	// known containers.
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
	// EventDevice is a container's first open of a device.
	EventDevice EventType = "device_open"
	// EventFault is a fault of a GPU or an HCA.
	EventFault EventType = "fault"
	// EventFlap is a carrier loss of an HCA's port that has ended.
	EventFlap EventType = "link_flap"
	// EventSM is the change of an InfiniBand port to another subnet manager.
	EventSM EventType = "sm_change"
)
