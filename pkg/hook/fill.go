// SPDX-License-Identifier: Apache-2.0

package hook

import "github.com/accelscope/accelscope/pkg/model"

// A Report is what Fill reads of an object.
type Report struct {
	// Maps are the maps whose sizes are reported. Their names are reported after Prefix.
	Maps   []string
	Prefix string
	// Losses is the variable that counts data that could not be recorded, by reason. Reasons are the names.
	Losses  string
	Reasons []string
	// Shares are the indexes of the losses of owners that used up their shares, by map of the object, see SetShares.
	Shares []int
	// Skipped is the reason of programs that the kernel skipped, or "".
	Skipped string
}

// Fill adds the sizes of the maps, the losses, and the losses of owners to a snapshot.
func (o *Object) Fill(snap *model.Snapshot) error {
	o.FillMaps(snap)
	lost := o.Losses()
	for i, n := range lost {
		snap.Losses = append(snap.Losses, model.Loss{Reason: o.report.Reasons[i], Count: n})
	}
	if o.report.Skipped != "" {
		snap.Losses = append(snap.Losses, model.Loss{Reason: o.report.Skipped, Count: o.Missed()})
	}
	return o.FillOwners(snap, lost)
}

// FillMaps adds the sizes of the maps.
func (o *Object) FillMaps(snap *model.Snapshot) {
	for _, name := range o.report.Maps {
		snap.Maps = append(snap.Maps, model.Map{
			Name: o.report.Prefix + name, Entries: o.Entries[name], Capacity: uint64(o.Coll.Maps[name].MaxEntries()),
		})
	}
}

// Losses returns the losses by reason, or nil if the programs do not count them.
func (o *Object) Losses() []uint64 {
	lost := make([]uint64, len(o.report.Reasons))
	if o.Coll.Variables[o.report.Losses].Get(lost) != nil {
		return nil
	}
	return lost
}

// FillOwners adds the losses of owners that used up their shares. lost are the losses by reason.
func (o *Object) FillOwners(snap *model.Snapshot, lost []uint64) error {
	var sum uint64
	var reasons []string
	for _, i := range o.report.Shares {
		reasons = append(reasons, o.report.Reasons[i])
		if i < len(lost) {
			sum += lost[i]
		}
	}
	return o.Owners.AddLosses(snap, sum, reasons...)
}
