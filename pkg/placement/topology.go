// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// Kind is the kind of a device.
type Kind string

// The kinds of devices.
const (
	GPU Kind = "gpu"
	HCA Kind = "hca"
)

// Relation is the distance of two devices, in the terms of nvidia-smi topo -m.
type Relation string

// The relations, nearest first.
const (
	Self    Relation = "X"
	PIX     Relation = "PIX"  // through at most one PCIe switch
	PXB     Relation = "PXB"  // through several switches, without the CPU
	PHB     Relation = "PHB"  // through a host bridge of the CPU
	NODE    Relation = "NODE" // through several host bridges of one NUMA node
	SYS     Relation = "SYS"  // through the link between NUMA nodes
	Unknown Relation = ""     // the place of a device is unknown
)

// distance orders relations, except Unknown.
var distance = map[Relation]int{Self: 0, PIX: 1, PXB: 2, PHB: 3, NODE: 4, SYS: 5}

// Device is a GPU or an HCA.
type Device struct {
	Kind       Kind
	Name       string // mlx5_0; for a GPU the number in the vendor's tools, 0
	UUID       string // of a GPU
	Vendor     model.Vendor
	PCIAddress string
	NUMANode   string // empty if unknown
	// Path is the path of the PCI function; for a virtual function, its physical function's path. Nil if unknown.
	Path []string
	// IOMMUGroup is the PCI function's group, as in model.PCIFunction.
	IOMMUGroup string
	// DataDirect is an HCA's Data Direct function; nil if unknown. A virtual function has its physical function's;
	// whether it uses it is unknown.
	DataDirect *DataDirect
	// Link is the current PCIe link, with the maximum of both ends. Unknown values are 0.
	Link model.PCILink
	// Of an HCA: the HCA of its physical function, whether a port is active, and the link layer and highest rate of
	// active ports, in bits per second.
	PF        string
	Active    bool
	Unknown   bool // a port's state is unknown
	LinkLayer string
	Rate      float64
}

// Topology is a node's GPUs, without their parts, and then its HCAs.
type Topology struct {
	Devices    []Device
	DataDirect []DataDirect
	bridges    map[string]model.PCIBridge // by address
}

// New returns the topology of a node.
func New(s *model.Snapshot) Topology {
	t := Topology{DataDirect: dataDirect(s.PCI), bridges: map[string]model.PCIBridge{}}
	functions := make(map[string]*model.PCIFunction, len(s.PCI))
	for i := range s.PCI {
		f := &s.PCI[i]
		functions[f.Address] = f
		for _, b := range f.Bridges {
			t.bridges[b.Address] = b
		}
	}
	add := func(d Device, at string, linked bool) {
		if f := functions[strings.ToLower(at)]; f != nil {
			d.Path, d.IOMMUGroup, d.DataDirect = f.Path, f.IOMMUGroup, t.dataDirectOf(f.Address)
			if f.NUMANode != "" {
				d.NUMANode = f.NUMANode
			}
			if linked {
				d.Link = f.Link
				d.Link.MaxSpeed, d.Link.MaxWidth = f.Possible()
			}
		}
		t.Devices = append(t.Devices, d)
	}
	for i := range s.GPUs {
		if g := &s.GPUs[i]; g.Parent == "" || g.Parent == g.UUID {
			add(Device{
				Kind: GPU, Name: g.ID, UUID: g.UUID, Vendor: g.Vendor, PCIAddress: g.PCIAddress, NUMANode: g.NUMANode,
			}, g.PCIAddress, !g.OffPCIe)
		}
	}
	addresses := make(map[string]string, len(s.HCAs))
	for i := range s.HCAs {
		addresses[s.HCAs[i].Name] = s.HCAs[i].PCIAddress
	}
	for i := range s.HCAs {
		h := &s.HCAs[i]
		d := Device{Kind: HCA, Name: h.Name, PCIAddress: h.PCIAddress, NUMANode: h.NUMANode, PF: h.PF}
		for j := range h.Ports {
			p := &h.Ports[j]
			d.Unknown = d.Unknown || p.State == ""
			if p.State == "ACTIVE" {
				d.Active, d.LinkLayer, d.Rate = true, p.LinkLayer, max(d.Rate, p.RateBits)
			}
		}
		at := h.PCIAddress
		if h.VF {
			at = addresses[h.PF]
		}
		add(d, at, true)
	}
	return t
}

// Relation returns the relation of two devices, by index. For a GPU and an HCA, the HCA or its Data Direct function
// counts, whichever is nearer. For a GPU and a virtual function it is Unknown if the Data Direct function is nearer: a
// capability that the kernel does not show decides whether the virtual function has it (mlx5_ib_data_direct_init).
func (t *Topology) Relation(i, j int) Relation {
	r, _ := t.nearest(i, j)
	return r
}

// nearest returns the relation of two devices, and the Data Direct function if it is nearer.
func (t *Topology) nearest(i, j int) (Relation, *DataDirect) {
	if i == j {
		return Self, nil
	}
	a, b := &t.Devices[i], &t.Devices[j]
	r := between(a.Path, a.NUMANode, b.Path, b.NUMANode)
	if a.Kind == HCA {
		a, b = b, a
	}
	if d := b.DataDirect; a.Kind == GPU && b.Kind == HCA && d != nil {
		through := between(a.Path, a.NUMANode, d.Path, d.NUMANode)
		if through != Unknown && (r == Unknown || distance[through] < distance[r]) {
			if b.PF != "" {
				return Unknown, nil
			}
			return through, d
		}
	}
	return r, nil
}

// between returns the relation of two functions from their paths and NUMA nodes, which may be unknown.
func between(a []string, numaA string, b []string, numaB string) Relation {
	apart := numaA != "" && numaB != "" && numaA != numaB
	switch {
	case a != nil && b != nil:
		return relation(a, b, apart)
	case apart:
		return SYS
	}
	return Unknown
}

// relation compares two paths. A switch has two levels: its port towards the CPU, and its ports towards devices. apart
// reports different NUMA nodes.
func relation(a, b []string, apart bool) Relation {
	common := commonPart(a, b)
	const hostBridge, oneSwitch = 1, 2
	switch {
	case common == 0 && apart:
		return SYS
	case common == 0:
		return NODE
	case common == hostBridge:
		return PHB
	case len(a)-common <= oneSwitch && len(b)-common <= oneSwitch:
		return PIX
	}
	return PXB
}

func commonPart(a, b []string) int {
	common := 0
	for common < min(len(a), len(b)) && a[common] == b[common] {
		common++
	}
	return common
}

// Degraded reports a PCIe link with fewer lanes than both ends support or, for an HCA, with a lower speed: GPUs lower
// the link speed to save power.
func (d *Device) Degraded() bool {
	l := &d.Link
	return l.Width > 0 && l.Width < l.MaxWidth || d.Kind == HCA && l.Speed > 0 && l.Speed < l.MaxSpeed
}

// sharesSwitch reports whether devices reach each other without the CPU.
func (r Relation) sharesSwitch() bool { return r == PIX || r == PXB }

// rail returns the name that all functions of an HCA share.
func (d *Device) rail() string {
	if d.PF != "" {
		return d.PF
	}
	return d.Name
}
