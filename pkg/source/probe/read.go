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
		return drop(k.Cgroup, k.Rdev) && dropped(s.verbs, v.Owner, uint32(gen.VerbsVerbMapVERBS_OF_OWNER))
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
		return drop(k.Cgroup, k.Rdev) && dropped(s.verbs, v.Owner, uint32(gen.VerbsVerbMapERRORS_OF_OWNER))
	}
	if _, err = readMap(s.verbs, gen.VerbsMapVerbErrors, &s.errorKeys, &s.errorStats, visit); err != nil {
		return fmt.Errorf("verb errors: %w", err)
	}
	return nil
}

// dropped subtracts a removed entry from the entries of its owner. It returns true.
func dropped(from *hook.Object, owner uint64, of uint32) bool {
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
