// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"github.com/accelscope/accelscope/pkg/model"
)

type verbKey struct {
	cgroup       uint64
	device, verb string
}

type errorKey struct {
	verbKey
	errno string
}

type createdKey struct {
	cgroup uint64
	device string
	kind   model.ObjectType
}

// totals are what devices that are gone have counted, by name. They stay in
// the figures until their cgroup is forgotten, so that nothing falls.
type totals struct {
	verbs   map[verbKey]model.Histogram
	errors  map[errorKey]uint64
	created map[createdKey]uint64
}

func newTotals() totals {
	return totals{
		verbs:   map[verbKey]model.Histogram{},
		errors:  map[errorKey]uint64{},
		created: map[createdKey]uint64{},
	}
}

// add keeps the totals of a snapshot; live objects and bytes are not kept.
func (t *totals) add(s *model.Snapshot) {
	for _, v := range s.Verbs {
		k := verbKey{v.Cgroup, v.Device, v.Verb}
		h := t.verbs[k]
		h.Add(v.Duration)
		t.verbs[k] = h
	}
	for _, e := range s.VerbErrors {
		t.errors[errorKey{verbKey{e.Cgroup, e.Device, e.Verb}, e.Errno}] += e.Count
	}
	for _, o := range s.Objects {
		t.created[createdKey{o.Cgroup, o.Device, o.Type}] += o.Created
	}
}

func (t *totals) forget(cgroups map[uint64]bool) {
	for k := range t.verbs {
		if cgroups[k.cgroup] {
			delete(t.verbs, k)
		}
	}
	for k := range t.errors {
		if cgroups[k.cgroup] {
			delete(t.errors, k)
		}
	}
	for k := range t.created {
		if cgroups[k.cgroup] {
			delete(t.created, k)
		}
	}
}

// fill adds the totals to a snapshot, where the same key may occur twice.
func (t *totals) fill(s *model.Snapshot) {
	for k, h := range t.verbs {
		s.Verbs = append(s.Verbs, model.Verb{Cgroup: k.cgroup, Device: k.device, Verb: k.verb, Duration: h})
	}
	for k, n := range t.errors {
		s.VerbErrors = append(s.VerbErrors, model.VerbError{
			Cgroup: k.cgroup, Device: k.device, Verb: k.verb, Errno: k.errno, Count: n,
		})
	}
	for k, n := range t.created {
		s.Objects = append(s.Objects, model.Objects{Cgroup: k.cgroup, Device: k.device, Type: k.kind, Created: n})
	}
}
