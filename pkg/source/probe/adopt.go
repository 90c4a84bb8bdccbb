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

// lossMark remembers how much was lost when objects were last adopted, and how
// often in a row not all that exist could be listed.
type lossMark struct {
	lost  uint64
	at    time.Time
	fails int
}

// How often the sensor's view is put right after a loss, at most: a dump of
// queue pairs is a firmware command for each of them. After a failure it is
// twice as long each time, up to an hour.
const reconcileInterval = time.Minute

// due says whether to adopt again.
func (m lossMark) due(now time.Time, lost uint64) bool {
	return (m.fails > 0 || m.lost != lost) && now.Sub(m.at) >= reconcileInterval<<min(m.fails, 6)
}

// adopt books the objects that existed before the hooks were attached, once
// each: what a program has seen is known by its restrack id. A device that
// cannot be listed costs its own objects, and is tried again later.
func (s *sensor) adopt(ctx context.Context, opts Options) error {
	if opts.Objects == nil {
		return nil
	}
	fails := s.adoptedAt.fails
	s.adoptedAt = lossMark{lost: s.lost(), at: time.Now()}
	err := s.adoptListed(ctx, opts)
	if err != nil && !errors.Is(err, model.ErrUnsupported) {
		s.adoptedAt.fails = fails + 1
	}
	return err
}

// adoptListed books what RDMA netlink lists.
//
// An object may go between the dump and its booking, when no program knows it
// yet. The second dump tells, and what it lacks is taken back.
func (s *sensor) adoptListed(ctx context.Context, opts Options) error {
	found, err := list(ctx, opts)
	seen, unnumbered, seenErr := s.seen()
	if seenErr != nil {
		return errors.Join(err, seenErr)
	}
	adopted := map[gen.ObjectsAdoptedKey]gen.ObjectsObject{}
	for _, o := range found {
		// The first of a device has the id 0 by right.
		if code, ok := typeCode(o.Type); ok && o.ID == 0 {
			delete(unnumbered, gen.ObjectsAdoptedKey{Device: o.Index, Type: uint32(code)})
		}
	}
	doubtful := 0
	for _, o := range found {
		code, ok := typeCode(o.Type)
		key := gen.ObjectsAdoptedKey{Device: o.Index, Type: uint32(code), Id: o.ID}
		// The programs do not see CM ids go: they stay with nobody.
		if !ok || seen[key] || o.Type == model.CMID {
			continue
		}
		// Perhaps the one whose id we missed: nobody's is better than twice.
		if unnumbered[gen.ObjectsAdoptedKey{Device: key.Device, Type: key.Type}] {
			doubtful++
			continue
		}
		value := gen.ObjectsObject{Device: o.Index, Id: o.ID, Type: code, Bytes: o.Bytes}
		if o.PID != 0 && opts.CgroupOf != nil {
			// No such process any more: the object is nobody's.
			if id, err := opts.CgroupOf(o.PID); err == nil {
				value.Cgroup = id
			}
		}
		if bookErr := s.book(key, value, o.Device); bookErr != nil {
			err = errors.Join(err, bookErr)
			break
		}
		s.join(o, value.Cgroup)
		adopted[key] = value
	}
	if doubtful > 0 {
		err = errors.Join(err, fmt.Errorf("%d objects exist beside one that was seen without its id", doubtful))
	}
	if len(adopted) == 0 {
		return err
	}
	again, againErr := list(ctx, opts)
	if seen, _, seenErr = s.seen(); seenErr != nil {
		return errors.Join(err, seenErr)
	}
	gone := maps.Clone(adopted)
	parted := maps.Clone(adopted)
	for _, o := range again {
		key := gen.ObjectsAdoptedKey{Device: o.Index, Id: o.ID}
		if code, ok := typeCode(o.Type); ok {
			key.Type = uint32(code)
		}
		delete(parted, key)
		// One that was just being made when it was dumped is known twice.
		if !seen[key] {
			delete(gone, key)
		}
	}
	for key, value := range gone {
		s.unbook(key, value)
	}
	for key := range parted {
		s.part(key)
	}
	return errors.Join(err, againErr)
}

// list is what exists, as far as it can be listed.
func list(ctx context.Context, opts Options) ([]model.Object, error) {
	objects, err := opts.Objects(ctx)
	if err != nil {
		err = fmt.Errorf("listing the objects that exist: %w", err)
	}
	return objects, err
}

// book hands one object to the programs and to the base counts.
func (s *sensor) book(key gen.ObjectsAdoptedKey, o gen.ObjectsObject, device string) error {
	err := s.objects.Coll.Maps[gen.ObjectsMapAdopted].Update(key, o, ebpf.UpdateNoExist)
	switch {
	case errors.Is(err, ebpf.ErrKeyExist):
		return nil
	case err != nil:
		return fmt.Errorf("adopting an object: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.booked++
	if _, ok := s.indexes[key.Device]; !ok {
		s.indexes[key.Device] = device
	}
	k := holdingKeyOf(o)
	b := s.base[k]
	s.base[k] = held{b.count + 1, b.bytes + int64(o.Bytes)}
	return nil
}

// unbook takes back an object that went unseen. One that a program has taken,
// or is about to, is left to it.
func (s *sensor) unbook(key gen.ObjectsAdoptedKey, o gen.ObjectsObject) {
	m := s.objects.Coll.Maps[gen.ObjectsMapAdopted]
	var now gen.ObjectsObject
	if m.Lookup(key, &now) != nil || now.Hidden != 0 || m.Delete(key) != nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.booked--
	k := holdingKeyOf(o)
	b := s.base[k]
	s.base[k] = held{b.count - 1, b.bytes - int64(o.Bytes)}
}

func holdingKeyOf(o gen.ObjectsObject) gen.ObjectsHoldingKey {
	return gen.ObjectsHoldingKey{Cgroup: o.Cgroup, Device: o.Device, Type: uint16(o.Type), Memory: uint16(o.Memory)}
}

// seen are the objects that the programs know, and the devices and types of
// those that they know without an id: the return of rdma_restrack_add, which
// tells it, is yet to come or was missed.
func (s *sensor) seen() (known, unnumbered map[gen.ObjectsAdoptedKey]bool, err error) {
	known, unnumbered = map[gen.ObjectsAdoptedKey]bool{}, map[gen.ObjectsAdoptedKey]bool{}
	var keys []uint64
	var values []gen.ObjectsObject
	_, err = hook.Batches(s.objects.Coll.Maps[gen.ObjectsMapObjects], &keys, &values,
		func(_ uint64, o *gen.ObjectsObject) {
			key := gen.ObjectsAdoptedKey{Device: o.Device, Type: uint32(o.Type), Id: o.Id}
			if o.Id == 0 {
				unnumbered[key] = true
			}
			known[key] = true
		})
	if err != nil {
		return nil, nil, fmt.Errorf("objects seen so far: %w", err)
	}
	return known, unnumbered, nil
}

// lost counts the objects that could not be counted. One whose return was missed
// is: its making is counted at the entry.
func (s *sensor) lost() uint64 {
	var counts [gen.VerbsLossLOSSES]uint64
	if s.objects.Coll.Variables[gen.ObjectsVarObjectLosses].Get(&counts) != nil {
		return 0
	}
	return counts[gen.VerbsLossLOSS_OBJECTS_FULL]
}
