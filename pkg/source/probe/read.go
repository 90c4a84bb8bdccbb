// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

// buffers are reused between reads.
type buffers struct {
	verbKeys    []gen.VerbsVerbKey
	verbStats   []gen.VerbsVerbStat
	errorKeys   []gen.VerbsErrorKey
	errorStats  []gen.VerbsErrorStat
	holdingKeys []gen.ObjectsHoldingKey
	holdings    []gen.ObjectsHolding
}

// read adds the counters of the kernel to snap and deletes the entries of forgotten cgroups.
func (s *sensor) read(snap *model.Snapshot, names deviceNames, forget map[model.CgroupID]bool) error {
	drop := func(cgroup uint64, _ uint32) bool { return forget[model.CgroupID(cgroup)] }
	keep := func(cgroup uint64, _ uint32) bool { return !forget[model.CgroupID(cgroup)] }
	return errors.Join(s.readVerbs(snap, names, keep, drop), s.readHoldings(snap, forget), s.settleOwners(forget))
}

// settleOwners writes how many entries this process made and removed to the maps of the programs, and drops the owners that ended.
func (s *sensor) settleOwners(forget map[model.CgroupID]bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, o := range s.all() {
		if o.Owners != nil {
			errs = append(errs, o.Owners.Settle(forget))
		}
	}
	s.unadopted.forget(forget)
	return errors.Join(errs...)
}

// readVerbs adds the verbs of the (cgroup, device number) pairs that add selects, and deletes the entries that drop
// selects.
func (s *sensor) readVerbs(snap *model.Snapshot, names deviceNames, add, drop func(uint64, uint32) bool) error {
	if s.verbs == nil {
		return nil
	}
	_, err := readMap(s.verbs, gen.VerbsMapVerbs, &s.verbKeys, &s.verbStats, func(k gen.VerbsVerbKey, v *gen.VerbsVerbStat) bool {
		if add(k.Cgroup, k.Rdev) {
			snap.Verbs = append(snap.Verbs, model.Series[model.VerbKey, model.Histogram]{
				Cgroup: model.CgroupID(k.Cgroup), Key: model.VerbKey{Device: names.of(k.Rdev), Verb: verbName(k.Verb)}, Value: histogram(v),
			})
		}
		return drop(k.Cgroup, k.Rdev) && s.dropped(s.verbs, v.Owner, uint32(gen.VerbsVerbMapVERBS_OF_OWNER))
	})
	if err != nil {
		return fmt.Errorf("verbs: %w", err)
	}
	visit := func(k gen.VerbsErrorKey, v *gen.VerbsErrorStat) bool {
		if add(k.Cgroup, k.Rdev) {
			snap.VerbErrors = append(snap.VerbErrors, model.Series[model.VerbErrorKey, model.Count]{
				Cgroup: model.CgroupID(k.Cgroup), Value: model.Count(v.Count),
				Key: model.VerbErrorKey{Device: names.of(k.Rdev), Verb: verbName(uint32(k.Verb)), Errno: errnoName(k.Err)},
			})
		}
		return drop(k.Cgroup, k.Rdev) && s.dropped(s.verbs, v.Owner, uint32(gen.VerbsVerbMapERRORS_OF_OWNER))
	}
	if _, err = readMap(s.verbs, gen.VerbsMapVerbErrors, &s.errorKeys, &s.errorStats, visit); err != nil {
		return fmt.Errorf("verb errors: %w", err)
	}
	return nil
}

// dropped subtracts a removed entry from the entries of its owner. It returns true.
func (s *sensor) dropped(from *hook.Object, owner uint64, of uint32) bool {
	from.Owners.Add(owner, of, -1)
	return true
}

// readMap calls visit for each entry of a map. It deletes the entries for which visit returned true and returns their
// keys.
func readMap[K, V any](o *hook.Object, name string, keys *[]K, values *[]V, visit func(K, *V) bool) ([]K, error) {
	gone, left, err := hook.Sweep(o.Coll.Maps[name], keys, values, func(k *K, v *V) bool { return visit(*k, v) })
	if err != nil {
		return nil, err
	}
	o.Entries[name] = left
	return gone, nil
}

func histogram(v *gen.VerbsVerbStat) model.Histogram {
	h := model.Histogram{Sum: v.SumNs, Buckets: v.Buckets}
	for _, n := range v.Buckets {
		h.Count += n
	}
	return h
}

// readHoldings adds the objects: those counted by the programs, and those older than the hooks.
func (s *sensor) readHoldings(snap *model.Snapshot, forget map[model.CgroupID]bool) error {
	if s.objects == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	counted := make(map[gen.ObjectsHoldingKey]bool, len(s.base))
	visit := func(k gen.ObjectsHoldingKey, v *gen.ObjectsHolding) bool {
		if forget[model.CgroupID(k.Cgroup)] {
			return s.dropped(s.objects, v.Owner, uint32(gen.ObjectsObjectMapHOLDINGS_OF_OWNER))
		}
		b, ok := s.base[k]
		if ok {
			counted[k] = true
		}
		s.addHolding(snap, k, held{v.Current + b.count, v.Bytes + b.bytes})
		s.addCreated(snap, k, v.Created)
		return false
	}
	gone, err := readMap(s.objects, gen.ObjectsMapHoldings, &s.holdingKeys, &s.holdings, visit)
	if err != nil {
		return fmt.Errorf("objects: %w", err)
	}
	for _, k := range gone {
		delete(s.renamed, k)
	}
	for k, b := range s.base {
		switch {
		case forget[model.CgroupID(k.Cgroup)]:
			delete(s.base, k)
		case !counted[k]:
			s.addHolding(snap, k, b)
			s.addCreated(snap, k, 0)
		}
	}
	s.former.Forget(forget)
	snap.Created = s.former.AppendTo(snap.Created)
	return nil
}

func (s *sensor) addHolding(snap *model.Snapshot, k gen.ObjectsHoldingKey, now held) {
	cgroup, device, kind := model.CgroupID(k.Cgroup), s.deviceName(k.Device), objectType(k.Type)
	snap.Objects = append(snap.Objects, model.Objects{Cgroup: cgroup, Device: device, Type: kind, Current: positive(now.count)})
	if kind == model.MR {
		snap.Registered = append(snap.Registered, model.Registered{
			Cgroup: cgroup, Device: device, Memory: memoryName(k.Memory), Bytes: positive(now.bytes),
		})
	}
}

// addCreated adds the number of objects created under the current name of their device.
func (s *sensor) addCreated(snap *model.Snapshot, k gen.ObjectsHoldingKey, created uint64) {
	snap.Created = append(snap.Created, model.Series[model.ObjectKey, model.Count]{
		Cgroup: model.CgroupID(k.Cgroup), Key: model.ObjectKey{Device: s.deviceName(k.Device), Type: objectType(k.Type)},
		Value: model.Count(created - min(created, s.renamed[k])),
	})
}

// positive returns n, or zero: a count is negative between two increments for one object.
func positive(n int64) uint64 {
	return uint64(max(n, 0))
}

// deviceName returns the name from the last reindex, or the name that a program recorded. A removed device keeps its
// last name.
func (s *sensor) deviceName(index uint32) string {
	if name, ok := s.indexes[index]; ok {
		return name
	}
	var name gen.ObjectsDeviceName
	if err := s.objects.Coll.Maps[gen.ObjectsMapDevices].Lookup(index, &name); err != nil {
		return ""
	}
	s.indexes[index] = cString(name.Name[:])
	return s.indexes[index]
}

func (s *sensor) self(snap *model.Snapshot, losses *losses) {
	if s.verbs != nil {
		s.add(snap, losses, s.verbs)
	}
	if s.objects == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	vars := s.objects.Coll.Variables
	s.objects.Entries[gen.ObjectsMapObjects] = variable(vars[gen.ObjectsVarLiveObjects]) - s.endedUnseen
	// The programs decrement the variable; this process increments recorded.
	s.objects.Entries[gen.ObjectsMapAdopted] = s.recorded + variable(vars[gen.ObjectsVarLiveAdopted])
	s.skipped = s.add(snap, losses, s.objects)
	s.unadopted.fill(snap, losses)
	if s.peers == nil {
		return
	}
	s.peers.Entries[gen.PeersMapPeers] = s.joined + variable(s.peers.Coll.Variables[gen.PeersVarLivePeers])
	s.add(snap, losses, s.peers)
	losses[gen.VerbsLossLOSS_PEERS_FULL] += s.unjoined
}

// add adds the sizes of the maps and the losses of an object, and returns the number of skipped programs.
func (s *sensor) add(snap *model.Snapshot, losses *losses, o *hook.Object) (skipped uint64) {
	o.FillMaps(snap)
	lost := o.Losses()
	for i, n := range lost {
		losses[i] += n
	}
	if err := o.FillOwners(snap, lost); err != nil {
		s.opts.Logger.Debug("cannot read the losses of owners", zap.Error(err))
	}
	skipped = o.Missed()
	losses[gen.VerbsLossLOSSES] += skipped
	return skipped
}

func variable(v *ebpf.Variable) uint64 {
	var n uint64
	if v.Get(&n) != nil {
		return 0
	}
	return n
}

// losses counts data that could not be recorded, by reason. The last entry counts programs that the kernel skipped.
type losses [gen.VerbsLossLOSSES + 1]uint64

func (l *losses) fill(snap *model.Snapshot) {
	for i, n := range l {
		snap.Losses = append(snap.Losses, model.Loss{Reason: lossNames[i], Count: n})
	}
}
