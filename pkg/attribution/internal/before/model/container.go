// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// Container is one container, as a runtime or the kubelet tells of it. What
// one of them does not tell is empty.
type Container struct {
	ID      string // 64 hexadecimal digits as a rule; containerd lets a client choose
	Runtime string // containerd, cri-o, docker, podman
	// Name is that of the pod's specification in a pod, else the one that the
	// runtime knows it by.
	Name string
	// Namespace, Pod and PodUID are those of Kubernetes. PodUID is the one in
	// the cgroup path, which of a static pod is the hash of its file.
	Namespace string
	Pod       string
	PodUID    string
	// Sandbox is the container that only holds the namespaces of a pod.
	Sandbox bool

	Image   string // as it was asked for: registry/name:tag
	ImageID string // its digest
	// Labels are labels and annotations of the container and its pod, those that
	// the user listed and no others.
	Labels map[string]string
	// Cgroup is the path below the root of the hierarchy, for containers whose
	// id is not in it.
	Cgroup string
	// PID of the first process as the host numbers it; 0 when none runs.
	PID int
	// Devices are the device nodes that it was given: /dev/infiniband/uverbs0.
	Devices []string
	// AllDevices says that it may use any device of the node (it is privileged):
	// its Devices are no choice of anybody.
	AllDevices bool
	// GPURequests are the GPUs that the runtime was asked for by name, where they are no
	// Devices yet (docker run --gpus): UUIDs, numbers, or all; amd.com/gpu=all where
	// they are AMD's for sure.
	GPURequests []string

	Status   ContainerStatus
	Health   string  // healthy, unhealthy, starting; empty without a health check
	Restarts *uint64 // nil when nobody counts them
	Created  time.Time
	Started  time.Time
	Finished time.Time
	ExitCode *uint32 // of one that has exited
}

// ContainerStatus is what a container does.
type ContainerStatus string

// The states of containers, of all runtimes in the same words.
const (
	ContainerCreated ContainerStatus = "created"
	ContainerRunning ContainerStatus = "running"
	ContainerPaused  ContainerStatus = "paused"
	ContainerExited  ContainerStatus = "exited"
)

// Pod is one pod, as the kubelet tells of it.
type Pod struct {
	UID string
	// StaticUID is the hash of a static pod's file, which stands for the UID in
	// the cgroup path.
	StaticUID string
	Namespace string
	Name      string
	Labels    map[string]string // those that the user listed, annotations included
	Networks  []PodNetwork
}

// PodNetwork is one entry of the network-status annotation of a pod (Network
// Plumbing Working Group), whose device-info names the device behind it.
type PodNetwork struct {
	Name       string // of the network attachment: namespace/name
	Interface  string // in the pod
	PCIAddress string // 0000:18:00.2
	RDMADevice string // mlx5_2
}

// Allocation is one device that the kubelet has given to a container, by device
// plugin or claim.
type Allocation struct {
	Namespace string
	Pod       string
	Container string
	Resource  string // nvidia.com/gpu, rdma/hca_shared; of a claim DRIVER/POOL
	ID        string // as the plugin calls it: a GPU's UUID, a PCI address, anything
	Claim     string // name of the resource claim; empty for device plugins
}

// Allocatable is how many devices of a resource the node has to give.
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

// NodeStorage is the file system that ephemeral storage is taken from.
type NodeStorage struct {
	UsedBytes      uint64
	AvailableBytes uint64
	CapacityBytes  uint64
}

// Event is something that happened to a container.
type Event struct {
	Type EventType
	// Time is when it happened, by the runtime's clock; of what was not seen
	// happening, when it was noticed.
	Time time.Time
	// Container is what is known of it after the event.
	Container Container
	ExitCode  *uint32
	Signal    int // that ended it; 0 for none
	Device    string
	// Reconciled says that nobody saw it happen: it was found when the list of a
	// runtime was compared with what was known.
	Reconciled bool
}

// EventType says what happened.
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
	// EventDevice is that a container opened a device for the first time.
	EventDevice EventType = "device_open"
)
