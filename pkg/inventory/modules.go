// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
)

// maxModules is the number of remembered modules. The largest nodes have some dozens of ports.
const maxModules = 256

// findModules finds the ports of HCAs for modules, by slot, and lists the modules with a serial number. An interface is
// one port, whatever its HCAs: Soft-RoCE adds an HCA to an interface that has an HCA, and VFs share their PF's
// interface.
func (l *listed) findModules() {
	for n := range l.devices {
		if d := &l.devices[n]; d.Kind == model.KindHCA && model.IsPCIAddress(d.Slot) {
			l.hcas[d.Name] = d.ID
		}
	}
	for n := range l.facts.Links {
		l.legs[model.PortID{Device: l.facts.Links[n].Device, Port: l.facts.Links[n].Port}]++
	}
	for n := range l.facts.Links {
		f := &l.facts.Links[n]
		hca := l.hcas[f.Device]
		if hca == "" || l.interfaces[f.Netdev] {
			continue
		}
		l.interfaces[f.Netdev] = true
		slot := hca + "/" + strconv.Itoa(f.Port)
		if l.legs[model.PortID{Device: f.Device, Port: f.Port}] > 1 { // legs of a bond with one HCA
			slot += "/" + f.Netdev
		}
		l.ports[slot] = f
		if m := f.Module; m != nil && m.Serial != "" {
			l.devices = append(l.devices, device{
				Kind: model.KindModule, Source: "link", ID: slot + " " + m.Serial, Slot: slot, Name: f.Device, Port: f.Port,
				Serial: m.Serial,
				Seen:   m.Read,
			})
		}
	}
}

// judgeModule judges a module that is not read in its port. It is missing if the driver could not read a module while
// the interface had no carrier. Its presence is unknown if the driver was not asked, or the interface was set down.
func (i *Inventory) judgeModule(d *device, l listed, now time.Time) {
	if by := i.instead(d, l); by != nil {
		i.drop(d)
		i.o.Logger.Info("a module was replaced, or is in another port", append(d.fields(), zap.String("by", by.ID))...)
		return
	}
	f := l.ports[d.Slot]
	if !l.complete["rdma"] || f != nil && (l.unread[[2]string{d.Source, f.Netdev}] || f.Module == nil && f.Read.IsZero()) {
		return // nothing new is known
	}
	if f == nil || f.Module == nil {
		d.unknown = true
		return
	}
	i.renamed = i.renamed || d.Name != f.Device
	d.Name, d.unknown = f.Device, false
	switch m, c := f.Module, f.Carrier; {
	case m.Problem == model.ModuleForbidden, m.Problem == model.ModuleUnreadable && (c == nil || !c.Admin):
		d.unknown = true
	case m.Problem != model.ModuleUnreadable || c.Up:
		i.found(d)
	case m.Read.After(d.Seen) && m.Read.After(c.Changed):
		i.miss(d, l, now)
	}
}

// instead returns another module in the port of d, or the module d in a port that was empty while d was in its first
// port, or nil. Both ends of a cable have the same serial number.
func (i *Inventory) instead(d *device, l listed) *device {
	for n := range l.devices {
		other := &l.devices[n]
		if other.Kind != model.KindModule || other.Slot != d.Slot && other.Serial != d.Serial {
			continue
		}
		if known := i.devices[other.key()]; other.Slot == d.Slot || known == nil || !known.First.Before(d.Seen) {
			return other
		}
	}
	return nil
}
