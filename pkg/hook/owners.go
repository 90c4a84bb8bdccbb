// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"
	"maps"
	"slices"

	"github.com/cilium/ebpf"

	"github.com/accelscope/accelscope/pkg/model"
)

// The maps and the variable of bpf/owner.h.
const (
	ownerEntriesMap = "owner_entries"
	userEntriesMap  = "user_entries"
	sharesVariable  = "shares"
)

// sharedMaps is SHARED_MAPS of bpf/owner.h.
const sharedMaps = 2

// ownerEntries is the struct owner_entries of bpf/owner.h, by map of the object.
type ownerEntries struct {
	Made    [sharedMaps]int64
	Refused [sharedMaps]uint64
}

// userEntries is the struct user_entries of bpf/owner.h.
type userEntries struct{ Made [sharedMaps]int64 }

// SetShares sets the maximum number of entries of an owner in the maps of an object, in the order of the object's enum
// of maps.
func SetShares(spec *ebpf.CollectionSpec, shares ...uint32) error {
	var limits [sharedMaps]int64
	for i, n := range shares {
		limits[i] = int64(max(n, 1))
	}
	return spec.Variables[sharesVariable].Set(limits)
}

// Owners counts by owner the entries that user space makes and removes in the maps of an object. The programs limit the
// entries of an owner (bpf/owner.h). Owners is not safe for concurrent use. It is nil if the maps have no shares, or if
// the kernel refused its maps.
type Owners struct {
	programs, user *ebpf.Map
	made           map[uint64]userEntries
	changed        map[uint64]bool
	keys           []uint64
	values         []ownerEntries
}

// NewOwners returns the Owners of an object, or nil if its maps have no shares.
func NewOwners(coll *ebpf.Collection) *Owners {
	if coll.Maps[ownerEntriesMap] == nil || coll.Maps[userEntriesMap] == nil {
		return nil
	}
	return &Owners{
		programs: coll.Maps[ownerEntriesMap], user: coll.Maps[userEntriesMap],
		made: map[uint64]userEntries{}, changed: map[uint64]bool{},
	}
}

// Add counts n entries of an owner in a map of the object; n is negative for removed entries. Settle passes them to the
// programs.
func (o *Owners) Add(owner uint64, of uint32, n int64) {
	m := o.made[owner]
	m.Made[of] += n
	o.made[owner], o.changed[owner] = m, true
}

// Settle passes the counts to the programs, and drops the owners that have ended.
func (o *Owners) Settle(ended map[model.CgroupID]bool) error {
	if o == nil {
		return nil
	}
	var errs []error
	for owner := range o.changed {
		errs = append(errs, o.settle(owner))
	}
	for id := range ended {
		_ = o.programs.Delete(uint64(id)) // most have no entries
		_ = o.user.Delete(uint64(id))
		delete(o.made, uint64(id))
		delete(o.changed, uint64(id))
	}
	return errors.Join(errs...)
}

// Correct sets the number of entries of each owner in a map of the object to the entries that were found. An entry that
// a program makes meanwhile may be missing until the next call. Owners without entries and losses are dropped.
func (o *Owners) Correct(of uint32, found map[uint64]int64) error {
	missing, dropped := maps.Clone(found), map[model.CgroupID]bool{}
	_, _, err := Sweep(o.programs, &o.keys, &o.values, func(owner *uint64, e *ownerEntries) bool {
		delete(missing, *owner)
		if n := found[*owner] - e.Made[of] - o.made[*owner].Made[of]; n != 0 {
			o.Add(*owner, of, n)
		}
		all := *e
		for i, n := range o.made[*owner].Made {
			all.Made[i] += n
		}
		if all != (ownerEntries{}) {
			return false
		}
		dropped[model.CgroupID(*owner)] = true
		return true
	})
	for owner, n := range missing {
		o.Add(owner, of, n-o.made[owner].Made[of])
	}
	return errors.Join(err, o.Settle(dropped))
}

// settle passes the counts of an owner to the programs. If the programs do not know the owner, it has no entries, or
// the map is full; then the next Settle tries again.
func (o *Owners) settle(owner uint64) error {
	made := o.made[owner]
	if slices.Max(made.Made[:]) <= 0 && o.programs.Lookup(owner, &ownerEntries{}) != nil {
		delete(o.made, owner)
		delete(o.changed, owner)
		return nil
	}
	if _, known := o.known(owner); !known {
		return nil
	}
	delete(o.changed, owner)
	return o.user.Put(owner, made)
}

// known returns what the programs did for an owner. It adds the owner to their map, and reports whether there is room
// for it.
func (o *Owners) known(owner uint64) (e ownerEntries, ok bool) {
	if o.programs.Lookup(owner, &e) == nil {
		return e, true
	}
	err := o.programs.Update(owner, e, ebpf.UpdateNoExist)
	return e, err == nil || errors.Is(err, ebpf.ErrKeyExist) // a program was faster
}

// Has reports whether an owner used up its share of a map, or there is no room to count its entries. From now on, the
// programs count the entries that they remove.
func (o *Owners) Has(owner uint64, of uint32, share uint32) bool {
	e, known := o.known(owner)
	return !known || e.Made[of]+o.made[owner].Made[of] >= int64(share)
}

// AddLosses adds the losses of owners that used up their shares: reasons are by map of the object, and lost is their
// total.
func (o *Owners) AddLosses(snap *model.Snapshot, lost uint64, reasons ...string) error {
	if snap.OwnerLosses == nil {
		snap.OwnerLosses = []model.Series[model.LossKey, model.Count]{}
	}
	if lost == 0 {
		return nil
	}
	_, err := Batches(o.programs, &o.keys, &o.values, func(owner uint64, e *ownerEntries) {
		for i, reason := range reasons {
			if e.Refused[i] > 0 {
				snap.OwnerLosses = append(snap.OwnerLosses, Lost(owner, reason, e.Refused[i]))
			}
		}
	})
	return err
}

// Lost returns the losses of an owner.
func Lost(owner uint64, reason string, n uint64) model.Series[model.LossKey, model.Count] {
	return model.Series[model.LossKey, model.Count]{
		Cgroup: model.CgroupID(owner), Key: model.LossKey{Reason: reason}, Value: model.Count(n),
	}
}
