// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"strings"

	"github.com/accelscope/accelscope/pkg/attribution/internal/before/model"
)

// maxDeviceName is the size of an ib_device's name in the kernel.
const maxDeviceName = 64

// hcas finds HCAs by what others call them.
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

// find gives the HCA of a PCI function; by its name only one that is not known
// to be another function.
func (h hcas) find(pci, name string) *model.HCA {
	if hca := h.byPCI[pci]; hca != nil {
		return hca
	}
	if hca := h.byName[name]; hca != nil && (pci == "" || hca.PCIAddress == "") {
		return hca
	}
	return nil
}

// describe fills in what is known of an HCA.
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

// thing tells devices apart: by the HCA, by the GPU, by the PCI function, or by
// resource and id.
type thing struct {
	hca               *model.HCA
	gpu               *model.GPU
	pci, resource, id string
}

func (s *DeviceShare) thing() thing {
	switch {
	case s.HCA != nil:
		return thing{hca: s.HCA}
	case s.GPU != nil:
		return thing{gpu: s.GPU}
	case s.PCIAddress != "":
		return thing{pci: s.PCIAddress}
	case s.Device != "":
		return thing{resource: s.Resource, id: s.Device}
	}
	return thing{resource: s.Resource, id: s.ID}
}

type assignedKey struct {
	owner int
	thing thing
}

type podDevice struct {
	namespace, pod string
	thing          thing
}

// assignedTable is the shares, which can be found by who has what.
type assignedTable struct {
	o     *owners
	rows  []DeviceShare
	index map[assignedKey]int
	ofPod map[podDevice]int // those of containers, by their pod
}

// add adds a share, or to one that is there what it tells in addition.
func (t *assignedTable) add(share DeviceShare) {
	k := assignedKey{share.Owner, share.thing()}
	if i, ok := t.index[k]; ok {
		t.rows[i].learn(&share)
		return
	}
	i := len(t.rows)
	t.rows = append(t.rows, share)
	t.index[k] = i
	if owner := t.o.list[share.Owner]; owner.Container != "" {
		t.ofPod[podDevice{owner.Namespace, owner.Pod, k.thing}] = i
	}
}

// addToPod adds a share of a pod, unless one of its containers has the device.
func (t *assignedTable) addToPod(share DeviceShare, pod model.Entity) {
	if i, ok := t.ofPod[podDevice{valid(pod.Namespace), valid(pod.Pod), share.thing()}]; ok {
		t.rows[i].learn(&share)
		return
	}
	share.Owner = t.o.number(model.Entity{
		Workload: pod.Namespace + "/" + pod.Pod, Namespace: pod.Namespace, Pod: pod.Pod, PodUID: pod.PodUID,
	})
	t.add(share)
}

// learn fills in what another share of the same device tells.
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

// nameShared gives the devices of a container the resource that it has a share of,
// if there is one alone that they can be of. Where no device is known the resource
// is told without.
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

// isPCI says whether s is the address of a PCI function: 0000:18:00.2.
func isPCI(s string) bool {
	const form = "hhhh:hh:hh.h"
	if len(s) != len(form) {
		return false
	}
	for i := range len(s) {
		c := s[i]
		hex := '0' <= c && c <= '9' || 'a' <= c && c <= 'f' || 'A' <= c && c <= 'F'
		if form[i] == 'h' && !hex || form[i] != 'h' && c != form[i] {
			return false
		}
	}
	return true
}
