// SPDX-License-Identifier: Apache-2.0

package overview

import (
	"cmp"
	"slices"

	"github.com/accelscope/accelscope/pkg/attribution"
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
	// Temperature is of the warmest sensor of a GPU, in degrees Celsius.
	Temperature *float64 `json:"temperature_celsius"`
	// Problems are the names of active GPU problems, null if unknown.
	Problems []string `json:"problems"`
	// Workloads is the number of workloads with objects on the HCA, or processes on the GPU.
	Workloads *int `json:"workloads"`
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

	// Transmit and Receive are the rates of the last interval, null without an interval or without counters.
	Transmit *Rate `json:"transmit"`
	Receive  *Rate `json:"receive"`
	// Errors are errors and discards since the driver was loaded, null without counters.
	Errors *uint64 `json:"errors"`
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

// Devices returns the devices of a refresh, HCAs first. A nil Recorder adds no rates.
func (r *Recorder) Devices(facts *model.Snapshot, shares *attribution.Attribution) []Device {
	out := make([]Device, 0, len(facts.HCAs)+len(facts.GPUs))
	bonds, workloads := model.BondRates(facts.Links), workloads(facts, shares)
	for i := range facts.HCAs {
		h := &facts.HCAs[i]
		d := Device{
			Kind: HCA, Device: h.Name, Name: cmp.Or(h.Type, h.Board), PF: h.PF, VF: h.VF, Ports: []Port{},
			Workloads: workloads[h.Name],
		}
		for j := range h.Ports {
			p := &h.Ports[j]
			rate, ok := bonds[model.PortID{Device: h.Name, Port: p.Number}]
			if !ok {
				rate = p.RateBits
			}
			shown := Port{
				Number: p.Number, State: p.State, PhysState: p.PhysState, LinkLayer: p.LinkLayer, Interface: p.Netdev,
				RateBits: rate, Lanes: p.Width, Speed: p.Speed,
			}
			if errors, known := h.PortErrors(p); known {
				shown.Errors = &errors
			}
			d.Ports = append(d.Ports, shown)
		}
		out = append(out, d)
	}
	hcas := len(out)
	for i := range facts.GPUs {
		g := &facts.GPUs[i]
		d := Device{
			Kind: GPU, Device: g.UUID, GPU: g.ID, Vendor: string(g.Vendor), Name: g.Name, Parent: g.Parent, Ports: []Port{},
			Utilization: known(g.Utilization), Memory: known(g.Memory.Used), MemoryTotal: known(g.Memory.Total),
			Problems: g.ActiveProblems(), Temperature: warmest(g), Workloads: workloads[g.UUID],
		}
		out = append(out, d)
	}
	slices.SortStableFunc(out[hcas:], func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.Vendor, b.Vendor), compareNumbers(a.GPU, b.GPU))
	})
	r.addPortRates(out[:hcas])
	return out
}

func warmest(g *model.GPU) *float64 {
	var most *float64
	for i := range g.Temperatures {
		if t := &g.Temperatures[i]; most == nil || t.Value > *most {
			most = &t.Value
		}
	}
	return most
}

// workloads returns the number of workloads by HCA or UUID of the GPU, without devices whose users are unknown.
func workloads(facts *model.Snapshot, shares *attribution.Attribution) map[string]*int {
	count, seen := map[string]*int{}, map[rowKey]bool{}
	if facts.Objects != nil {
		for i := range facts.HCAs {
			count[facts.HCAs[i].Name] = new(int)
		}
	}
	// The list of an HCA may have failed: without a holding, its users are unknown.
	for i := range facts.Holdings {
		count[facts.Holdings[i].Device] = new(int)
	}
	for i := range shares.GPUFigures {
		if f := &shares.GPUFigures[i]; f.Listed {
			count[f.GPU.UUID] = new(int)
		}
	}
	use := func(owner int, device string) {
		k := rowKey{owner, device}
		if n := count[device]; n != nil && shares.Owners[owner].Workload != "" && !seen[k] {
			seen[k] = true
			*n++
		}
	}
	for i := range shares.Objects {
		if s := &shares.Objects[i]; s.Current > 0 {
			use(s.Owner, s.Device)
		}
	}
	for i := range shares.GPUs {
		if s := &shares.GPUs[i]; s.Processes > 0 {
			use(s.Owner, s.GPU.UUID)
		}
	}
	return count
}
