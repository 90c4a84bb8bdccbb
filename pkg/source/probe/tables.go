// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"sync"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

// tables are the live objects and the connections of queue pairs: those that the programs count, and those that are older
// than the hooks, which the reconciler adds.
type tables struct {
	objects *hook.Object // nil if objects are not counted
	peers   *hook.Object // nil if connections are not counted

	mu      sync.Mutex // protects the fields below, which adopt changes during a Read
	indexes map[uint32]string
	// base counts the objects found when the hooks were attached. When such an object ends, the programs subtract it
	// from their own counts, which may become negative. The sums are correct.
	base map[gen.ObjectsHoldingKey]held
	// former counts the objects created under former device names. renamed is their number in each counter of the
	// kernel.
	former   model.Totals[model.ObjectKey, model.Count, *model.Count]
	renamed  map[gen.ObjectsHoldingKey]uint64
	recorded uint64 // objects adopted, including ended objects
	// joined counts the adopted peers, including ended peers. unjoined counts peers that did not fit into the map.
	joined, unjoined uint64
	unadopted        unadopted
	changes          repairs // by the last adoption

	// endedUnseen counts the entries that reconciliations removed. skipped counts the skipped programs of objects at the
	// last read.
	endedUnseen, skipped uint64

	// Buffers, reused between reads.
	holdingKeys []gen.ObjectsHoldingKey
	holdings    []gen.ObjectsHolding
}

func newTables() tables {
	return tables{
		indexes: map[uint32]string{}, base: map[gen.ObjectsHoldingKey]held{}, renamed: map[gen.ObjectsHoldingKey]uint64{},
	}
}

type held struct{ count, bytes int64 }

// readHoldings adds the objects: those counted by the programs, and those older than the hooks.
func (t *tables) readHoldings(snap *model.Snapshot, forget map[model.CgroupID]bool) error {
	if t.objects == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	counted := make(map[gen.ObjectsHoldingKey]bool, len(t.base))
	visit := func(k gen.ObjectsHoldingKey, v *gen.ObjectsHolding) bool {
		if forget[model.CgroupID(k.Cgroup)] {
			return dropped(t.objects, v.Owner, uint32(gen.ObjectsObjectMapHOLDINGS_OF_OWNER))
		}
		b, ok := t.base[k]
		if ok {
			counted[k] = true
		}
		t.addHolding(snap, k, held{v.Current + b.count, v.Bytes + b.bytes})
		t.addCreated(snap, k, v.Created)
		return false
	}
	gone, err := readMap(t.objects, gen.ObjectsMapHoldings, &t.holdingKeys, &t.holdings, visit)
	if err != nil {
		return fmt.Errorf("objects: %w", err)
	}
	for _, k := range gone {
		delete(t.renamed, k)
	}
	for k, b := range t.base {
		switch {
		case forget[model.CgroupID(k.Cgroup)]:
			delete(t.base, k)
		case !counted[k]:
			t.addHolding(snap, k, b)
			t.addCreated(snap, k, 0)
		}
	}
	t.former.Forget(forget)
	snap.Created = t.former.AppendTo(snap.Created)
	return nil
}

func (t *tables) addHolding(snap *model.Snapshot, k gen.ObjectsHoldingKey, now held) {
	cgroup, device, kind := model.CgroupID(k.Cgroup), t.deviceName(k.Device), objectType(k.Type)
	snap.Objects = append(snap.Objects, model.Objects{Cgroup: cgroup, Device: device, Type: kind, Current: positive(now.count)})
	if kind == model.MR {
		snap.Registered = append(snap.Registered, model.Registered{
			Cgroup: cgroup, Device: device, Memory: memoryName(k.Memory), Bytes: positive(now.bytes),
		})
	}
}

// addCreated adds the number of objects created under the current name of their device.
func (t *tables) addCreated(snap *model.Snapshot, k gen.ObjectsHoldingKey, created uint64) {
	snap.Created = append(snap.Created, model.Series[model.ObjectKey, model.Count]{
		Cgroup: model.CgroupID(k.Cgroup), Key: model.ObjectKey{Device: t.deviceName(k.Device), Type: objectType(k.Type)},
		Value: model.Count(created - min(created, t.renamed[k])),
	})
}

// positive returns n, or zero: a count is negative between two increments for one object.
func positive(n int64) uint64 {
	return uint64(max(n, 0))
}

// deviceName returns the name from the last reindex, or the name that a program recorded. A removed device keeps its
// last name.
func (t *tables) deviceName(index uint32) string {
	if name, ok := t.indexes[index]; ok {
		return name
	}
	var name gen.ObjectsDeviceName
	if err := t.objects.Coll.Maps[gen.ObjectsMapDevices].Lookup(index, &name); err != nil {
		return ""
	}
	t.indexes[index] = cString(name.Name[:])
	return t.indexes[index]
}
