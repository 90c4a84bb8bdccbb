// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"cmp"
	"strings"

	"github.com/accelscope/accelscope/pkg/attribution/internal/before/model"
)

// DeviceShare is one device that a workload was given.
type DeviceShare struct {
	Owner int
	// Device is the HCA, or the UUID of the GPU; of what is none, and no PCI function
	// either, it is how the plugin calls it, or the name of the device node of a GPU
	// that nobody else tells of: nvidia0, dri/card1.
	Device string
	// Node is the path of the device node of a GPU that the workload has, where it is
	// known.
	Node string
	// Resource and ID are those of the kubelet's allocation, empty without one.
	Resource   string
	ID         string
	PCIAddress string
	// PF is the HCA of the physical function when this is a virtual one.
	PF string
	// GUID is that of the port, or of the node where the port has none.
	GUID string
	// HCA is nil for what is none and for one that is not seen, and so is GPU.
	HCA *model.HCA
	GPU *model.GPU
	// Given says that it was given away as a whole: the PCI function by the kubelet, or
	// the HCA to a network namespace.
	Given bool
}

// deviceShares joins all that tells whose a device is: what the kubelet gave
// away, the device nodes of containers and the GPUs that they asked for, the
// networks of pods, and the network namespace that a device was moved to. What several of them tell is one share,
// and what is told of a pod adds none to those of its containers.
func deviceShares(s model.Snapshot, o *owners) []DeviceShare {
	if s.Allocations == nil && s.Containers == nil && s.Pods == nil && s.Namespaces == nil {
		return nil
	}
	e := evidence{
		s: s, o: o, hcas: newHCAs(s.HCAs), gpus: newGPUs(s.GPUs), lives: newLives(s.Containers),
		t: assignedTable{o: o, rows: []DeviceShare{}, index: map[assignedKey]int{}, ofPod: map[podDevice]int{}},
	}
	shared, unplaced := e.allocations()
	e.deviceNodes(unplaced)
	e.t.nameShared(shared, func(r *DeviceShare) bool { return r.HCA != nil })
	e.t.nameShared(unplaced, func(r *DeviceShare) bool { return r.GPU != nil })
	e.networks()
	e.namespaces()
	return e.t.rows
}

// evidence is the facts of whose devices are, as they can be looked up.
type evidence struct {
	s     model.Snapshot
	o     *owners
	hcas  hcas
	gpus  gpus
	lives lives
	t     assignedTable
}

// allocations books what the kubelet gave away. Of a resource that many share,
// whose ids name no device, the shares are returned, and so are those of GPUs by an
// id that is none of theirs.
func (e *evidence) allocations() (shared, unplaced []DeviceShare) {
	for i := range e.s.Allocations {
		a := &e.s.Allocations[i]
		owner := e.holder(a)
		if owner == nobody {
			continue
		}
		share := DeviceShare{Owner: owner, Resource: valid(a.Resource), ID: valid(a.ID)}
		id, gpu := a.ID, givesGPU(a.Resource)
		if gpu {
			id = WholeGPU(a.ID)
			// A GPU that is given to several has a number behind its UUID.
			share.Device = valid(id)
			share.describeGPU(e.gpus.find(id))
		}
		switch {
		case share.GPU != nil:
		case isPCI(id):
			share.Device, share.PCIAddress, share.Given = "", strings.ToLower(id), true
			share.describe(e.hcas.byPCI[share.PCIAddress])
		case gpu && len(e.s.GPUs) > 0:
			unplaced = append(unplaced, share)
			continue
		case strings.HasPrefix(a.Resource, "rdma/"):
			shared = append(shared, share)
			continue
		default:
			share.Device, _, _ = strings.Cut(share.ID, "::")
		}
		e.t.add(share)
	}
	return shared, unplaced
}

// holder is the owner of an allocation, of which the kubelet tells names only:
// the container of these names that lives. Without one the pod is gone, or not
// there yet.
func (e *evidence) holder(a *model.Allocation) int {
	if c := e.lives.containers[containerName{a.Namespace, a.Pod, a.Container}]; c != nil {
		return e.o.number(entityOf(c, model.Entity{}))
	}
	if e.s.Containers != nil || a.Pod == "" {
		return nobody
	}
	return e.o.number(model.Entity{ // nobody tells of containers: the names must do
		Workload:  a.Namespace + "/" + a.Pod + "/" + a.Container,
		Namespace: a.Namespace, Pod: a.Pod, Container: a.Container,
	})
}

// networks books the devices behind the networks of pods.
func (e *evidence) networks() {
	for i := range e.s.Pods {
		p := &e.s.Pods[i]
		if e.s.Containers != nil && !e.lives.pod(p) {
			continue
		}
		for _, n := range p.Networks {
			var share DeviceShare
			if isPCI(n.PCIAddress) {
				share.PCIAddress = strings.ToLower(n.PCIAddress)
			}
			if len(n.RDMADevice) < maxDeviceName {
				share.Device = valid(n.RDMADevice)
			}
			share.describe(e.hcas.find(share.PCIAddress, share.Device))
			if share.HCA == nil && e.hcas.byName[share.Device] != nil {
				share.Device = "" // by now the name of another function
			}
			if share.PCIAddress != "" || share.HCA != nil {
				e.t.addToPod(share, model.Entity{Namespace: p.Namespace, Pod: p.Name, PodUID: p.UID})
			}
		}
	}
}

// namespaces books the devices that were moved to a network namespace on whoever
// is in it.
func (e *evidence) namespaces() {
	in := make(map[uint64]model.Entity, len(e.s.Namespaces))
	for _, n := range e.s.Namespaces {
		if !n.Host {
			in[n.Inode] = e.s.Entities[n.Cgroup]
		}
	}
	for i := range e.s.HCAs {
		h := &e.s.HCAs[i]
		entity := in[h.Netns]
		if h.Netns == 0 || entity.Workload == "" {
			continue
		}
		share := DeviceShare{Given: true}
		share.describe(h)
		if entity.Pod != "" {
			e.t.addToPod(share, entity)
			continue
		}
		share.Owner = e.o.number(entity)
		e.t.add(share)
	}
}

// containerName is how the kubelet calls a container.
type containerName struct{ namespace, pod, name string }

// lives finds the containers of pods that live.
type lives struct {
	containers map[containerName]*model.Container
	uids       map[string]bool        // of pods
	pods       map[containerName]bool // by name, of which no UID is told
}

func newLives(containers []model.Container) lives {
	l := lives{
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

func (l lives) pod(p *model.Pod) bool {
	return l.uids[p.UID] || p.StaticUID != "" && l.uids[p.StaticUID] ||
		l.pods[containerName{namespace: p.Namespace, pod: p.Name}]
}

// newer says which of two containers of the same names is meant: a pod may have
// been made anew, and a container restarted.
func newer(a, b *model.Container) bool {
	running := func(c *model.Container) int {
		if c.Status == model.ContainerRunning {
			return 1
		}
		return 0
	}
	return cmp.Or(cmp.Compare(running(a), running(b)), a.Created.Compare(b.Created)) > 0
}
