// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// board is what equal ports have in common.
type board struct{ hcaType, id, linkLayer string }

// hcaRoles are the roles of the HCAs of a refresh.
type hcaRoles struct {
	hcas       []model.HCA
	links      portLinks
	boards     map[board]float64 // highest rate of equal ports
	management map[string]bool   // HCAs that are for management
	used       map[string]bool   // HCAs on which workloads have queue pairs
	heldHCAs   map[string]bool   // HCAs of workloads, used or not
	read       map[string]bool   // HCAs that are read
	downPorts  map[portKey]bool
	before     map[string]bool // management in the previous refresh
}

func newRoles() *hcaRoles {
	return &hcaRoles{
		boards: map[board]float64{}, management: map[string]bool{}, used: map[string]bool{}, heldHCAs: map[string]bool{},
		read: map[string]bool{}, downPorts: map[portKey]bool{}, before: map[string]bool{},
	}
}

// update finds the roles of HCAs in a refresh, in the maps of the previous refresh.
func (r *hcaRoles) update(in *Input) {
	r.hcas, r.links = in.Facts.HCAs, byPort(r.links[:0], in.Facts.Links)
	r.management, r.before = r.before, r.management
	for _, names := range []map[string]bool{r.management, r.used, r.heldHCAs, r.read} {
		clear(names)
	}
	clear(r.boards)
	clear(r.downPorts)
	for i := range in.Shares.Objects {
		if s := &in.Shares.Objects[i]; s.Owner != 0 && s.Type == model.QP && s.Current > 0 {
			r.used[s.Device] = true
		}
	}
	for i := range in.Facts.Domains {
		if d := &in.Facts.Domains[i]; d.IsConsumer() {
			r.used[d.Device] = true
		}
	}
	maps.Copy(r.heldHCAs, r.used)
	for i := range in.Shares.Assigned {
		if a := &in.Shares.Assigned[i]; a.HCA != nil && a.Allocated != "" && a.Owner != 0 {
			r.heldHCAs[a.HCA.Name] = true
		}
	}
	for i := range r.hcas {
		h := &r.hcas[i]
		r.read[h.Name] = true
		for k := range h.Ports {
			p := &h.Ports[k]
			if b, ok := boardOf(h, p); ok {
				r.boards[b] = max(r.boards[b], p.RateBits)
			}
			if p.State != "" && p.State != stateActive {
				r.downPorts[portKey{h.Name, p.Number}] = true
			}
		}
	}
	r.findManagement()
}

// portLinks are interfaces, sorted by port.
type portLinks []*model.Link

func byPort(links portLinks, all []model.Link) portLinks {
	for i := range all {
		links = append(links, &all[i])
	}
	slices.SortStableFunc(links, func(a, b *model.Link) int { return comparePort(a, portKey{b.Device, b.Port}) })
	return links
}

func comparePort(l *model.Link, k portKey) int {
	return cmp.Or(strings.Compare(l.Device, k.device), cmp.Compare(l.Port, k.port))
}

// of returns the interfaces of a port. The zero key has the interfaces of physical functions without an HCA.
func (p portLinks) of(k portKey) []*model.Link {
	first, _ := slices.BinarySearchFunc(p, k, comparePort)
	end := first
	for end < len(p) && comparePort(p[end], k) == 0 {
		end++
	}
	return p[first:end]
}

// boardOf returns the group of ports that should have the same rate as p. VFs have the rate of a policy.
func boardOf(h *model.HCA, p *model.Port) (board, bool) {
	return board{h.Type, h.Board, p.LinkLayer}, !h.VF && h.Parent == "" && h.Board != "" && p.State == stateActive && p.RateBits > 0
}

// A NIC is for management below this part (1/n) of the rate of the node's fastest port, as in the recording rule
// instance_device:infiniband_port_management:info.
const managementPart = 4

// findManagement finds the management NICs: their ports are slow, no workload has a queue pair on them, and storage in
// the kernel does not use them. If all ports of a NIC are down, its role stays the same.
func (r *hcaRoles) findManagement() {
	fastest := 0.0
	for _, rate := range r.boards {
		fastest = max(fastest, rate)
	}
	for i := range r.hcas {
		h := &r.hcas[i]
		rate, active := 0.0, false
		for k := range h.Ports {
			if b, ok := boardOf(h, &h.Ports[k]); ok {
				rate, active = max(rate, r.boards[b]), true
			}
		}
		if !active && r.before[h.Name] || active && rate < fastest/managementPart && !r.used[h.Name] {
			r.management[h.Name] = true
		}
	}
	for name := range r.before { // the role of a missing HCA stays the same
		if !slices.ContainsFunc(r.hcas, func(h model.HCA) bool { return h.Name == name }) && len(r.management) < maxPorts {
			r.management[name] = true
		}
	}
}

// sharesLink reports whether an HCA shares the link of another HCA that is judged: a virtual function has the state,
// the rate and the errors of the link of its physical function.
func (r *hcaRoles) sharesLink(h *model.HCA) bool { return h.VF && r.read[h.PF] }

// follows reports whether an inactive port has no fault of its own. A container has returned a virtual function that no
// workload holds: CNI plugins set its interface down. A virtual function also follows a physical function without a
// link.
func (r *hcaRoles) follows(h *model.HCA, p *model.Port) bool {
	return h.VF && (!r.heldHCAs[h.Name] || r.downPorts[portKey{h.PF, p.Number}])
}

// linkOfAnother reports whether a port shares the link of a judged port, or has no fault of its own.
func (r *hcaRoles) linkOfAnother(l *model.Lingering) bool {
	for i := range r.hcas {
		h := &r.hcas[i]
		if h.Name != l.Device {
			continue
		}
		return h.Parent != "" || r.sharesLink(h) || r.follows(h, &model.Port{Number: l.Port})
	}
	return false
}
