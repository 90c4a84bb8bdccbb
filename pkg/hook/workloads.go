// SPDX-License-Identifier: Apache-2.0

package hook

import (
	"errors"

	"github.com/cilium/ebpf"

	"github.com/accelscope/accelscope/pkg/model"
)

// The maps of bpf/owner.h that all objects share.
const (
	markedCgroupsMap = "marked_cgroups"
	workloadOfMap    = "workload_of"
)

// Workloads holds the maps from which the programs read which cgroups belong together (bpf/owner.h). All objects that
// are made with it share its maps.
type Workloads struct{ maps map[string]*ebpf.Map }

// NewWorkloads makes the maps, as a compiled object with shares describes them.
func NewWorkloads(spec *ebpf.CollectionSpec) (*Workloads, error) {
	w := &Workloads{maps: map[string]*ebpf.Map{}}
	for _, name := range []string{markedCgroupsMap, workloadOfMap} {
		m, err := ebpf.NewMap(spec.Maps[name])
		if err != nil {
			return nil, errors.Join(WithoutGuess(err), w.Close())
		}
		w.maps[name] = m
	}
	return w, nil
}

// The enum marked of bpf/owner.h.
const (
	markedWorkload uint32 = 1
	markedShare    uint32 = 2
)

// Mark implements model.WorkloadMarker.
func (w *Workloads) Mark(id model.CgroupID, workload bool) error {
	mark := markedShare
	if workload {
		mark = markedWorkload
	}
	return w.maps[markedCgroupsMap].Put(uint64(id), mark)
}

// Unmark implements model.WorkloadMarker.
func (w *Workloads) Unmark(id model.CgroupID) {
	_ = w.maps[markedCgroupsMap].Delete(uint64(id))
}

// Close closes the maps. Objects that were made with them keep them.
func (w *Workloads) Close() error {
	var errs []error
	for _, m := range w.maps {
		errs = append(errs, m.Close())
	}
	return errors.Join(errs...)
}

// Replacements returns the maps that an object uses in place of its own. w may be nil.
func (w *Workloads) Replacements(spec *ebpf.CollectionSpec) map[string]*ebpf.Map {
	if w == nil || spec.Maps[markedCgroupsMap] == nil {
		return nil
	}
	return w.maps
}
