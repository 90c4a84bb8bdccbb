// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
)

// device is what the inventory remembers about a device, as in the file.
type device struct {
	Kind   model.DeviceKind `json:"kind"`
	ID     string           `json:"id"`
	Source string           `json:"source"` // the source that lists it
	Slot   string           `json:"slot"`
	Name   string           `json:"name"`           // for a module, its HCA's name
	Port   int              `json:"port,omitempty"` // of a module
	Serial string           `json:"serial,omitempty"`
	// First and Seen are when the device was first and last listed, Boot is the node's boot id when last listed. Zero:
	// never.
	First time.Time `json:"first,omitzero"`
	Seen  time.Time `json:"seen,omitzero"`
	Boot  string    `json:"boot,omitempty"`
	// Gone is when the device was first found missing, Accepted when an operator accepted this, Excused since when
	// there is a known reason. Zero: not.
	Gone     time.Time `json:"gone,omitzero"`
	Accepted time.Time `json:"accepted,omitzero"`
	Excused  time.Time `json:"excused,omitzero"`
	// Links are the numbers of the links to other GPUs that were up.
	Links []int `json:"links,omitempty"`
	// Enough is one more than the number of links with which an operator accepted the GPU although other GPUs have
	// more; 0: not accepted.
	Enough int `json:"enough,omitempty"`

	up    []int // links that are up in the last refresh; nil: unknown
	fewer bool  // fewer links up than other GPUs of its model
	// unknown is set while the presence of a module is unknown.
	unknown bool
}

func (d *device) key() key { return key{d.Kind, d.ID} }

func (d *device) anonymous() bool { return d.ID == d.Slot }

// unwatched reports whether the name of the device is left out, so that its state is unknown.
func (d *device) unwatched(out func(hca string) bool) bool {
	return d.Kind == model.KindHCA && out != nil && out(d.Name)
}

// unmissed reports whether the device is missing for an accepted or known reason.
func (d *device) unmissed() bool { return !d.Accepted.IsZero() || !d.Excused.IsZero() }

// lost returns since when the device is missing or, if its presence is unknown, when it was last seen; zero if present.
func (d *device) lost() time.Time {
	if d.unknown && d.Gone.IsZero() {
		return d.Seen
	}
	return d.Gone
}

func (d *device) isNamed(names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool {
		return name == d.ID || name == d.Name || name == d.Slot || name == d.Serial && d.Serial != ""
	})
}

// String names the device in messages.
func (d *device) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", d.Kind, d.Name, d.ID))
}

func (d *device) fields() []zap.Field {
	return []zap.Field{
		zap.String("kind", string(d.Kind)), zap.String("device", d.Name), zap.String("id", d.ID), zap.String("slot", d.Slot),
		zap.String("serial", d.Serial), zap.Time("seen", d.Seen),
	}
}

func numbers(links []int) string {
	texts := make([]string, len(links))
	for i, n := range links {
		texts[i] = strconv.Itoa(n)
	}
	return strings.Join(texts, ", ")
}

// listed is what a refresh lists. An Inventory uses its maps and lists again.
type listed struct {
	devices []device
	// complete are the sources that list all their devices: sources that work, and sources that find no device.
	complete map[string]bool
	// absent are the sources without a device: no driver is loaded, or it has no device.
	absent map[string]bool
	// unread are devices that a source knows but cannot read, by source and name.
	unread map[[2]string]bool
	// undriven are GPUs that the kernel lists without a driver.
	undriven []device
	// ports are the ports for modules, by slot.
	ports map[string]*model.Link
	facts *model.Snapshot

	guids      map[string]int    // HCAs of each GUID
	hcas       map[string]string // IDs of HCAs for modules, by name
	interfaces map[string]bool   // interfaces with a port for modules
	legs       map[model.PortID]int
	here       map[key]bool
	places     map[key]*device // by slot
}

func newListed() listed {
	return listed{
		complete: map[string]bool{}, absent: map[string]bool{}, unread: map[[2]string]bool{}, ports: map[string]*model.Link{},
		guids: map[string]int{}, hcas: map[string]string{}, interfaces: map[string]bool{}, legs: map[model.PortID]int{},
		here: map[key]bool{}, places: map[key]*device{},
	}
}

// clear forgets the refresh.
func (l *listed) clear() {
	clear(l.devices)
	clear(l.undriven)
	l.devices, l.undriven, l.facts = l.devices[:0], l.undriven[:0], nil
	clear(l.complete)
	clear(l.absent)
	clear(l.unread)
	clear(l.ports)
	clear(l.guids)
	clear(l.hcas)
	clear(l.interfaces)
	clear(l.legs)
	clear(l.here)
	clear(l.places)
}

// fill adds the devices that sources list: whole GPUs, HCAs of functions, and their modules. Parts of GPUs, VFs and
// subfunctions come and go by configuration.
func (l *listed) fill(facts *model.Snapshot, states []model.SourceState) {
	l.facts = facts
	for _, s := range states {
		l.absent[s.Source] = s.State == model.StateAbsent
		l.complete[s.Source] = s.State == model.StateOK || s.State == model.StateAbsent
	}
	for _, d := range facts.DeviceStates {
		if d.State != model.StateOK && d.State != model.StateAbsent {
			l.unread[[2]string{d.Source, d.Device}] = true
		}
	}
	for n := range facts.HCAs {
		if h := &facts.HCAs[n]; countsHCA(h) {
			l.guids[h.NodeGUID]++
		}
	}
	for n := range facts.HCAs {
		h := &facts.HCAs[n]
		if !countsHCA(h) {
			continue
		}
		slot := cmp.Or(h.PCIAddress, h.Name)
		id := cmp.Or(h.NodeGUID, slot)
		if l.guids[id] > 1 { // Soft-RoCE on a bond and on its legs, or beside an HCA
			id += " " + h.Name
		}
		l.devices = append(l.devices, device{Kind: model.KindHCA, Source: "rdma", ID: id, Slot: slot, Name: h.Name})
	}
	for n := range facts.GPUs {
		g := &facts.GPUs[n]
		if g.Parent == "" {
			l.devices = append(l.devices, device{
				Kind: model.KindGPU, Source: g.Vendor.Row().Source,
				ID: g.UUID, Slot: cmp.Or(g.PCIAddress, g.UUID), Name: g.Name, Serial: g.Serial,
			})
		}
	}
	l.findModules()
	l.findNameless()
	l.findUndriven()
}

func countsHCA(h *model.HCA) bool { return !h.VF && !h.Subfunction }

// findNameless finds sources with a GPU that has not answered and whose address the kernel does not list (WSL, Tegra,
// gVisor): it may be any remembered GPU.
func (l *listed) findNameless() {
	for _, d := range l.facts.DeviceStates {
		if d.Device == "" || strings.Trim(d.Device, "0123456789") != "" || d.State == model.StateAbsent {
			continue
		}
		if !slices.ContainsFunc(l.facts.GPUs, func(g model.GPU) bool { return g.Vendor.Row().Source == d.Source && g.ID == d.Device }) {
			l.complete[d.Source] = false
		}
	}
}

// findUndriven finds GPUs that the kernel lists without a driver, beside equal GPUs with a driver.
func (l *listed) findUndriven() {
	driven := map[string]*device{} // by PCI address
	for n := range l.devices {
		if d := &l.devices[n]; d.Kind == model.KindGPU {
			driven[d.Slot] = d
		}
	}
	equal := map[string]*device{} // by PCI vendor and device
	for n := range l.facts.PCI {
		if f := &l.facts.PCI[n]; f.Driver != "" && driven[f.Address] != nil {
			equal[f.ID] = driven[f.Address]
		}
	}
	for n := range l.facts.PCI {
		f := &l.facts.PCI[n]
		if like := equal[f.ID]; like != nil && f.Driver == "" && driven[f.Address] == nil {
			l.undriven = append(l.undriven, device{
				Kind: model.KindGPU, Source: like.Source, ID: f.Address, Slot: f.Address, Name: like.Name,
			})
		}
	}
}
