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

// adopt records the objects of some types, or of all, that the programs have not seen, such as
// those that existed before the hooks were attached. It records them once each: objects
// that a program has seen are recognized by their restrack id. The listing does not report the
// kind of memory of a region. A device that cannot be listed omits its own objects and is tried
// again later.
func (s *sensor) adopt(ctx context.Context, opts Options, types ...model.ObjectType) error {
	if opts.Objects == nil {
		return nil
	}
	if len(types) == 0 {
		types = adoptedTypes
	}
	// Lists of objects take some hundred bytes for each, and are needed only here.
	defer debug.FreeOSMemory()
	first := len(s.adoptions) == 0
	lost, now := s.lost(), time.Now()
	s.changes = repairs{}
	failed, err := s.adoptListed(ctx, opts, types)
	s.compared.forget(types)
	if !first { // what existed before the hooks is no repair
		s.mu.Lock()
		s.repaired = s.repaired.plus(s.changes)
		s.mu.Unlock()
	}
	if errors.Is(err, model.ErrUnsupported) {
		failed = nil
	}
	for _, t := range types {
		s.adoptions[t] = s.adoptions[t].next(now, lost[t], s.changes != repairs{}, failed[t])
	}
	return err
}

// adoptListed records the objects that RDMA netlink lists, and returns the types of those that it
// could not list or record.
//
// An object may be destroyed between the dump and its record, when no program has seen it.
// Objects missing from a second dump are removed again. So are counted objects that both dumps
// lack: a program was skipped when they ended.
func (s *sensor) adoptListed(ctx context.Context, opts Options, types []model.ObjectType) (failed map[model.ObjectType]bool, err error) {
	failed = map[model.ObjectType]bool{}
	failAll := func() {
		for _, t := range types {
			failed[t] = true
		}
	}
	if err := s.number(s.objects.Program(gen.ObjectsProgNumberObject)); err != nil {
		opts.Logger.Debug("ids that the programs missed", zap.Error(err))
	}
	counted := s.counted(ctx, opts, types)
	found, err := list(ctx, opts, types)
	var ended []entry
	if err == nil {
		ended = s.unlisted(counted, found)
	} else {
		failAll()
	}
	seen, unnumbered, seenErr := s.seen()
	if seenErr != nil {
		failAll()
		return failed, errors.Join(err, seenErr)
	}
	counts, countErr := s.adoptedOf()
	if countErr != nil {
		failAll()
		return failed, errors.Join(err, countErr)
	}
	s.mu.Lock()
	s.unadopted.begin(types)
	s.mu.Unlock()
	adopted := map[gen.ObjectsAdoptedKey]gen.ObjectsObject{}
	share := s.objects.Coll.Maps[gen.ObjectsMapAdopted].MaxEntries() / objectsShare
	doubtful, unrecorded := 0, 0
	for _, o := range found {
		code, ok := typeCode(o.Type)
		key := gen.ObjectsAdoptedKey{Device: o.Index, Type: uint32(code), Id: o.ID}
		// If the programs do not see the end of CM ids, these stay unattributed.
		if !ok || seen[key] || o.Type == model.CMID && !s.cmIDs {
			continue
		}
		// May be the object counted without its id: better missing than counted twice.
		if unnumbered[gen.ObjectsAdoptedKey{Device: key.Device, Type: key.Type}] {
			doubtful++
			failed[o.Type] = true
			continue
		}
		value := gen.ObjectsObject{Device: o.Index, Id: o.ID, Type: code, Memory: memoryCode(o), Bytes: o.Bytes}
		if o.PID != 0 && opts.CgroupOf != nil {
			// Without the process the object stays unattributed.
			if id, err := opts.CgroupOf(o.PID); err == nil {
				value.Cgroup, value.Owner = opts.ownerOf(id)
			}
		}
		if counts[value.Owner] >= share && !s.isAdopted(key) {
			s.unadopt(value.Owner, gen.VerbsLossLOSS_OBJECTS_SHARE, o.Type)
			failed[o.Type] = true
			continue
		}
		added, recordErr := s.record(key, value, o.Device)
		if recordErr != nil { // usually the map is full
			if unrecorded++; unrecorded == 1 {
				err = errors.Join(err, recordErr)
			}
			s.unadopt(0, gen.VerbsLossLOSS_OBJECTS_FULL, o.Type)
			failed[o.Type] = true
			continue
		}
		s.addPeer(o, value.Cgroup, value.Owner)
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
		for _, e := range s.unlisted(ended, again) {
			s.remove(e)
		}
	}
	if seen, _, seenErr = s.seen(); seenErr != nil {
		failAll()
		return failed, errors.Join(err, seenErr)
	}
	destroyed := maps.Clone(adopted)
	missing := maps.Clone(adopted)
	for _, o := range again {
		code, _ := typeCode(o.Type)
		key := gen.ObjectsAdoptedKey{Device: o.Index, Type: uint32(code), Id: o.ID}
		delete(missing, key)
		// An object dumped during its creation is counted by a program, too.
		if !seen[key] {
			delete(destroyed, key)
		}
	}
	for key, value := range destroyed {
		s.unrecord(key, value)
	}
	for key := range missing {
		s.removePeer(key)
	}
	if againErr != nil {
		failAll()
	}
	return failed, errors.Join(err, againErr)
}

// number gives the counted objects their ids where the return of rdma_restrack_add was missed: struct rdma_restrack_entry has
// them.
func (s *sensor) number(program *ebpf.Program) error {
	if program == nil { // the kernel refuses it
		return nil
	}
	var errs []error
	var keys []uint64
	var values []gen.ObjectsObject
	_, err := hook.Batches(s.objects.Coll.Maps[gen.ObjectsMapObjects], &keys, &values, func(address uint64, o *gen.ObjectsObject) {
		if o.Numbered == 0 && len(errs) == 0 && slices.Contains(adoptedTypes, objectType(uint16(o.Type))) { // others have no id
			if _, err := program.Run(&ebpf.RunOptions{Context: [1]uint64{address}}); err != nil {
				errs = append(errs, err)
			}
		}
	})
	return errors.Join(append(errs, err)...)
}

// changedTypes returns the types of objects that were adopted or have ended.
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

// list returns the existing objects of some types that can be listed.
func list(ctx context.Context, opts Options, types []model.ObjectType) ([]model.Object, error) {
	objects, err := opts.Objects(ctx, types...)
	if err != nil {
		err = fmt.Errorf("listing the objects that exist: %w", err)
	}
	return objects, err
}

// record passes one object to the programs and adds it to the base counts, if it is new.
func (s *sensor) record(key gen.ObjectsAdoptedKey, o gen.ObjectsObject, device string) (added bool, err error) {
	err = s.objects.Coll.Maps[gen.ObjectsMapAdopted].Update(key, o, ebpf.UpdateNoExist)
	switch {
	case errors.Is(err, ebpf.ErrKeyExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("adopting an object: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recorded++
	s.changes.added++
	if _, ok := s.indexes[key.Device]; !ok {
		s.indexes[key.Device] = device
	}
	k := holdingKeyOf(o)
	b := s.base[k]
	s.base[k] = held{b.count + 1, b.bytes + int64(o.Bytes)}
	return true, nil
}

// unrecord removes an object that ended unseen. It keeps an object that a program has taken or
// is about to take.
func (s *sensor) unrecord(key gen.ObjectsAdoptedKey, o gen.ObjectsObject) {
	m := s.objects.Coll.Maps[gen.ObjectsMapAdopted]
	var now gen.ObjectsObject
	if m.Lookup(key, &now) != nil || now.Hidden != 0 || m.Delete(key) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.recorded--
	s.changes.added--
	k := holdingKeyOf(o)
	b := s.base[k]
	s.base[k] = held{b.count - 1, b.bytes - int64(o.Bytes)}
}

func holdingKeyOf(o gen.ObjectsObject) gen.ObjectsHoldingKey {
	return gen.ObjectsHoldingKey{Cgroup: o.Cgroup, Device: o.Device, Type: uint16(o.Type), Memory: uint16(o.Memory)}
}

// seen returns the objects that the programs count, and the devices and types of those counted
// without an id: the return of rdma_restrack_add, which has the id, is pending, or was missed and number could not help.
func (s *sensor) seen() (known, unnumbered map[gen.ObjectsAdoptedKey]bool, err error) {
	known, unnumbered = map[gen.ObjectsAdoptedKey]bool{}, map[gen.ObjectsAdoptedKey]bool{}
	var keys []uint64
	var values []gen.ObjectsObject
	_, err = hook.Batches(s.objects.Coll.Maps[gen.ObjectsMapObjects], &keys, &values,
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
