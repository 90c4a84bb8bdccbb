// SPDX-License-Identifier: Apache-2.0

package overview

import (
	"cmp"
	"slices"

	"github.com/accelscope/accelscope/pkg/model"
)

// Device is the state of an HCA or a GPU. Package placement has its place in the node. Unknown values are empty, 0 or
// null.
type Device struct {
	Kind   Kind   `json:"kind"`
	Device string `json:"device"` // name of the HCA, UUID of the GPU
	GPU    string `json:"gpu_id"`
	Vendor string `json:"vendor"`
	Name   string `json:"name"`        // market name of a GPU, board of an HCA
	Parent string `json:"parent_uuid"` // of a part of a GPU
	PF     string `json:"pf"`          // of a virtual function, if the PF is visible
	VF     bool   `json:"vf"`

	Ports []Port `json:"ports"`

	Utilization *float64 `json:"utilization_ratio"`
	Memory      *float64 `json:"memory_used_bytes"`
	MemoryTotal *float64 `json:"memory_total_bytes"`
	// Problems are the names of active GPU problems, null if unknown.
	Problems []string `json:"problems"`
}

// Port is a port of an HCA.
type Port struct {
	Number    int     `json:"port"`
	State     string  `json:"state"`
	PhysState string  `json:"physical_state"`
	LinkLayer string  `json:"link_layer"`
	Interface string  `json:"interface"`
	RateBits  float64 `json:"bits_per_second"`
	Lanes     int     `json:"lanes"`
	Speed     string  `json:"speed"`
}

// Rate returns the sum of the active ports' rates in bytes per second, 0 if unknown.
func (d *Device) Rate() (bytes float64) {
	for _, p := range d.Ports {
		if p.State == "ACTIVE" {
			bytes += p.RateBits / 8
		}
	}
	return bytes
}

// Devices returns the devices of a refresh, HCAs first.
func Devices(facts *model.Snapshot) []Device {
	out := make([]Device, 0, len(facts.HCAs)+len(facts.GPUs))
	bonds := model.BondRates(facts.Links)
	for i := range facts.HCAs {
		h := &facts.HCAs[i]
		d := Device{
			Kind: HCA, Device: h.Name, Name: cmp.Or(h.Type, h.Board), PF: h.PF, VF: h.VF, Ports: []Port{},
		}
		for j := range h.Ports {
			p := &h.Ports[j]
			rate, ok := bonds[model.PortID{Device: h.Name, Port: p.Number}]
			if !ok {
				rate = p.RateBits
			}
			d.Ports = append(d.Ports, Port{p.Number, p.State, p.PhysState, p.LinkLayer, p.Netdev, rate, p.Width, p.Speed})
		}
		out = append(out, d)
	}
	hcas := len(out)
	for i := range facts.GPUs {
		g := &facts.GPUs[i]
		d := Device{
			Kind: GPU, Device: g.UUID, GPU: g.ID, Vendor: string(g.Vendor), Name: g.Name, Parent: g.Parent, Ports: []Port{},
			Utilization: known(g.Utilization), Memory: known(g.Memory.Used), MemoryTotal: known(g.Memory.Total),
			Problems: g.ActiveProblems(),
		}
		out = append(out, d)
	}
	slices.SortStableFunc(out[hcas:], func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.Vendor, b.Vendor), compareNumbers(a.GPU, b.GPU))
	})
	return out
}
