// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/model"
)

// judgeMissing finds the devices that are no longer listed. While a source does not work, its devices are unknown:
// missing devices stay missing. If a new device has the place, the old device was replaced and is forgotten. If an
// older device has the place, it only moved: the kernel numbers buses in the order in which it finds them, so all
// devices behind a missing device may move.
func (i *Inventory) judgeMissing(l listed, now time.Time) {
	for n := range l.devices {
		d := &l.devices[n]
		l.here[d.key()], l.places[key{d.Kind, d.Slot}] = true, d
	}
	for _, d := range i.sorted() {
		if l.here[d.key()] || !l.complete[d.Source] || d.unwatched(i.o.Unwatched) {
			continue
		}
		if d.Kind == model.KindModule {
			i.judgeModule(d, l, now)
			continue
		}
		other := l.places[key{d.Kind, d.Slot}]
		switch {
		case other != nil && !other.anonymous() && i.isNewer(other, d):
			i.replaced(d, other)
		case d.Seen.IsZero() && l.facts.PCI != nil && !l.undrivenAt(d.Slot):
			i.drop(d) // it has a driver now that no source reads, or was removed
		case other != nil && other.anonymous() || l.cannotRead(d):
			i.found(d)
		case d.Gone.IsZero() && i.isStarting(d, l, now):
		default:
			i.miss(d, l, now)
		}
	}
	i.addUndriven(l, now)
}

// isNewer reports whether a device was first listed after another device was last listed.
func (i *Inventory) isNewer(d, than *device) bool {
	known := i.devices[d.key()]
	return known == nil || known.First.After(than.Seen)
}

// isStarting reports whether a device has not been seen since the node's boot because its driver is not loaded yet: a
// node may load or compile it after the sensor's start.
func (i *Inventory) isStarting(d *device, l listed, now time.Time) bool {
	return l.absent[d.Source] && d.Boot != i.owner.boot && now.Sub(i.started) < driverWait && (l.facts.PCI == nil || l.driverless(d.Slot))
}

func (i *Inventory) drop(d *device) {
	delete(i.devices, d.key())
	i.changed = true
}

func (i *Inventory) replaced(d, by *device) {
	i.drop(d)
	if !d.anonymous() {
		i.o.Logger.Info("a device was replaced", append(d.fields(), zap.String("by", by.ID))...)
	}
}

// found notes that a device is present, but unreadable.
func (i *Inventory) found(d *device) {
	if !d.Gone.IsZero() {
		d.Gone, d.Accepted, d.Excused, i.changed = time.Time{}, time.Time{}, time.Time{}, true
	}
}

// miss notes that a device is missing, and why, if known. The reason may end, for example with a virtual machine.
func (i *Inventory) miss(d *device, l listed, now time.Time) {
	d.up = nil
	why := i.excuse(d, l)
	if d.Gone.IsZero() {
		d.Gone, i.changed = now, true
		if why == "" {
			i.o.Logger.Warn("a device is missing: it was there, and no source lists it any more", d.fields()...)
		}
	}
	switch {
	case why != "" && d.Excused.IsZero():
		d.Excused, i.changed = now, true
		i.o.Logger.Info("a device is missing because "+why, d.fields()...)
	case why == "" && !d.Excused.IsZero() && l.facts.PCI != nil && (d.Kind == model.KindGPU || l.facts.Links != nil):
		d.Excused, i.changed = time.Time{}, true
		i.o.Logger.Warn("a device is missing, and no longer for a known reason", d.fields()...)
	}
}

// excuse returns the legitimate reason why a device is not listed, or "".
func (i *Inventory) excuse(d *device, l listed) string {
	switch {
	case d.Kind == model.KindHCA && l.bonded(d.Slot):
		return "it became a leg of a bond"
	case forVM(i.driver(d.Slot)), slices.ContainsFunc(l.facts.PCI, func(f model.PCIFunction) bool {
		return f.Address == d.Slot && forVM(f.Driver)
	}):
		return "it was given to a virtual machine"
	}
	return ""
}

func forVM(driver string) bool { return strings.Contains(driver, "vfio") }

// driver returns the current driver of a PCI function, or "". The listed PCI functions are up to a minute old.
func (i *Inventory) driver(address string) string {
	if !model.IsPCIAddress(address) {
		return ""
	}
	target, err := os.Readlink(filepath.Join(i.o.Sysfs, "bus/pci/devices", address, "driver"))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// bonded reports whether the functions of a board share an HCA (mlx5 LAG), whose port then has an interface for each
// function.
func (l *listed) bonded(slot string) bool {
	board, _, ok := strings.Cut(slot, ".")
	for n := range l.facts.HCAs {
		h := &l.facts.HCAs[n]
		if of, _, _ := strings.Cut(h.PCIAddress, "."); !ok || of != board || h.VF || h.Subfunction {
			continue
		}
		legs := 0
		for k := range l.facts.Links {
			if f := &l.facts.Links[k]; f.Device == h.Name && f.Port == 1 {
				legs++
			}
		}
		if legs > 1 || strings.Contains(h.Name, "bond") {
			return true
		}
	}
	return false
}

// cannotRead reports whether a source knows a device but cannot read it. States of GPUs are by place, or by an index
// that may now belong to another GPU; states of HCAs are by name.
func (l *listed) cannotRead(d *device) bool {
	return l.unread[[2]string{d.Source, d.Slot}] || d.Kind == model.KindHCA && l.unread[[2]string{d.Source, d.Name}]
}

func (l *listed) driverless(address string) bool {
	return slices.ContainsFunc(l.facts.PCI, func(f model.PCIFunction) bool { return f.Address == address && f.Driver == "" })
}

func (l *listed) undrivenAt(slot string) bool {
	return slices.ContainsFunc(l.undriven, func(d device) bool { return d.Slot == slot })
}

// addUndriven adds GPUs without a driver that were never seen with a driver.
func (i *Inventory) addUndriven(l listed, now time.Time) {
	for _, d := range l.undriven {
		if i.at(d.Kind, d.Slot) == nil && l.complete[d.Source] && i.room(d.Kind) {
			d.Gone = now
			i.devices[d.key()], i.changed = &d, true
			i.o.Logger.Warn("a GPU has no driver, beside equal ones that have one", d.fields()...)
		}
	}
}
