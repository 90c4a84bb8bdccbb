// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

// adopt records the objects of some types, or of all types, that the programs have not seen, such as objects older than
// the hooks. A restrack id identifies an object, so each object is recorded once. The listing does not report the kind
// of memory of a region. If a device cannot be listed, its objects are missing until a later try.
func (r *reconciler) adopt(ctx context.Context, opts Options, types ...model.ObjectType) error {
	if opts.Objects == nil {
		return nil
	}
	if len(types) == 0 {
		types = adoptedTypes
	}
	// The lists take some hundred bytes per object and are needed only here.
	defer debug.FreeOSMemory()
	first := len(r.adoptions) == 0
	lost, now := r.lost(), time.Now()
	r.changes = repairs{}
	failed, err := r.adoptListed(ctx, opts, types)
	r.compared.forget(types)
	if !first { // The objects older than the hooks are not a repair.
		r.mu.Lock()
		r.repaired = r.repaired.plus(r.changes)
		r.mu.Unlock()
	}
	if errors.Is(err, model.ErrUnsupported) {
		failed = nil
	}
	for _, t := range types {
		r.adoptions[t] = r.adoptions[t].next(now, lost[t], r.changes != repairs{}, failed[t])
	}
	return err
}

// adoptListed records the objects that RDMA netlink lists. It returns the types that it could not list or record.
//
// An object that no program has seen may be destroyed between the dump and its record. So a second dump follows:
// objects missing from it are removed again. A counted object missing from both dumps ended while a program was
// skipped, and is removed too.
func (r *reconciler) adoptListed(
	ctx context.Context, opts Options, types []model.ObjectType,
) (failed map[model.ObjectType]bool, err error) {
	failed = map[model.ObjectType]bool{}
	failAll := func() {
		for _, t := range types {
			failed[t] = true
		}
	}
	if err := r.number(r.objects.Program(gen.ObjectsProgNumberObject)); err != nil {
		opts.Logger.Debug("ids that the programs missed", zap.Error(err))
	}
	counted := r.counted(ctx, opts, types)
	found, err := list(ctx, opts, types)
	var ended []entry
	if err == nil {
		ended = r.unlisted(counted, found)
	} else {
		failAll()
	}
	seen, unnumbered, seenErr := r.seen()
	if seenErr != nil {
		failAll()
		return failed, errors.Join(err, seenErr)
	}
	counts, countErr := r.adoptedOf()
	if countErr != nil {
		failAll()
		return failed, errors.Join(err, countErr)
	}
	r.mu.Lock()
	r.unadopted.begin(types)
	r.mu.Unlock()
	adopted := map[gen.ObjectsAdoptedKey]gen.ObjectsObject{}
	share := r.objects.Coll.Maps[gen.ObjectsMapAdopted].MaxEntries() / objectsShare
	doubtful, unrecorded := 0, 0
	for _, o := range found {
		code, ok := typeCode(o.Type)
		key := gen.ObjectsAdoptedKey{Device: o.Index, Type: uint32(code), Id: o.ID}
		// If the programs do not see the end of CM ids, CM ids stay unattributed.
		if !ok || seen[key] || o.Type == model.CMID && !r.cmIDs {
			continue
		}
		// This may be the object that is counted without its id. A missing object is better than one counted twice.
		if unnumbered[gen.ObjectsAdoptedKey{Device: key.Device, Type: key.Type}] {
			doubtful++
			failed[o.Type] = true
			continue
		}
		value := gen.ObjectsObject{Device: o.Index, Id: o.ID, Type: code, Memory: memoryCode(o), Bytes: o.Bytes}
		if o.PID != 0 && opts.CgroupOf != nil {
			// If the process is unknown, the object stays unattributed.
			if id, err := opts.CgroupOf(o.PID); err == nil {
				value.Cgroup, value.Owner = opts.ownerOf(id)
			}
		}
		if counts[value.Owner] >= share && !r.isAdopted(key) {
			r.unadopt(value.Owner, gen.VerbsLossLOSS_OBJECTS_SHARE, o.Type)
			failed[o.Type] = true
			continue
		}
		added, recordErr := r.record(key, value, o.Device)
		if recordErr != nil { // usually because the map is full
			if unrecorded++; unrecorded == 1 {
				err = errors.Join(err, recordErr)
			}
			r.unadopt(0, gen.VerbsLossLOSS_OBJECTS_FULL, o.Type)
			failed[o.Type] = true
			continue
		}
		r.addPeer(o, value.Cgroup, value.Owner)
		if added {
			adopted[key] = value
			counts[value.Owner]++
		}
	}
	if doubtful > 0 {
		err = errors.Join(err, fmt.Errorf("%d objects are not adopted: they may be counted already, without their id", doubtful))
	}
	if len(adopted)+len(ended) == 0 {
		return failed, err
	}
	again, againErr := list(ctx, opts, changedTypes(adopted, ended))
	if againErr == nil {
		for _, e := range r.unlisted(ended, again) {
			r.remove(e)
		}
	}
	if seen, _, seenErr = r.seen(); seenErr != nil {
		failAll()
		return failed, errors.Join(err, seenErr)
	}
	destroyed := maps.Clone(adopted)
	missing := maps.Clone(adopted)
	for _, o := range again {
		code, _ := typeCode(o.Type)
		key := gen.ObjectsAdoptedKey{Device: o.Index, Type: uint32(code), Id: o.ID}
		delete(missing, key)
		// A program also counts an object that was dumped during its creation.
		if !seen[key] {
			delete(destroyed, key)
		}
	}
	for key, value := range destroyed {
		r.unrecord(key, value)
	}
	for key := range missing {
		r.removePeer(key)
	}
	if againErr != nil {
		failAll()
	}
	return failed, errors.Join(err, againErr)
}

// number gives the counted objects their ids if the return of rdma_restrack_add was missed. The program reads struct
// rdma_restrack_entry.
func (t *tables) number(program *ebpf.Program) error {
	if program == nil { // the kernel refused it
		return nil
	}
	var errs []error
	var keys []uint64
	var values []gen.ObjectsObject
	_, err := hook.Batches(t.objects.Coll.Maps[gen.ObjectsMapObjects], &keys, &values, func(address uint64, o *gen.ObjectsObject) {
		if o.Numbered == 0 && len(errs) == 0 && slices.Contains(adoptedTypes, objectType(uint16(o.Type))) { // other types have no id
			if _, err := program.Run(&ebpf.RunOptions{Context: [1]uint64{address}}); err != nil {
				errs = append(errs, err)
			}
		}
	})
	return errors.Join(append(errs, err)...)
}

func changedTypes(adopted map[gen.ObjectsAdoptedKey]gen.ObjectsObject, ended []entry) []model.ObjectType {
	changed := map[model.ObjectType]bool{}
	for key := range adopted {
		changed[objectType(uint16(key.Type))] = true
	}
	for _, e := range ended {
		changed[objectType(uint16(e.key.Type))] = true
	}
	return slices.Collect(maps.Keys(changed))
}

func list(ctx context.Context, opts Options, types []model.ObjectType) ([]model.Object, error) {
	objects, err := opts.Objects(ctx, types...)
	if err != nil {
		err = fmt.Errorf("listing the objects that exist: %w", err)
	}
	return objects, err
}

// record passes an object to the programs. If the object is new, record adds it to the base counts.
func (t *tables) record(key gen.ObjectsAdoptedKey, o gen.ObjectsObject, device string) (added bool, err error) {
	err = t.objects.Coll.Maps[gen.ObjectsMapAdopted].Update(key, o, ebpf.UpdateNoExist)
	switch {
	case errors.Is(err, ebpf.ErrKeyExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("adopting an object: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.recorded++
	t.changes.added++
	if _, ok := t.indexes[key.Device]; !ok {
		t.indexes[key.Device] = device
	}
	k := holdingKeyOf(o)
	b := t.base[k]
	t.base[k] = held{b.count + 1, b.bytes + int64(o.Bytes)}
	return true, nil
}

// unrecord removes an object that ended unseen. It keeps an object that a program has taken or is about to take.
func (t *tables) unrecord(key gen.ObjectsAdoptedKey, o gen.ObjectsObject) {
	m := t.objects.Coll.Maps[gen.ObjectsMapAdopted]
	var now gen.ObjectsObject
	if m.Lookup(key, &now) != nil || now.Hidden != 0 || m.Delete(key) != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.recorded--
	t.changes.added--
	k := holdingKeyOf(o)
	b := t.base[k]
	t.base[k] = held{b.count - 1, b.bytes - int64(o.Bytes)}
}

func holdingKeyOf(o gen.ObjectsObject) gen.ObjectsHoldingKey {
	return gen.ObjectsHoldingKey{Cgroup: o.Cgroup, Device: o.Device, Type: uint16(o.Type), Memory: uint16(o.Memory)}
}

// seen returns the objects that the programs count with their ids, and the devices and types of objects counted without
// an id. An id is missing while the return of rdma_restrack_add is pending, or if it was missed and number could not
// read the id.
func (t *tables) seen() (known, unnumbered map[gen.ObjectsAdoptedKey]bool, err error) {
	known, unnumbered = map[gen.ObjectsAdoptedKey]bool{}, map[gen.ObjectsAdoptedKey]bool{}
	var keys []uint64
	var values []gen.ObjectsObject
	_, err = hook.Batches(t.objects.Coll.Maps[gen.ObjectsMapObjects], &keys, &values,
		func(_ uint64, o *gen.ObjectsObject) {
			key := gen.ObjectsAdoptedKey{Device: o.Device, Type: uint32(o.Type), Id: o.Id}
			if o.Numbered == 0 {
				unnumbered[key] = true
			} else {
				known[key] = true
			}
		})
	if err != nil {
		return nil, nil, fmt.Errorf("objects seen by the programs: %w", err)
	}
	return known, unnumbered, nil
}
