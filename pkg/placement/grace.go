// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"slices"

	"github.com/accelscope/accelscope/pkg/model"
)

// The bridges of a platform with Data Direct, by vendor and device, from rdma-core's rdma_topo.
var (
	graceRootPorts = []string{"10de:22b1", "10de:22b2", "10de:22b8"}
	hcaSwitches    = []string{"15b3:1979", "15b3:197c"} // the switch of a ConnectX
)

// The values of ACS Control that rdma_topo requires there, in the form of the kernel's pci=config_acs=.
const (
	acsRootPort = "xx111x0" // without Source Validation, so that everything below is in one IOMMU group
	acsHCAPort  = "xx110x1" // the HCA's requests are not redirected
	acsGPUPort  = "xx101x1" // the GPU's completions are not redirected
	acsIsolated = "xx111x1" // the kernel's default
)

// compare returns differences of a path from rdma_topo's requirements for the platform, and what it did not compare,
// with the reason.
func (t *Topology) compare(p *PeerPath) (differs, notCompared []string) {
	switch {
	case p.DataDirect == nil:
		return nil, []string{"the HCA is not nearer through a Data Direct function"}
	case !t.isGrace(p):
		return nil, []string{"no values are known for these bridges and GPUs"}
	}
	for _, address := range t.bridgesOn(p) {
		want, acs := acsIsolated, t.bridges[address].ACS
		switch address {
		case p.DataDirect.Path[1]:
			want = acsRootPort
		case p.HCAPort.Address:
			want = acsHCAPort
		case p.GPUPort.Address:
			want = acsGPUPort
		}
		switch {
		case acs.State == model.ACSUnknown:
			notCompared = append(notCompared, "ACS of "+address+" is not known")
		case acs.State == model.ACSPresent && !acs.Control.Matches(want):
			differs = append(differs, fmt.Sprintf("ACS of %s is %07b (%s), not %s", address, acs.Control.Defined(), acs.Control, want))
		}
	}
	switch direct := p.DataDirect.Address; {
	case p.HCAGroup == "" || p.GPUGroup == "":
		notCompared = append(notCompared, "the IOMMU groups of "+direct+" and the GPU are not both known")
	case p.HCAGroup != p.GPUGroup || p.HCAGroup == model.NoIOMMUGroup:
		differs = append(differs,
			fmt.Sprintf("the IOMMU groups of %s and the GPU are %s and %s, not one group", direct, p.HCAGroup, p.GPUGroup))
	}
	return differs, notCompared
}

// isGrace reports whether a path goes through a Data Direct function and has the form with known values: below a Grace
// root port, a switch with the Data Direct function, and below that another switch with the only GPU.
func (t *Topology) isGrace(p *PeerPath) bool {
	if p.DataDirect == nil {
		return false
	}
	const direct, gpu = 5, 7 // parts of the paths
	a, b := p.DataDirect.Path, t.Devices[p.GPU].Path
	const common = 3 // host bridge, root port, upstream port of the first switch
	if len(a) != direct || len(b) != gpu || commonPart(a, b) != common || !slices.Contains(graceRootPorts, t.bridges[a[1]].ID) {
		return false
	}
	for _, address := range t.bridgesOn(p)[1:] {
		if !slices.Contains(hcaSwitches, t.bridges[address].ID) {
			return false
		}
	}
	for i := range t.Devices {
		if d := &t.Devices[i]; i != p.GPU && d.Kind == GPU && commonPart(d.Path, b) > 1 {
			return false
		}
	}
	return t.Devices[p.GPU].Vendor == model.NVIDIA
}

// bridgesOn returns the addresses of the bridges on a path: from the root port to the Data Direct function, and on to
// the GPU.
func (t *Topology) bridgesOn(p *PeerPath) []string {
	a, b := p.DataDirect.Path, t.Devices[p.GPU].Path
	return slices.Concat(a[1:len(a)-1], b[commonPart(a, b):len(b)-1])
}
