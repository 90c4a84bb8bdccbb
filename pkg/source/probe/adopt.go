// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/cilium/ebpf"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

// lossMark holds the loss count and time of the last adoption, and the number of failed
// adoptions in a row.
type lossMark struct {
	lost    uint64
	at      time.Time
	fails   int
	differs bool // a comparison found a difference
	idle    int  // adoptions in a row that changed nothing
}

// reconcileInterval is the minimum interval of reconciling after a loss: a dump of queue pairs
// is a firmware command for each of them. The interval doubles after each failure, and after
// each reconciliation that changed nothing, up to an hour.
const reconcileInterval = time.Minute

// due reports whether to adopt again.
func (m lossMark) due(now time.Time, lost uint64) bool {
	return (m.fails > 0 || m.differs || m.lost != lost) && now.Sub(m.at) >= reconcileInterval<<min(max(m.fails, m.idle), 6)
}

// adopt records the objects that existed before the hooks were attached, once each: objects
// that a program has seen are recognized by their restrack id. The listing does not report the
// kind of memory of a region. A device that cannot be listed omits its own objects and is tried
// again later.
func (s *sensor) adopt(ctx context.Context, opts Options) error {
	if opts.Objects == nil {
		return nil
	}
	last := s.adoptedAt
	s.adoptedAt = lossMark{lost: s.lost(), at: time.Now()}
	s.changes = repairs{}
	err := s.adoptListed(ctx, opts)
	s.compared = comparison{}
	switch {
	case last.at.IsZero(): // what existed before the hooks is no repair
	case s.changes == repairs{}:
		s.adoptedAt.idle = last.idle + 1
	default:
		s.mu.Lock()
		s.repaired = s.repaired.plus(s.changes)
		s.mu.Unlock()
	}
	if err != nil && !errors.Is(err, model.ErrUnsupported) {
		s.adoptedAt.fails = last.fails + 1
	}
	return err
}

// adoptListed records the objects that RDMA netlink lists.
//
// An object may be destroyed between the dump and its record, when no program has seen it.
// Objects missing from a second dump are removed again. So are counted objects that both dumps
// lack: a program was skipped when they ended.
func (s *sensor) adoptListed(ctx context.Context, opts Options) error {
	counted := s.counted(ctx, opts)
	found, err := list(ctx, opts)
	var ended []entry
	if err == nil {
		ended = s.unlisted(counted, found)
	}
	seen, unnumbered, seenErr := s.seen()
	if seenErr != nil {
		return errors.Join(err, seenErr)
	}
	adopted := map[gen.ObjectsAdoptedKey]gen.ObjectsObject{}
	doubtful := 0
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
			continue
		}
		value := gen.ObjectsObject{Device: o.Index, Id: o.ID, Type: code, Memory: memoryCode(o), Bytes: o.Bytes}
		if o.PID != 0 && opts.CgroupOf != nil {
			// Without the process the object stays unattributed.
			if id, err := opts.CgroupOf(o.PID); err == nil {
				value.Cgroup = uint64(id)
			}
		}
		added, recordErr := s.record(key, value, o.Device)
		if recordErr != nil {
			err = errors.Join(err, recordErr)
			break
		}
		s.addPeer(o, model.CgroupID(value.Cgroup))
		if added {
			adopted[key] = value
		}
	}
	if doubtful > 0 {
		err = errors.Join(err, fmt.Errorf("%d objects are not adopted: they may be counted already, without their id", doubtful))
	}
	if len(adopted)+len(ended) == 0 {
		return err
	}
	again, againErr := list(ctx, opts)
	if againErr == nil {
		for _, e := range s.unlisted(ended, again) {
			s.remove(e)
		}
	}
	if seen, _, seenErr = s.seen(); seenErr != nil {
		return errors.Join(err, seenErr)
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
	return errors.Join(err, againErr)
}

// list returns the existing objects that can be listed.
func list(ctx context.Context, opts Options) ([]model.Object, error) {
	objects, err := opts.Objects(ctx)
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
// without an id: the return of rdma_restrack_add, which has the id, is pending or was missed.
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

// lost returns the number of objects that could not be counted, and of skipped programs at the
// last read. An object with a missed return is counted: the programs count at the entry.
func (s *sensor) lost() uint64 {
	s.mu.Lock()
	lost := s.skipped
	s.mu.Unlock()
	var counts [gen.VerbsLossLOSSES]uint64
	if s.objects.Coll.Variables[gen.ObjectsVarObjectLosses].Get(&counts) == nil {
		lost += counts[gen.VerbsLossLOSS_OBJECTS_FULL]
	}
	return lost
}
