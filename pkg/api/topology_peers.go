// SPDX-License-Identifier: Apache-2.0

package api

import (
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/placement"
)

// TopologyDataDirect is a Data Direct function. HCAs are the PCI addresses of the functions of its HCA. If they are
// unknown, Unknown is the reason.
type TopologyDataDirect struct {
	PCIAddress string   `json:"pci_address"`
	Path       []string `json:"path"`
	HCAs       []string `json:"hcas"`
	Unknown    string   `json:"unknown"`
}

// TopologyPeerPath is what the registers of a PCIe switch show about transfers between a GPU and an HCA.
type TopologyPeerPath struct {
	GPU int `json:"gpu"`
	HCA int `json:"hca"`
	// DataDirect is the PCI address of the Data Direct function through which the HCA is nearer. It is empty if the
	// HCA's own function is nearer.
	DataDirect  string             `json:"data_direct"`
	HCAPort     TopologyPort       `json:"hca_port"`
	GPUPort     TopologyPort       `json:"gpu_port"`
	Requests    placement.Route    `json:"requests"`
	Completions placement.Route    `json:"completions"`
	IOMMUGroups TopologyIOMMUGroup `json:"iommu_groups"`
	// Differs is what differs from the values that rdma_topo of rdma-core requires, NotCompared what was not compared
	// with them, and why.
	Differs     []string `json:"differs"`
	NotCompared []string `json:"not_compared"`
}

// TopologyPort is the port of a switch at which the paths of two devices part. Control is the ACS Control Register; it
// is 0 if the port has no ACS capability, or if it is unknown.
type TopologyPort struct {
	PCIAddress string `json:"pci_address"`
	// ACS are the set bits, as lspci prints them: "none", "absent" for a port without the capability, or empty if
	// unknown.
	ACS     string           `json:"acs"`
	Control model.ACSControl `json:"acs_control"`
}

// TopologyIOMMUGroup are the IOMMU groups of both ends: a number, "none", or empty if unknown.
type TopologyIOMMUGroup struct {
	HCA string `json:"hca"`
	GPU string `json:"gpu"`
}

func dataDirectOf(list []placement.DataDirect) []TopologyDataDirect {
	out := make([]TopologyDataDirect, 0, len(list))
	for i := range list {
		d := &list[i]
		out = append(out, TopologyDataDirect{d.Address, append([]string{}, d.Path...), append([]string{}, d.HCAs...), d.Unknown})
	}
	return out
}

func peerPathsOf(t *placement.Topology) []TopologyPeerPath {
	paths := t.PeerPaths()
	out := make([]TopologyPeerPath, 0, len(paths))
	for i := range paths {
		p := &paths[i]
		path := TopologyPeerPath{
			GPU: p.GPU, HCA: p.HCA, HCAPort: portOf(&p.HCAPort), GPUPort: portOf(&p.GPUPort),
			Requests: p.Requests, Completions: p.Completions, IOMMUGroups: TopologyIOMMUGroup{HCA: p.HCAGroup, GPU: p.GPUGroup},
			Differs: append([]string{}, p.Differs...), NotCompared: append([]string{}, p.NotCompared...),
		}
		if p.DataDirect != nil {
			path.DataDirect = p.DataDirect.Address
		}
		out = append(out, path)
	}
	return out
}

func portOf(b *model.PCIBridge) TopologyPort {
	acs := string(b.ACS.State)
	if b.ACS.State == model.ACSPresent {
		acs = b.ACS.Control.String()
	}
	return TopologyPort{b.Address, acs, b.ACS.Control}
}
