// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"cmp"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// FaultDevice has the names of a fault's device, from the sources of GPUs and HCAs. A device that is not listed keeps
// its last names; unknown names are empty.
type FaultDevice struct {
	GPU, UUID string // for a MIG slice, of the whole GPU
	HCA       string
}

// FaultTotal is the faults of one code of a device.
type FaultTotal struct {
	FaultDevice
	*model.FaultTotal
}

// FaultShare is one owner's faults of one code of a GPU.
type FaultShare struct {
	Owner int
	FaultDevice
	model.FaultKey
	Count uint64
	Since time.Time // see Share
}

// FaultRecord is a fault of the history with its owner's last known labels.
type FaultRecord struct {
	Owner identity.Owner
	FaultDevice
	*model.Fault
}

const maxFaultDevices = 1024

// faultLedger keeps the names of faults' devices and owners, which may have ended.
type faultLedger struct {
	shares  *Tracker[model.FaultKey, model.Count, *model.Count]
	devices map[string]namedDevice    // by PCI address
	counted time.Time                 // model.Snapshot.Counted of the last refresh
	owners  map[uint64]identity.Owner // by ID of the fault
}

// namedDevice is a device and the refresh before the first refresh with its names.
type namedDevice struct {
	FaultDevice
	before time.Time
}

// faults credits the faults of processes to their owners. The rest of a GPU's total is unattributed: faults without a
// known process, and of expired owners. HCAs have no shares: their drivers report no process.
func (o *users) faults(s *model.Snapshot, l *faultLedger) ([]FaultTotal, []FaultShare, []FaultRecord) {
	if s.FaultTotals == nil {
		return nil, nil, nil
	}
	l.name(s, o.functions)
	owned := l.shares.attributed()
	totals := make([]FaultTotal, len(s.FaultTotals))
	var shares []FaultShare
	for i := range s.FaultTotals {
		t := &s.FaultTotals[i]
		totals[i] = FaultTotal{l.devices[t.PCIAddress].FaultDevice, t}
		if rest := t.Count - min(t.Count, uint64(owned[t.FaultKey])); !t.Driver.OfHCA() && t.Count > 0 {
			shares = append(shares, FaultShare{unattributed, totals[i].FaultDevice, t.FaultKey, rest, time.Time{}})
		}
	}
	for _, c := range o.a.Faults {
		if c.Owner == unattributed {
			continue
		}
		d := l.devices[c.Key.PCIAddress]
		if c.Since.Before(d.before) { // the device had other labels
			c.Since = time.Time{}
		}
		shares = append(shares, FaultShare{c.Owner, d.FaultDevice, c.Key, uint64(c.Value), c.Since})
	}
	return totals, shares, o.faultHistory(s, l)
}

// faultHistory returns the history. A fault keeps its owner when the cgroup has ended.
func (o *users) faultHistory(s *model.Snapshot, l *faultLedger) []FaultRecord {
	known := make(map[uint64]identity.Owner, len(s.FaultHistory))
	history := make([]FaultRecord, len(s.FaultHistory))
	for i := range s.FaultHistory {
		f := &s.FaultHistory[i]
		owner := l.owners[f.ID]
		if id := o.Of(f.Cgroup); id != identity.Unattributed {
			owner = *o.Owner(id)
		}
		if owner != (identity.Owner{}) {
			known[f.ID] = owner
		}
		device := l.devices[f.PCIAddress].FaultDevice
		device.UUID = cmp.Or(device.UUID, f.UUID)
		history[i] = FaultRecord{owner, device, f}
	}
	l.owners = known
	return history
}

func (l *faultLedger) name(s *model.Snapshot, functions map[string]*model.HCA) {
	if l.devices == nil {
		l.devices = map[string]namedDevice{}
	}
	set := func(address string, change func(*FaultDevice)) {
		d, known := l.devices[address]
		if address == "" || !known && len(l.devices) >= maxFaultDevices {
			return
		}
		last := d.FaultDevice
		if change(&d.FaultDevice); d.FaultDevice != last {
			d.before = l.counted
		}
		l.devices[address] = d
	}
	for i := range s.FaultHistory {
		f := &s.FaultHistory[i]
		if f.UUID != "" {
			set(f.PCIAddress, func(d *FaultDevice) { d.UUID = cmp.Or(d.UUID, f.UUID) })
		}
	}
	for i := range s.GPUs {
		g := &s.GPUs[i]
		if g.Parent == "" || g.Parent == g.UUID {
			set(strings.ToLower(g.PCIAddress), func(d *FaultDevice) { d.GPU, d.UUID = g.ID, g.UUID })
		}
	}
	for i := range s.HCAs { // in their order: there may be no room for all
		if h := &s.HCAs[i]; functions[strings.ToLower(h.PCIAddress)] == h {
			set(strings.ToLower(h.PCIAddress), func(d *FaultDevice) { d.HCA = h.Name })
		}
	}
	l.counted = s.Counted
}
