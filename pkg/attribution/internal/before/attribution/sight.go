// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/attribution/internal/before/model"
)

// look reads the figures of all devices. A virtual function that shows no counters
// of its own, as it is in a virtual machine or in another network namespace, has
// those that its physical one keeps of it: never both. On Ethernet those are of all
// that the function moves, by RDMA or not, and are left out.
func (l *Ledger) look(s *model.Snapshot) {
	infiniband := map[string]bool{} // physical functions
	if len(s.VFs) > 0 {
		for i := range s.HCAs {
			infiniband[s.HCAs[i].Name] = slices.ContainsFunc(s.HCAs[i].Ports,
				func(p model.Port) bool { return p.LinkLayer == "InfiniBand" })
		}
	}
	vfs := make(map[string]*model.VF, len(s.VFs))
	for i := range s.VFs {
		v := &s.VFs[i]
		if pci := strings.ToLower(v.PCIAddress); v.Counted && infiniband[v.PF] && isPCI(pci) && vfs[pci] == nil {
			vfs[pci] = v
		}
	}
	for _, d := range l.order {
		d.told, d.hca, d.pci, d.out, d.stale, d.read = false, nil, "", false, false, d.read[:0]
	}
	for i := range s.HCAs {
		h := &s.HCAs[i]
		pci := ""
		if len(vfs) > 0 {
			pci = strings.ToLower(h.PCIAddress)
		}
		v := vfs[pci]
		if v != nil {
			l.rename(pci, h.Name)
		}
		d := l.meter(h.Name)
		if d.told { // another of this name, in another namespace
			continue
		}
		d.told, d.hca, d.management = true, h, managementQPs(h)
		d.read = portFigures(d.read[:0], h)
		unread := d.bound && d.figures[0].set != vfStats && h.Netns == 0
		if v != nil && len(d.read) == 0 && !unread {
			d.readVF(v, pci)
		}
		delete(vfs, pci)
	}
	for i := range s.VFs {
		pci := strings.ToLower(s.VFs[i].PCIAddress)
		v := vfs[pci]
		if v == nil {
			continue
		}
		delete(vfs, pci)
		label := pci
		if name := l.names[pci]; name != "" && !l.meter(name).told {
			label = name
		}
		d := l.meter(label)
		d.told = true
		d.readVF(v, pci)
	}
	l.keepNames(s.VFs)
	for _, d := range l.order {
		d.advance(d.read, d.told || s.HCAs != nil)
	}
}

// readVF takes the figures of a virtual function, once for each look at its physical
// one: until the next look nobody knows what the function has moved.
func (d *meter) readVF(v *model.VF, pci string) {
	d.pci, d.out = pci, true
	if d.stale = d.bound && d.figures[0].set == vfStats && d.look == v.Look; d.stale {
		return
	}
	d.look = v.Look
	d.read = append(d.read, figure{0, vfStats, transmit, v.TransmitBytes}, figure{0, vfStats, receive, v.ReceiveBytes})
}

// rename notes how the HCA of a virtual function is called: the function keeps
// the name when the HCA is out of sight. What was booked under the address goes on
// under the name.
func (l *Ledger) rename(pci, name string) {
	if l.names[pci] == name {
		return
	}
	if d := l.meters[pci]; d != nil && l.meters[name] == nil {
		delete(l.meters, pci)
		d.name = name
		l.meters[name] = d
		l.sorted = false
	}
	l.names[pci] = name
}

// keepNames drops the names of functions that are gone.
func (l *Ledger) keepNames(vfs []model.VF) {
	if len(l.names) == 0 {
		return
	}
	kept := make(map[string]string, len(l.names))
	for i := range vfs {
		pci := strings.ToLower(vfs[i].PCIAddress)
		if name, ok := l.names[pci]; ok {
			kept[pci] = name
		}
	}
	l.names = kept
}
