// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"net/http"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/placement"
)

// Topology is where the GPUs and HCAs of the node are, and what workloads use. It refers to devices by their numbers in
// Devices.
type Topology struct {
	Devices []TopologyDevice `json:"devices"`
	// Relations has a row for each device, with its relation to each device.
	Relations [][]placement.Relation `json:"relations"`
	Workloads []TopologyWorkload     `json:"workloads"`
	// DataDirect are the functions of HCAs for GPU memory, PeerPaths the pairs of a GPU and an HCA that share a PCIe
	// switch.
	DataDirect []TopologyDataDirect `json:"data_direct"`
	PeerPaths  []TopologyPeerPath   `json:"peer_paths"`
}

// TopologyDevice is a GPU or an HCA. What is unknown is empty or 0.
type TopologyDevice struct {
	Kind       placement.Kind   `json:"kind"`
	Name       string           `json:"name"` // mlx5_0; for a GPU its number in the vendor's tools
	UUID       string           `json:"uuid"`
	Vendor     model.Vendor     `json:"vendor"`
	PCIAddress string           `json:"pci_address"`
	NUMANode   string           `json:"numa_node"`
	Path       []string         `json:"path"` // host bridge, bridges, and the PCI function
	Link       TopologyLink     `json:"link"`
	Owners     []identity.Owner `json:"owners"` // who uses it
}

// TopologyLink is the PCIe link of a device.
type TopologyLink struct {
	Speed    float64 `json:"transfers_per_second"`
	Width    int     `json:"width_lanes"`
	MaxSpeed float64 `json:"max_transfers_per_second"`
	MaxWidth int     `json:"max_width_lanes"`
	// Degraded: fewer lanes than the maximum, or for an HCA also a lower speed. GPUs lower their speed to save power.
	Degraded bool `json:"degraded"`
}

// TopologyWorkload is a workload that holds GPUs and uses HCAs.
type TopologyWorkload struct {
	identity.Owner
	GPUDirect placement.GPUDirect `json:"gpudirect"`
	Pairs     []TopologyPair      `json:"pairs"`
	Problems  []TopologyProblem   `json:"problems"`
}

// TopologyPair is a GPU and an HCA that the workload uses.
type TopologyPair struct {
	GPU      int                `json:"gpu"`
	HCA      int                `json:"hca"`
	Relation placement.Relation `json:"relation"`
}

// TopologyProblem is a problem of a workload.
type TopologyProblem struct {
	Problem string `json:"problem"`
	GPUs    []int  `json:"gpus"`
	HCAs    []int  `json:"hcas"`
	Text    string `json:"text"`
}

// topology answers /api/v1/topology: all workloads, or one (?workload=). If devices or places are missing for several
// reasons, the answer has the first reason.
func topology(k *Known, r *http.Request) (any, error) {
	p := k.Placement.Placement()
	missing := cmp.Or(k.missing(k.Facts.PCI != nil, "pci"), k.missing(k.Facts.HCAs != nil, "rdma"), k.missingGPUs())
	return k.inPart(TopologyOf(p, k.Shares.Owners, r.URL.Query().Get("workload")), len(p.Devices), missing)
}

// TopologyOf returns the answer for a placement, with all workloads or only the named workload.
func TopologyOf(p *placement.Placement, owners []identity.Owner, workload string) Topology {
	out := Topology{
		Devices: make([]TopologyDevice, 0, len(p.Devices)), Relations: make([][]placement.Relation, 0, len(p.Devices)),
		Workloads: []TopologyWorkload{}, DataDirect: dataDirectOf(p.DataDirect), PeerPaths: peerPathsOf(&p.Topology),
	}
	for i := range p.Devices {
		d := &p.Devices[i]
		device := TopologyDevice{
			Kind: d.Kind, Name: d.Name, UUID: d.UUID, Vendor: d.Vendor, PCIAddress: d.PCIAddress, NUMANode: d.NUMANode,
			Path: append([]string{}, d.Path...),
			Link: TopologyLink{
				Speed: d.Link.Speed, Width: d.Link.Width, MaxSpeed: d.Link.MaxSpeed, MaxWidth: d.Link.MaxWidth, Degraded: d.Degraded(),
			},
			Owners: []identity.Owner{},
		}
		for _, owner := range p.Owners[i] {
			if workload == "" || workload == owners[owner].Workload {
				device.Owners = append(device.Owners, owners[owner])
			}
		}
		row := make([]placement.Relation, len(p.Devices))
		for j := range row {
			row[j] = p.Relation(i, j)
		}
		out.Devices, out.Relations = append(out.Devices, device), append(out.Relations, row)
	}
	for i := range p.Workloads {
		if w := &p.Workloads[i]; workload == "" || workload == owners[w.Owner].Workload {
			out.Workloads = append(out.Workloads, topologyWorkload(w, &owners[w.Owner]))
		}
	}
	return out
}

func topologyWorkload(w *placement.Workload, owner *identity.Owner) TopologyWorkload {
	out := TopologyWorkload{
		Owner: *owner, GPUDirect: w.GPUDirect,
		Pairs: make([]TopologyPair, 0, len(w.Pairs)), Problems: make([]TopologyProblem, 0, len(w.Problems)),
	}
	for _, pair := range w.Pairs {
		out.Pairs = append(out.Pairs, TopologyPair(pair))
	}
	for _, p := range w.Problems {
		out.Problems = append(out.Problems, TopologyProblem{
			Problem: p.Name, GPUs: append([]int{}, p.GPUs...), HCAs: append([]int{}, p.HCAs...), Text: p.Text,
		})
	}
	return out
}
