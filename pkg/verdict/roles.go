// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"maps"
	"slices"

	"github.com/accelscope/accelscope/pkg/model"
)

// board is what equal ports have in common.
type board struct{ hcaType, id, linkLayer string }

// hcaRoles are what the HCAs of a refresh are for the node, and for each other.
type hcaRoles struct {
	hcas       []model.HCA
	links      map[portKey][]*model.Link
	boards     map[board]float64 // the highest rate of equal ports
	management map[string]bool   // HCAs that are found to be for management
	used       map[string]bool   // HCAs on which workloads have queue pairs
	heldHCAs   map[string]bool   // HCAs that workloads have, used or not
	read       map[string]bool   // HCAs that are read
	downPorts  map[portKey]bool
}

// newRoles finds the roles of HCAs in a refresh. Those for management in the refresh before are needed for ports that are down.
func newRoles(in *Input, management map[string]bool) *hcaRoles {
	r := &hcaRoles{
		hcas: in.Facts.HCAs, links: linksByPort(in.Facts.Links), boards: map[board]float64{}, management: map[string]bool{},
		used: map[string]bool{}, read: map[string]bool{}, downPorts: map[portKey]bool{},
	}
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
	r.heldHCAs = maps.Clone(r.used)
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
	r.findManagement(management)
	return r
}

// linksByPort returns the interfaces of each port. Those of physical functions without an HCA are below the zero key.
func linksByPort(all []model.Link) map[portKey][]*model.Link {
	links := make(map[portKey][]*model.Link, len(all))
	for i := range all {
		l := &all[i]
		key := portKey{l.Device, l.Port}
		links[key] = append(links[key], l)
	}
	return links
}

// boardOf returns what a port has in common with others whose rate it should have. VFs have the rate of a policy.
func boardOf(h *model.HCA, p *model.Port) (board, bool) {
	return board{h.Type, h.Board, p.LinkLayer}, !h.VF && h.Parent == "" && h.Board != "" && p.State == stateActive && p.RateBits > 0
}

// managementPart is the part of the rate of the node's fastest port below which a NIC is for management, as in the recording rule
// instance_device:infiniband_port_management:info.
const managementPart = 4

// findManagement finds the NICs for management: their ports are slow, and neither a workload has a queue pair on them, nor storage in the
// kernel. One whose ports are all down stays what it was.
func (r *hcaRoles) findManagement(before map[string]bool) {
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
		if !active && before[h.Name] || active && rate < fastest/managementPart && !r.used[h.Name] {
			r.management[h.Name] = true
		}
	}
	for name := range before { // an HCA that is gone stays what it was
		if !slices.ContainsFunc(r.hcas, func(h model.HCA) bool { return h.Name == name }) && len(r.management) < maxPorts {
			r.management[name] = true
		}
	}
}

// sharesLink reports whether the link of an HCA is that of another one, which is judged: a virtual function has the state, the rate and the
// errors of the link of its physical function.
func (r *hcaRoles) sharesLink(h *model.HCA) bool { return h.VF && r.read[h.PF] }

// follows reports whether a port that is not active has no fault of its own. A virtual function that nobody has was returned by a
// container: CNI plugins set its interface down. That of a physical function without a link has none either.
func (r *hcaRoles) follows(h *model.HCA, p *model.Port) bool {
	return h.VF && (!r.heldHCAs[h.Name] || r.downPorts[portKey{h.PF, p.Number}])
}

// linkOfAnother reports whether a port has the link of a port that is judged, or no fault of its own.
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
