// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"slices"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

const peersOfOwner = uint32(gen.PeersPeerMapPEERS_OF_OWNER)

// unadopted counts the listed objects that were not adopted. Each listing has them again, so the largest number counts.
type unadopted struct {
	counts map[unadoptedKey]*unadoptedCount
	ended  losses // losses of owners that have ended
}

type unadoptedKey struct {
	owner  uint64
	reason gen.VerbsLoss
	kind   model.ObjectType
}

type unadoptedCount struct{ now, most uint64 }

func (u *unadopted) begin(types []model.ObjectType) {
	for key, n := range u.counts {
		if slices.Contains(types, key.kind) {
			n.now = 0
		}
	}
}

// add counts an object that was not adopted. owner is the owner that used up its share, or 0 if the map is full.
func (u *unadopted) add(owner uint64, reason gen.VerbsLoss, kind model.ObjectType) {
	key := unadoptedKey{owner, reason, kind}
	n := u.counts[key]
	if n == nil {
		n = &unadoptedCount{}
		if u.counts == nil {
			u.counts = map[unadoptedKey]*unadoptedCount{}
		}
		u.counts[key] = n
	}
	n.now++
	n.most = max(n.most, n.now)
}

func (u *unadopted) forget(ids map[model.CgroupID]bool) {
	for key, n := range u.counts {
		if ids[model.CgroupID(key.owner)] {
			u.ended[key.reason] += n.most
			delete(u.counts, key)
		}
	}
}

func (u *unadopted) fill(snap *model.Snapshot, losses *losses) {
	for i, n := range u.ended {
		losses[i] += n
	}
	for key, n := range u.counts {
		losses[key.reason] += n.most
		if key.reason != gen.VerbsLossLOSS_OBJECTS_FULL {
			snap.OwnerLosses = append(snap.OwnerLosses, hook.Lost(key.owner, lossNames[key.reason], n.most))
		}
	}
}

func (t *tables) adoptedOf() (map[uint64]uint32, error) {
	counts := map[uint64]uint32{}
	var keys []gen.ObjectsAdoptedKey
	var values []gen.ObjectsObject
	_, err := hook.Batches(t.objects.Coll.Maps[gen.ObjectsMapAdopted], &keys, &values,
		func(_ gen.ObjectsAdoptedKey, o *gen.ObjectsObject) { counts[o.Owner]++ })
	return counts, err
}

func (t *tables) isAdopted(key gen.ObjectsAdoptedKey) bool {
	return t.objects.Coll.Maps[gen.ObjectsMapAdopted].Lookup(key, &gen.ObjectsObject{}) == nil
}

func (t *tables) unadopt(owner uint64, reason gen.VerbsLoss, kind model.ObjectType) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unadopted.add(owner, reason, kind)
}
