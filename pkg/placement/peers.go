// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// PeerPath is a GPU and an HCA that share a PCIe switch, and what the switch's registers say about transfers between
// them.
type PeerPath struct {
	GPU, HCA int // indexes into Devices
	// DataDirect is the HCA's Data Direct function if it is nearer to the GPU; nil if transfers go through the HCA's
	// own function.
	DataDirect *DataDirect
	// HCAPort and GPUPort are the ports at which the two paths part. The address is empty if a device itself is there.
	HCAPort, GPUPort model.PCIBridge
	// Requests are the HCA's requests to the GPU, Completions the GPU's answers.
	Requests, Completions Route
	// HCAGroup and GPUGroup are the IOMMU groups, as in model.PCIFunction.
	HCAGroup, GPUGroup string
	// Differs lists differences from the values that rdma_topo of rdma-core requires for GPUDirect, NotCompared what
	// was not compared, with the reason. If both are empty, all values are as required.
	Differs, NotCompared []string
}

// Route is where a switch sends requests and completions for a peer below it, according to the port's ACS registers.
type Route string

// The routes. A port without the ACS capability redirects nothing.
const (
	RouteUnknown    Route = ""
	RouteDirect     Route = "direct"
	RouteTranslated Route = "direct_if_translated" // direct for addresses that ATS translated, others redirected
	RouteRedirected Route = "redirected"           // upstream, to the CPU or to a switch nearer to it
)

// PeerPaths returns the pairs of a GPU and an HCA that share a switch, without virtual functions: the function through
// which they reach a GPU is unknown.
func (t *Topology) PeerPaths() []PeerPath {
	var paths []PeerPath
	for g := range t.Devices {
		for h := range t.Devices {
			if t.Devices[g].Kind != GPU || t.Devices[h].Kind != HCA || t.Devices[h].PF != "" {
				continue
			}
			if r, through := t.nearest(g, h); r.sharesSwitch() {
				paths = append(paths, t.peerPath(g, h, through))
			}
		}
	}
	return paths
}

func (t *Topology) peerPath(g, h int, through *DataDirect) PeerPath {
	gpu, hca := &t.Devices[g], &t.Devices[h]
	p := PeerPath{GPU: g, HCA: h, DataDirect: through, GPUGroup: gpu.IOMMUGroup, HCAGroup: hca.IOMMUGroup}
	path := hca.Path
	if through != nil {
		path, p.HCAGroup = through.Path, through.IOMMUGroup
	}
	common := commonPart(gpu.Path, path)
	p.GPUPort, p.HCAPort = t.port(gpu.Path, common), t.port(path, common)
	p.Requests, p.Completions = requests(&p.HCAPort), completions(&p.GPUPort)
	p.Differs, p.NotCompared = t.compare(&p)
	return p
}

// port returns the bridge at an index of a path, or an empty bridge for the function at its end.
func (t *Topology) port(path []string, at int) model.PCIBridge {
	if at >= len(path)-1 {
		return model.PCIBridge{}
	}
	b := t.bridges[path[at]]
	b.Address = path[at]
	return b
}

// requests returns the route of what arrives at an HCA's port. Upstream Forwarding concerns only what a lower port
// redirected.
func requests(port *model.PCIBridge) Route {
	c := port.ACS.Control
	blocked := c&model.ACSTranslationBlocking != 0 // translated requests, which the HCA may not send
	switch {
	case port.ACS.State == model.ACSUnknown, c&model.ACSEgressControl != 0: // the vector is not read
		return RouteUnknown
	case c&model.ACSRequestRedirect == 0 && blocked:
		return RouteUnknown
	case c&model.ACSRequestRedirect == 0:
		return RouteDirect
	case c&model.ACSDirectTranslated != 0 && !blocked:
		return RouteTranslated
	}
	return RouteRedirected
}

func completions(port *model.PCIBridge) Route {
	switch {
	case port.ACS.State == model.ACSUnknown:
		return RouteUnknown
	case port.ACS.Control&model.ACSCompletionRedirect != 0:
		return RouteRedirected
	}
	return RouteDirect
}

// redirected returns the GPUs and HCAs of a workload with GPUDirect whose transfers through a Data Direct function a
// switch sends upstream, and the ports. This is known to be wrong only on platforms of isGrace.
func (j *judge) redirected(w *Workload) (gpus, hcas []int, ports string) {
	if !w.Computes || w.GPUDirect != GPUDirectUsed {
		return nil, nil, ""
	}
	var found []string
	for _, path := range j.paths {
		at := path.redirectedAt()
		if at == nil || !slices.Contains(w.GPUs, path.GPU) || !slices.Contains(w.HCAs, path.HCA) || !j.isGrace(&path) {
			continue
		}
		gpus, hcas, found = append(gpus, path.GPU), append(hcas, path.HCA), append(found, at...)
	}
	slices.Sort(found) // HCAs of one card share the path
	return gpus, hcas, strings.Join(slices.Compact(found), ", ")
}

func (p *PeerPath) redirectedAt() []string {
	var at []string
	if p.Requests == RouteRedirected {
		at = append(at, "requests at "+p.HCAPort.Address)
	}
	if p.Completions == RouteRedirected {
		at = append(at, "completions at "+p.GPUPort.Address)
	}
	return at
}
