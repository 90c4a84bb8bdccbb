// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

// reconciler compares the tables with RDMA netlink. The kernel may skip programs, and before 6.7 it does not count skipped
// kprobes. compare detects this, and adopt repairs it: it adds the objects whose beginning was skipped and removes the
// objects whose end was skipped.
type reconciler struct {
	tables
	cmIDs     bool    // the programs count CM ids
	repaired  repairs // by reconciliations; mu protects it
	adoptions map[model.ObjectType]adoption
	compared  comparison
}

func newReconciler() reconciler {
	return reconciler{tables: newTables(), adoptions: map[model.ObjectType]adoption{}}
}

// comparison is the difference between the numbers of objects that the kernel tracks and that the programs count, by
// table.
type comparison struct {
	// expected is the difference after the last adoption: objects of the kernel, and objects that could not be adopted.
	// last is the difference at the last comparison.
	expected, last map[model.ObjectTable]int64
}

// update records the current differences. It returns the types with a changed difference that lasts.
func (c *comparison) update(now map[model.ObjectTable]int64) (lasting []model.ObjectType) {
	expected := map[model.ObjectTable]int64{}
	for table, difference := range now {
		last, seen := c.last[table]
		repeated := seen && last == difference
		if n, known := c.expected[table]; known {
			expected[table] = n
			if repeated && difference != n {
				lasting = append(lasting, table.Type)
			}
		} else if repeated {
			expected[table] = difference
		}
	}
	c.expected, c.last = expected, now
	return lasting
}

func (c *comparison) forget(types []model.ObjectType) {
	of := func(table model.ObjectTable, _ int64) bool { return slices.Contains(types, table.Type) }
	maps.DeleteFunc(c.expected, of)
	maps.DeleteFunc(c.last, of)
}

// compare compares the numbers of objects with RDMA netlink. Objects that are created or destroyed meanwhile make a
// difference that does not last.
func (r *reconciler) compare(ctx context.Context, opts Options) {
	if r.objects == nil || opts.ObjectCounts == nil {
		return
	}
	counts, err := opts.ObjectCounts(ctx)
	if err != nil {
		opts.Logger.Debug("cannot compare the number of objects with RDMA netlink", zap.Error(err))
	}
	differences := make(map[model.ObjectTable]int64, len(counts))
	for table, n := range counts {
		if table.Type != model.CMID || r.cmIDs {
			differences[table] = int64(n)
		}
	}
	subtract := func(k gen.ObjectsHoldingKey, n int64) {
		table := model.ObjectTable{Index: k.Device, Type: objectType(k.Type)}
		if _, ok := differences[table]; ok {
			differences[table] -= n
		}
	}
	var keys []gen.ObjectsHoldingKey
	var holdings []gen.ObjectsHolding
	_, err = hook.Batches(r.objects.Coll.Maps[gen.ObjectsMapHoldings], &keys, &holdings,
		func(k gen.ObjectsHoldingKey, v *gen.ObjectsHolding) { subtract(k, v.Current) })
	if err != nil {
		opts.Logger.Debug("cannot compare the number of objects with RDMA netlink", zap.Error(err))
		return
	}
	r.mu.Lock()
	for k, b := range r.base {
		subtract(k, b.count)
	}
	r.mu.Unlock()
	lost := r.lost()
	for _, t := range r.compared.update(differences) {
		// Skipped programs may concern objects of any type: equally many may have begun and ended unseen. If objects of
		// the type are known to be missing, they explain the difference.
		a, differ := r.adoptions[t], adoptedTypes
		if a.failed || a.lost != lost[t] {
			differ = []model.ObjectType{t}
		}
		r.setDiffers(differ)
	}
}

func (r *reconciler) setDiffers(types []model.ObjectType) {
	for _, t := range types {
		a := r.adoptions[t]
		a.differs = true
		r.adoptions[t] = a
	}
}

// entry is an entry of the map objects, or of the map adopted if address is 0.
type entry struct {
	address uint64
	key     gen.ObjectsAdoptedKey
	value   gen.ObjectsObject
}

// entries returns the counted objects that RDMA netlink can list: they have an id, and netlink counts their table.
func (t *tables) entries(tables map[model.ObjectTable]uint64) ([]entry, error) {
	var found []entry
	add := func(address uint64, o *gen.ObjectsObject) {
		_, listed := tables[model.ObjectTable{Index: o.Device, Type: objectType(uint16(o.Type))}]
		if listed && (o.Numbered != 0 || address == 0) && o.Hidden == 0 {
			key := gen.ObjectsAdoptedKey{Device: o.Device, Type: uint32(o.Type), Id: o.Id}
			found = append(found, entry{address, key, *o})
		}
	}
	var addresses []uint64
	var keys []gen.ObjectsAdoptedKey
	var values []gen.ObjectsObject
	_, err := hook.Batches(t.objects.Coll.Maps[gen.ObjectsMapObjects], &addresses, &values, add)
	if err == nil {
		_, err = hook.Batches(t.objects.Coll.Maps[gen.ObjectsMapAdopted], &keys, &values,
			func(_ gen.ObjectsAdoptedKey, o *gen.ObjectsObject) { add(0, o) })
	}
	if err != nil {
		return nil, fmt.Errorf("objects seen by the programs: %w", err)
	}
	return found, nil
}

// counted returns the entries of some types before a dump. It returns nil if the devices of the dump are unknown.
func (r *reconciler) counted(ctx context.Context, opts Options, types []model.ObjectType) []entry {
	if opts.ObjectCounts == nil {
		return nil
	}
	tables, err := opts.ObjectCounts(ctx)
	if err == nil {
		maps.DeleteFunc(tables, func(table model.ObjectTable, _ uint64) bool { return !slices.Contains(types, table.Type) })
		var found []entry
		if found, err = r.entries(tables); err == nil {
			return found
		}
	}
	opts.Logger.Debug("cannot find objects that ended unseen", zap.Error(err))
	return nil
}

// unlisted returns the entries that are missing from a complete dump and still in the maps.
func (r *reconciler) unlisted(of []entry, dump []model.Object) []entry {
	listed := map[gen.ObjectsAdoptedKey]bool{}
	types := map[uint32]bool{
		uint32(gen.ObjectsObjectTypeTYPE_PD): true, uint32(gen.ObjectsObjectTypeTYPE_CQ): true,
		uint32(gen.ObjectsObjectTypeTYPE_QP): true, uint32(gen.ObjectsObjectTypeTYPE_MR): true,
		uint32(gen.ObjectsObjectTypeTYPE_CM_ID): true,
	}
	for _, o := range dump {
		if code, ok := typeCode(o.Type); ok {
			listed[gen.ObjectsAdoptedKey{Device: o.Index, Type: uint32(code), Id: o.ID}] = true
			types[uint32(code)] = true // kernels before 5.15 count contexts, but do not list them
		}
	}
	var left []entry
	for _, e := range of {
		if types[e.key.Type] && !listed[e.key] && r.exists(e) {
			left = append(left, e)
		}
	}
	return left
}

func (t *tables) exists(e entry) bool {
	var now gen.ObjectsObject
	var err error
	if e.address != 0 {
		err = t.objects.Coll.Maps[gen.ObjectsMapObjects].Lookup(e.address, &now)
	} else {
		err = t.objects.Coll.Maps[gen.ObjectsMapAdopted].Lookup(e.key, &now)
	}
	return err == nil && now == e.value
}

func (r *reconciler) remove(e entry) {
	if !r.exists(e) {
		return
	}
	var err error
	if e.address != 0 {
		err = r.objects.Coll.Maps[gen.ObjectsMapObjects].Delete(e.address)
	} else {
		err = r.objects.Coll.Maps[gen.ObjectsMapAdopted].Delete(e.key)
	}
	if err != nil {
		return // a program has removed it
	}
	r.removePeer(e.key)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.changes.removed++
	if e.address != 0 {
		r.endedUnseen++
		r.objects.Owners.Add(e.value.Owner, uint32(gen.ObjectsObjectMapOBJECTS_OF_OWNER), -1)
	} else {
		r.recorded--
	}
	k := holdingKeyOf(e.value)
	b := r.base[k]
	r.base[k] = held{b.count - 1, b.bytes - int64(e.value.Bytes)}
}

func (r *reconciler) repairs() repairs {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.repaired
}

type repairs struct{ added, removed uint64 }

func (r repairs) plus(o repairs) repairs { return repairs{r.added + o.added, r.removed + o.removed} }

func (r repairs) fill(snap *model.Snapshot) {
	snap.Repairs = append(snap.Repairs, model.Repair{Change: "added", Count: r.added}, model.Repair{Change: "removed", Count: r.removed})
}
