// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"cmp"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// maxDeviceName is the kernel's limit for the name of an ib_device.
const maxDeviceName = 64

type hcas struct {
	byPCI, byName, byChar, byNetdev map[string]*model.HCA
	sameName                        map[string]bool // names that several HCAs have
}

func newHCAs(list []model.HCA, functions map[string]*model.HCA) hcas {
	h := hcas{
		byPCI:  functions,
		byName: indexBy(list, func(h *model.HCA) string { return h.Name }),
		byChar: indexBy(list, func(h *model.HCA) string { return h.CharDevice }), byNetdev: map[string]*model.HCA{},
		sameName: map[string]bool{},
	}
	for i := range list {
		if h.byName[list[i].Name] != &list[i] {
			h.sameName[list[i].Name] = true
		}
		for _, p := range list[i].Ports {
			if p.Netdev != "" && h.byNetdev[p.Netdev] == nil {
				h.byNetdev[p.Netdev] = &list[i]
			}
		}
	}
	return h
}

// indexBy finds the first device of each key that is not empty.
func indexBy[T any](list []T, key func(*T) string) map[string]*T {
	index := make(map[string]*T, len(list))
	for i := range list {
		if k := key(&list[i]); k != "" && index[k] == nil {
			index[k] = &list[i]
		}
	}
	return index
}

// find returns the HCA with a PCI address. It finds an HCA by name only if an address is unknown.
func (h hcas) find(pci, name string) *model.HCA {
	if hca := h.byPCI[pci]; hca != nil {
		return hca
	}
	if hca := h.byName[name]; hca != nil && (pci == "" || hca.PCIAddress == "") {
		return hca
	}
	return nil
}

// named returns the HCA with a name, nil if no HCA or several HCAs have the name: each network namespace has its own
// names.
func (h hcas) named(name string) *model.HCA {
	if h.sameName[name] {
		return nil
	}
	return h.byName[name]
}

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

// deviceKey identifies a device by HCA, GPU, PCI function, or resource and ID.
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

// add adds a share, or completes the share of the same owner and device.
func (e *evidence) add(share DeviceShare) {
	share.Origin = cmp.Or(share.Allocated, e.from)
	k := assignedKey{share.Owner, share.key()}
	if i, ok := e.index[k]; ok {
		e.rows[i].learn(&share)
		return
	}
	i := len(e.rows)
	e.rows = append(e.rows, share)
	e.index[k] = i
	if owner := e.o.labels(share.Owner); owner.Container != "" {
		e.ofPod[podDevice{owner.Namespace, owner.Pod, k.device}] = i
	}
}

// addToPod adds a share of a pod, unless a container of the pod has the device.
func (e *evidence) addToPod(share DeviceShare, namespace, pod, uid string) {
	share.Origin = cmp.Or(share.Allocated, e.from)
	if i, ok := e.ofPod[podDevice{valid(namespace), valid(pod), share.key()}]; ok {
		e.rows[i].learn(&share)
		return
	}
	share.Owner = e.o.ofPod(namespace, pod, uid)
	e.add(share)
}

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
	if s.Claim == "" {
		s.Claim, s.ShareID = o.Claim, o.ShareID
	}
	s.Given, s.Unhealthy = s.Given || o.Given, s.Unhealthy || o.Unhealthy
	if slices.Index(strength, o.Allocated) > slices.Index(strength, s.Allocated) {
		s.Allocated = o.Allocated
	}
	if slices.Index(strength, o.Origin) > slices.Index(strength, s.Origin) {
		s.Origin = o.Origin
	}
}

// nameShared sets the resource of a container's devices if all its shares have one resource. If the container has no
// known device, it adds the resource without a device.
func (e *evidence) nameShared(shared []DeviceShare, known func(*DeviceShare) bool) {
	resources := map[int]string{}
	for _, s := range shared {
		if one, ok := resources[s.Owner]; ok && one != s.Resource {
			resources[s.Owner] = ""
			continue
		}
		resources[s.Owner] = s.Resource
	}
	named := map[int]bool{}
	for i := range e.rows {
		r := &e.rows[i]
		if resource := resources[r.Owner]; resource != "" && r.Resource == "" && known(r) {
			r.Resource = resource
			named[r.Owner] = true
		}
	}
	for _, s := range shared {
		if !named[s.Owner] {
			e.add(s)
		}
	}
}

func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
