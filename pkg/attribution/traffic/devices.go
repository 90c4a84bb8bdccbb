// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// deviceList is all devices, with what earlier refreshes reported about them.
type deviceList struct {
	devices           map[string]*device
	order             []*device         // sorted by name between refreshes
	names             map[string]string // HCA names of virtual functions, by PCI address
	listed, listedVFs bool              // HCAs and virtual functions were listed
}

// device returns the device with a name, and adds it if it is new.
func (l *deviceList) device(name string) *device {
	d := l.devices[name]
	if d == nil {
		d = &device{name: name, users: map[identity.OwnerID]*use{}}
		for i := range d.directions {
			d.directions[i].device, d.directions[i].index = d, i
		}
		l.devices[name] = d
		l.order = append(l.order, d)
	}
	return d
}

// readCounters reads the counters of all devices. A virtual function in a virtual machine or in another network
// namespace shows no counters; the statistics of its physical function take their place, never both. On Ethernet these
// statistics include traffic other than RDMA and are not used.
func (l *deviceList) readCounters(s *model.Snapshot) {
	vfs := countedVFs(s)
	for _, d := range l.order {
		d.listed, d.hca, d.pci, d.isVF, d.read = false, nil, "", false, d.read[:0]
	}
	stale := map[*device]bool{}
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
		d := l.device(h.Name)
		if d.listed { // the same name in another namespace
			continue
		}
		d.listed, d.hca = true, h
		d.read = portCounters(d.read[:0], h)
		unread := d.state.counted && d.last[0].from != vfStats && h.Netns == 0
		if v != nil && len(d.read) == 0 && !unread {
			stale[d] = d.readVF(v, pci)
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
		if name := l.names[pci]; name != "" && !l.device(name).listed {
			label = name
		}
		d := l.device(label)
		d.listed = true
		stale[d] = d.readVF(v, pci)
	}
	l.keepNames(s.VFs)
	for _, d := range l.order {
		d.advance(stale[d], d.listed || s.HCAs != nil, d.isVF && !l.listedVFs || !d.isVF && !l.listed)
	}
	l.listed, l.listedVFs = l.listed || s.HCAs != nil, l.listedVFs || s.VFs != nil
}

// countedVFs returns the InfiniBand virtual functions with statistics, by PCI address.
func countedVFs(s *model.Snapshot) map[string]*model.VF {
	if len(s.VFs) == 0 {
		return nil
	}
	infiniband := map[string]bool{} // physical functions
	for i := range s.HCAs {
		infiniband[s.HCAs[i].Name] = slices.ContainsFunc(s.HCAs[i].Ports,
			func(p model.Port) bool { return p.LinkLayer == "InfiniBand" })
	}
	vfs := make(map[string]*model.VF, len(s.VFs))
	for i := range s.VFs {
		v := &s.VFs[i]
		if pci := strings.ToLower(v.PCIAddress); v.Counted && infiniband[v.PF] && model.IsPCIAddress(pci) && vfs[pci] == nil {
			vfs[pci] = v
		}
	}
	return vfs
}

// readVF reads the counters of a virtual function. They are stale if the physical function was not read since the last
// call.
func (d *device) readVF(v *model.VF, pci string) (stale bool) {
	d.pci, d.isVF = pci, true
	if d.state.counted && d.last[0].from == vfStats && d.reading == v.Look {
		return true
	}
	d.reading = v.Look
	d.read = append(d.read,
		byteCounter{0, vfStats, transmit, v.TransmitBytes}, byteCounter{0, vfStats, receive, v.ReceiveBytes})
	return false
}

// rename records the HCA name of a virtual function, which stays when the HCA is no longer visible. The device that was
// stored under the PCI address continues under the name.
func (l *deviceList) rename(pci, name string) {
	if l.names[pci] == name {
		return
	}
	if d := l.devices[pci]; d != nil && l.devices[name] == nil {
		delete(l.devices, pci)
		d.name = name
		l.devices[name] = d
	}
	l.names[pci] = name
}

// keepNames drops the names of functions that no longer exist.
func (l *deviceList) keepNames(vfs []model.VF) {
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
