// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// PeerPath is a GPU and an HCA that share a PCIe switch, and what the registers of the switch say about the transfers between them.
type PeerPath struct {
	GPU, HCA int // indexes into Devices
	// DataDirect is the Data Direct function of the HCA if it is nearer to the GPU; nil if transfers go through the HCA's own function.
	DataDirect *DataDirect
	// HCAPort and GPUPort are the ports at which the two paths part. They have no address if a device is itself at that place.
	HCAPort, GPUPort model.PCIBridge
	// Requests are those of the HCA to the GPU, Completions what the GPU answers.
	Requests, Completions Route
	// HCAGroup and GPUGroup are the IOMMU groups, as in model.PCIFunction.
	HCAGroup, GPUGroup string
	// Differs is what differs from the values that rdma_topo of rdma-core requires for GPUDirect. NotCompared is what was not compared with
	// them, with the reason: with both empty, all is as required.
	Differs, NotCompared []string
}

// Route is where a switch sends what is for a peer below it, as far as the ACS registers of the port say.
type Route string

// The routes. A port without the ACS capability redirects nothing.
const (
	RouteUnknown    Route = ""
	RouteDirect     Route = "direct"
	RouteTranslated Route = "direct_if_translated" // requests with an address that ATS translated are direct, others redirected
	RouteRedirected Route = "redirected"           // upstream, to the CPU or to a switch nearer to it
)

// PeerPaths returns the pairs of a GPU and an HCA that share a switch. Virtual functions are left out: through which function they reach a
// GPU is not known.
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

// port returns the bridge in a place of a path. What is at its end is no bridge.
func (t *Topology) port(path []string, at int) model.PCIBridge {
	if at >= len(path)-1 {
		return model.PCIBridge{}
	}
	b := t.bridges[path[at]]
	b.Address = path[at]
	return b
}

// requests returns the route of what arrives at the port of an HCA. Upstream Forwarding is about what a port further below redirected.
func requests(port *model.PCIBridge) Route {
	c := port.ACS.Control
	blocked := c&model.ACSTranslationBlocking != 0 // what is translated; whether the HCA sends that is not known
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

// redirected returns the GPUs and HCAs of a workload with GPUDirect whose transfers through a Data Direct function a switch sends upstream,
// and the ports that do so. It is only known to be wrong on the platforms of isGrace.
func (p *Placement) redirected(w *Workload) (gpus, hcas []int, ports string) {
	if len(p.DataDirect) == 0 || !w.Computes || w.GPUDirect != GPUDirectUsed {
		return nil, nil, ""
	}
	var found []string
	for _, path := range p.PeerPaths() {
		at := path.redirectedAt()
		if at == nil || !slices.Contains(w.GPUs, path.GPU) || !slices.Contains(w.HCAs, path.HCA) || !p.isGrace(&path) {
			continue
		}
		gpus, hcas, found = append(gpus, path.GPU), append(hcas, path.HCA), append(found, at...)
	}
	slices.Sort(found) // HCAs of one card share the path
	return gpus, hcas, strings.Join(slices.Compact(found), ", ")
}

// redirectedAt returns what the two ports send upstream.
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
