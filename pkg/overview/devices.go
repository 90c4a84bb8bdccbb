// SPDX-License-Identifier: Apache-2.0

package overview

import (
	"cmp"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// Device is an HCA or a GPU, with its place in the node. What is not known is empty, 0 or null.
type Device struct {
	Kind   Kind   `json:"kind"`
	Device string `json:"device"` // name of the HCA, UUID of the GPU
	GPU    string `json:"gpu_id"`
	Vendor string `json:"vendor"`
	Name   string `json:"name"`        // market name of a GPU, board of an HCA
	Parent string `json:"parent_uuid"` // of a part of a GPU
	PF     string `json:"pf"`          // of a virtual function, if it is visible
	VF     bool   `json:"vf"`

	PCIAddress string `json:"pci_address"`
	NUMANode   string `json:"numa_node"`
	Upstream   string `json:"upstream"` // PCI address of the port above
	Link       *Link  `json:"pcie_link"`

	Ports []Port `json:"ports"`

	Utilization *float64 `json:"utilization_ratio"`
	Memory      *float64 `json:"memory_used_bytes"`
	MemoryTotal *float64 `json:"memory_total_bytes"`
	// Problems are the names of active problems of a GPU, null when unknown.
	Problems []string `json:"problems"`
}

// Link is a PCIe link: what it has, and what both of its ends support.
type Link struct {
	Speed    float64 `json:"transfers_per_second"`
	Width    int     `json:"lanes"`
	MaxSpeed float64 `json:"possible_transfers_per_second"`
	MaxWidth int     `json:"possible_lanes"`
	// Degraded reports fewer lanes than possible. A lower speed alone may be power management.
	Degraded bool `json:"degraded"`
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

// Rate returns the sum of the rates of the active ports in bytes per second, 0 if it is not known.
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
	functions := make(map[string]*model.PCIFunction, len(facts.PCI))
	for i := range facts.PCI {
		functions[strings.ToLower(facts.PCI[i].Address)] = &facts.PCI[i]
	}
	out := make([]Device, 0, len(facts.HCAs)+len(facts.GPUs))
	for i := range facts.HCAs {
		h := &facts.HCAs[i]
		d := Device{
			Kind: HCA, Device: h.Name, Name: cmp.Or(h.Type, h.Board), PF: h.PF, VF: h.VF,
			PCIAddress: strings.ToLower(h.PCIAddress), NUMANode: h.NUMANode, Ports: []Port{},
		}
		for j := range h.Ports {
			p := &h.Ports[j]
			d.Ports = append(d.Ports, Port{p.Number, p.State, p.PhysState, p.LinkLayer, p.Netdev, p.RateBits, p.Width, p.Speed})
		}
		d.place(functions)
		out = append(out, d)
	}
	hcas := len(out)
	for i := range facts.GPUs {
		g := &facts.GPUs[i]
		d := Device{
			Kind: GPU, Device: g.UUID, GPU: g.ID, Vendor: string(g.Vendor), Name: g.Name, Parent: g.Parent,
			PCIAddress: strings.ToLower(g.PCIAddress), NUMANode: g.NUMANode, Ports: []Port{},
			Utilization: known(g.Utilization), Memory: known(g.Memory.Used), MemoryTotal: known(g.Memory.Total),
			Problems: g.ActiveProblems(),
		}
		d.place(functions)
		out = append(out, d)
	}
	slices.SortStableFunc(out[hcas:], func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.Vendor, b.Vendor), compareNumbers(a.GPU, b.GPU))
	})
	return out
}

// place adds the PCIe link.
func (d *Device) place(functions map[string]*model.PCIFunction) {
	f := functions[d.PCIAddress]
	if f == nil {
		return
	}
	d.Upstream = strings.ToLower(f.Upstream.Address)
	if f.Link.Width == 0 && f.Link.Speed == 0 {
		return
	}
	speed, width := f.Possible()
	d.Link = &Link{f.Link.Speed, f.Link.Width, speed, width, f.Link.Width > 0 && f.Link.Width < width}
}
