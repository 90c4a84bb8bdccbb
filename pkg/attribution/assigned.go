// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// maxDeviceName is the size of the name of an ib_device in the kernel.
const maxDeviceName = 64

// hcas finds HCAs by PCI address, name or character device.
type hcas struct {
	byPCI, byName, byChar map[string]*model.HCA
}

func newHCAs(list []model.HCA) hcas {
	h := hcas{map[string]*model.HCA{}, map[string]*model.HCA{}, map[string]*model.HCA{}}
	put := func(m map[string]*model.HCA, key string, hca *model.HCA) {
		if key != "" && m[key] == nil {
			m[key] = hca
		}
	}
	for i := range list {
		put(h.byPCI, strings.ToLower(list[i].PCIAddress), &list[i])
		put(h.byName, list[i].Name, &list[i])
		put(h.byChar, list[i].CharDevice, &list[i])
	}
	return h
}

// find returns the HCA with a PCI address. It matches by name only if the addresses do not
// contradict each other.
func (h hcas) find(pci, name string) *model.HCA {
	if hca := h.byPCI[pci]; hca != nil {
		return hca
	}
	if hca := h.byName[name]; hca != nil && (pci == "" || hca.PCIAddress == "") {
		return hca
	}
	return nil
}

// describe copies the names and addresses of an HCA to the share.
func (s *DeviceShare) describe(h *model.HCA) {
	if h == nil {
		return
	}
	s.HCA, s.Device, s.PF, s.GUID = h, h.Name, h.PF, h.NodeGUID
	if h.PCIAddress != "" {
		s.PCIAddress = strings.ToLower(h.PCIAddress)
	}
	for i := range h.Ports {
		if guid := h.Ports[i].PortGUID; guid != "" {
			s.GUID = guid
			return
		}
	}
}

// deviceKey identifies a device: by HCA, GPU, PCI function, or resource and ID.
type deviceKey struct {
	hca               *model.HCA
	gpu               *model.GPU
	pci, resource, id string
}

func (s *DeviceShare) key() deviceKey {
	switch {
	case s.HCA != nil:
		return deviceKey{hca: s.HCA}
	case s.GPU != nil:
		return deviceKey{gpu: s.GPU}
	case s.PCIAddress != "":
		return deviceKey{pci: s.PCIAddress}
	case s.Device != "":
		return deviceKey{resource: s.Resource, id: s.Device}
	}
	return deviceKey{resource: s.Resource, id: s.ID}
}

type assignedKey struct {
	owner  int
	device deviceKey
}

type podDevice struct {
	namespace, pod string
	device         deviceKey
}

// assignedTable lists the shares and finds them by owner and device.
type assignedTable struct {
	o     *users
	rows  []DeviceShare
	index map[assignedKey]int
	ofPod map[podDevice]int // containers' rows by pod
}

// add adds a share, or completes the existing share of the same owner and device.
func (t *assignedTable) add(share DeviceShare) {
	k := assignedKey{share.Owner, share.key()}
	if i, ok := t.index[k]; ok {
		t.rows[i].learn(&share)
		return
	}
	i := len(t.rows)
	t.rows = append(t.rows, share)
	t.index[k] = i
	if owner := t.o.labels(share.Owner); owner.Container != "" {
		t.ofPod[podDevice{owner.Namespace, owner.Pod, k.device}] = i
	}
}

// addToPod adds a share of a pod, unless one of its containers has the device.
func (t *assignedTable) addToPod(share DeviceShare, namespace, pod, uid string) {
	if i, ok := t.ofPod[podDevice{valid(namespace), valid(pod), share.key()}]; ok {
		t.rows[i].learn(&share)
		return
	}
	share.Owner = t.o.ofPod(namespace, pod, uid)
	t.add(share)
}

// learn fills empty fields from another share of the same device.
func (s *DeviceShare) learn(o *DeviceShare) {
	if s.Resource == "" {
		s.Resource, s.ID = o.Resource, o.ID
	}
	if s.Device == "" {
		s.Device = o.Device
	}
	if s.Node == "" {
		s.Node = o.Node
	}
	s.Given = s.Given || o.Given
}

// nameShared sets the resource of a container's devices if the container has shares of one
// resource only. If the container has no known device, it adds the resource without a device.
func (t *assignedTable) nameShared(shared []DeviceShare, known func(*DeviceShare) bool) {
	resources := map[int]string{}
	for _, s := range shared {
		if one, ok := resources[s.Owner]; ok && one != s.Resource {
			resources[s.Owner] = ""
			continue
		}
		resources[s.Owner] = s.Resource
	}
	named := map[int]bool{}
	for i := range t.rows {
		r := &t.rows[i]
		if resource := resources[r.Owner]; resource != "" && r.Resource == "" && known(r) {
			r.Resource = resource
			named[r.Owner] = true
		}
	}
	for _, s := range shared {
		if !named[s.Owner] {
			t.add(s)
		}
	}
}

func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
