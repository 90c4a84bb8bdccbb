// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"cmp"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// DeviceShare is one device that is assigned to a workload.
type DeviceShare struct {
	Owner int
	// Device is the HCA or the GPU's UUID. For other devices without a PCI function it is the plugin's ID, for a GPU
	// that no source lists the name of its device node: nvidia0, dri/card1.
	Device string
	Node   string
	// Resource and ID come from the kubelet's allocation, and may be empty.
	Resource   string
	ID         string
	PCIAddress string
	// PF is the HCA of a virtual function's physical function.
	PF string
	// GUID is the port's GUID or, if unknown, the node's.
	GUID string
	// HCA and GPU are nil if the device is of another kind or not visible.
	HCA *model.HCA
	GPU *model.GPU
	// Given reports exclusive assignment: the kubelet allocated the PCI function, or the HCA is in the owner's network
	// namespace.
	Given bool
	// Allocated is the evidence that the GPU, or the HCA as an RDMA device, is allocated to the owner. It is empty for
	// other devices, for a PCI function that is only a network interface, and for a container that may use all devices.
	Allocated Evidence
	// Origin is the strongest source of the assignment, even if the assignment is not an allocation.
	Origin Evidence
	// Claim is the name of the resource claim with the device, ShareID the part of the device that the claim has. Claim
	// is empty without a claim, ShareID also for a claim of the whole device.
	Claim, ShareID string
	// Unhealthy reports that the device's plugin or driver reports the device as unhealthy to the kubelet.
	Unhealthy bool
}

// Evidence is the source of an allocation.
type Evidence string

// The sources of allocations, weakest first. For an HCA only the last two are exclusive.
const (
	EvidenceEnvironment Evidence = "environment"   // the environment of a process of the Slurm job names the GPU
	EvidenceNode        Evidence = "device_node"   // the container has the device node
	EvidenceRuntime     Evidence = "runtime"       // the container requested the GPU from its runtime
	EvidenceCgroup      Evidence = "device_cgroup" // the Slurm job's device cgroup, or its device program, allows the GPU by name
	EvidenceNetwork     Evidence = "network"       // the network-status annotation of the pod names the HCA
	EvidenceNamespace   Evidence = "namespace"     // the HCA is in the network namespace of the owner
	EvidenceKubelet     Evidence = "kubelet"       // the kubelet allocated the GPU or the PCI function
)

var strength = []Evidence{
	"", EvidenceEnvironment, EvidenceNode, EvidenceRuntime, EvidenceCgroup, EvidenceNetwork, EvidenceNamespace, EvidenceKubelet,
}

// assigned joins all sources of assignments: the kubelet's allocations, device nodes and GPU requests of containers,
// networks of pods, network namespaces of devices, and GPUs of Slurm jobs. Several sources of an assignment give one
// share. A pod gets no share of a device that one of its containers has.
func (o *users) assigned(s *model.Snapshot) []DeviceShare {
	if s.Allocations == nil && s.Containers == nil && s.Pods == nil && s.Namespaces == nil && s.JobGPUs == nil {
		return nil
	}
	e := evidence{
		s: s, o: o, hcas: newHCAs(s.HCAs, o.functions), gpus: newGPUs(s.GPUs), live: newLiveContainers(s.Containers),
		rows: []DeviceShare{}, index: map[assignedKey]int{}, ofPod: map[podDevice]int{},
	}
	e.from = EvidenceKubelet
	shared, unplaced := e.allocations()
	e.from = EvidenceNode
	e.deviceNodes(unplaced)
	e.from = EvidenceKubelet
	e.nameShared(shared, func(r *DeviceShare) bool { return r.HCA != nil })
	e.nameShared(unplaced, func(r *DeviceShare) bool { return r.GPU != nil })
	e.namespaces()
	e.from = EvidenceNetwork
	e.networks()
	e.jobs()
	return e.rows
}

type evidence struct {
	s     *model.Snapshot
	o     *users
	hcas  hcas
	gpus  gpus
	live  liveContainers
	rows  []DeviceShare
	index map[assignedKey]int
	ofPod map[podDevice]int // rows of containers, by pod
	from  Evidence          // the current source
}

// allocations adds the kubelet's allocations, except two kinds, which it returns: shared resources whose IDs do not
// identify a device, and GPUs with an unknown ID.
func (e *evidence) allocations() (shared, unplaced []DeviceShare) {
	for i := range e.s.Allocations {
		a := &e.s.Allocations[i]
		owner := e.holder(a)
		if owner == unattributed {
			continue
		}
		share := DeviceShare{
			Owner: owner, Resource: valid(a.Resource), ID: valid(a.ID), Claim: valid(a.Claim), ShareID: valid(a.ShareID),
			Unhealthy: a.Unhealthy,
		}
		if e.claimed(a, share) {
			continue
		}
		id, gpu := a.ID, givesGPU(a.Resource)
		if gpu {
			id = WholeGPU(a.ID)
			// The ID of a time-sliced GPU is the UUID and a number.
			share.Device = valid(id)
			share.describeGPU(e.placed(a))
		}
		switch {
		case share.GPU != nil:
			share.Allocated = EvidenceKubelet
		case model.IsPCIAddress(id):
			share.Device, share.PCIAddress, share.Given = "", strings.ToLower(id), true
			share.describe(e.hcas.byPCI[share.PCIAddress])
			if mayUse(e.live.containers[containerName{a.Namespace, a.Pod, a.Container}], share.HCA) {
				share.Allocated = EvidenceKubelet
			}
		case gpu && len(e.s.GPUs) > 0:
			unplaced = append(unplaced, share)
			continue
		case strings.HasPrefix(a.Resource, "rdma/"):
			shared = append(shared, share)
			continue
		default:
			share.Device, _, _ = strings.Cut(share.ID, "::")
			// EFA's plugin uses names of RDMA devices.
			if h := e.hcas.named(share.Device); h != nil {
				share.describe(h)
				share.Given = share.ID == share.Device
				if mayUse(e.live.containers[containerName{a.Namespace, a.Pod, a.Container}], h) {
					share.Allocated = EvidenceKubelet
				}
			}
		}
		e.add(share)
	}
	return shared, unplaced
}

// placed returns the GPU of an allocation, nil if unknown. An ID that only stands for a share is not evidence: the
// container must have the GPU that the ID names.
func (e *evidence) placed(a *model.Allocation) *model.GPU {
	gpu, share := e.gpus.ofPlugin(a.Resource, a.ID)
	if share && !e.has(e.live.containers[containerName{a.Namespace, a.Pod, a.Container}], gpu) {
		return nil
	}
	return gpu
}

// has reports whether a container has the GPU by its device nodes, or by a request to its runtime for this GPU alone.
func (e *evidence) has(c *model.Container, g *model.GPU) bool {
	if c == nil || g == nil {
		return false
	}
	return !c.AllDevices && slices.ContainsFunc(g.Nodes, func(path string) bool { return slices.Contains(c.Devices, path) }) ||
		slices.ContainsFunc(c.GPURequests, func(name string) bool {
			found := e.gpus.named(name)
			return len(found) == 1 && found[0] == g && name != "all" && !strings.HasSuffix(name, "=all")
		})
}

// mayUse reports whether a container has the HCA's device node, which is missing if the PCI function is only a network
// interface for the container. If the device nodes are unknown, mayUse returns true.
func mayUse(c *model.Container, h *model.HCA) bool {
	switch {
	case h == nil:
		return false
	case c == nil || c.AllDevices || c.Devices == nil || h.CharDevice == "":
		return true
	}
	return slices.Contains(c.Devices, uverbsDir+h.CharDevice)
}

// holder returns the owner of an allocation. The kubelet reports only names: holder looks for a live container with
// these names. Without it, the pod has ended or has not started.
func (e *evidence) holder(a *model.Allocation) int {
	if c := e.live.containers[containerName{a.Namespace, a.Pod, a.Container}]; c != nil {
		return e.o.ofContainer(c)
	}
	if e.s.Containers != nil || a.Pod == "" {
		return unattributed
	}
	return e.o.a.Use(e.o.OfNames(a.Namespace, a.Pod, a.Container)) // no source lists containers
}

// networks adds the devices behind the networks of pods. The pod's author may write the annotation: it does not get a
// device that the kubelet or the kernel gave to another pod.
func (e *evidence) networks() {
	for i := range e.s.Pods {
		p := &e.s.Pods[i]
		if e.s.Containers != nil && !e.live.pod(p) {
			continue
		}
		for _, n := range p.Networks {
			var share DeviceShare
			if model.IsPCIAddress(n.PCIAddress) {
				share.PCIAddress = strings.ToLower(n.PCIAddress)
			}
			if len(n.RDMADevice) < maxDeviceName {
				share.Device = valid(n.RDMADevice)
			}
			share.describe(e.hcas.find(share.PCIAddress, share.Device))
			if share.HCA == nil && e.hcas.byName[share.Device] != nil {
				share.Device = "" // another function has the name now
			}
			if share.HCA != nil && n.RDMADevice != "" {
				share.Allocated = EvidenceNetwork
			}
			if (share.PCIAddress != "" || share.HCA != nil) && !e.givenToOther(&share, p) {
				e.addToPod(share, p.Namespace, p.Name, p.UID)
			}
		}
	}
}

// givenToOther reports whether a device is given to another owner than the pod.
func (e *evidence) givenToOther(share *DeviceShare, p *model.Pod) bool {
	for i := range e.rows {
		if r := &e.rows[i]; r.Given && r.key() == share.key() {
			if o := e.o.labels(r.Owner); o.Namespace != valid(p.Namespace) || o.Pod != valid(p.Name) {
				return true
			}
		}
	}
	return false
}

// namespaces assigns devices in a network namespace to the owner of its processes.
func (e *evidence) namespaces() {
	in := make(map[uint64]model.CgroupID, len(e.s.Namespaces))
	for _, n := range e.s.Namespaces {
		if !n.Host {
			in[n.Inode] = n.Cgroup
		}
	}
	for i := range e.s.HCAs {
		h := &e.s.HCAs[i]
		owner := e.o.Of(in[h.Netns])
		if h.Netns == 0 || owner == identity.Unattributed {
			continue
		}
		share := DeviceShare{Given: true, Allocated: EvidenceNamespace}
		share.describe(h)
		if labels := e.o.Owner(owner); labels.Pod != "" {
			e.addToPod(share, labels.Namespace, labels.Pod, e.o.Info(owner).PodUID)
			continue
		}
		share.Owner = e.o.a.Use(owner)
		e.add(share)
	}
}

type containerName struct{ namespace, pod, name string }

// liveContainers finds containers and pods that have not ended.
type liveContainers struct {
	containers map[containerName]*model.Container
	uids       map[string]bool        // UIDs of pods
	pods       map[containerName]bool // by name, for pods without a UID
}

func newLiveContainers(containers []model.Container) liveContainers {
	l := liveContainers{
		containers: make(map[containerName]*model.Container, len(containers)),
		uids:       map[string]bool{}, pods: map[containerName]bool{},
	}
	for i := range containers {
		c := &containers[i]
		if c.Pod == "" || c.Status == model.ContainerExited {
			continue
		}
		if c.PodUID != "" {
			l.uids[c.PodUID] = true
		} else {
			l.pods[containerName{namespace: c.Namespace, pod: c.Pod}] = true
		}
		name := containerName{c.Namespace, c.Pod, c.Name}
		if old := l.containers[name]; !c.Sandbox && (old == nil || newer(c, old)) {
			l.containers[name] = c
		}
	}
	return l
}

func (l liveContainers) pod(p *model.Pod) bool {
	return l.uids[p.UID] || p.StaticUID != "" && l.uids[p.StaticUID] ||
		l.pods[containerName{namespace: p.Namespace, pod: p.Name}]
}

// replaced reports whether containerd lists an ended container as not started: after a reboot of the node or a restart
// of the sensor it has no task, while another container of its name runs in the pod.
func (l liveContainers) replaced(c *model.Container) bool {
	now := l.containers[containerName{c.Namespace, c.Pod, c.Name}]
	return c.Pod != "" && c.Status == model.ContainerCreated && now != nil && now != c && now.Status == model.ContainerRunning
}

// newer reports whether a replaces b of the same names: pods are recreated, and containers restarted.
func newer(a, b *model.Container) bool {
	running := func(c *model.Container) int {
		if c.Status == model.ContainerRunning {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(running(a), running(b)), a.Created.Compare(b.Created)) > 0
}
