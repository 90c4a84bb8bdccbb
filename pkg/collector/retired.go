// SPDX-License-Identifier: Apache-2.0

package collector

import (
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// retired keeps the totals of an owner from falling. They are the sum over its
// cgroups, and one may leave before the others: a job step that is over, or,
// of the cgroups that count for nobody, one that gets its name late. What it
// had counted stays with the owner for as long as that has any other cgroup;
// nobody always has.
type retired struct {
	// own is what the sources said in this refresh, without what is added to it.
	own model.Snapshot
	// unnamed is what the cgroups without a name had counted last.
	unnamed totals
	// leaving are the cgroups that the sources were told to forget, and their
	// last figures, until the sources have done so.
	leaving map[uint64]leaver
	// left is the sum over those that are gone.
	left map[attribution.Owner]*sums
}

type leaver struct {
	owner attribution.Owner
	totals
}

// totals are the facts that accumulate.
type totals struct {
	objects []model.Objects
	verbs   []model.Verb
	errors  []model.VerbError
}

// sums are totals by what they count.
type sums struct {
	objects map[figure]uint64
	verbs   map[figure]model.Histogram
	errors  map[figure]uint64
}

type figure struct{ device, what, errno string }

// totalsOf are the totals of the cgroups that are wanted.
func totalsOf(facts *model.Snapshot, wanted func(cgroup uint64) bool) (t totals) {
	for i := range facts.Objects {
		if wanted(facts.Objects[i].Cgroup) {
			t.objects = append(t.objects, facts.Objects[i])
		}
	}
	for i := range facts.Verbs {
		if wanted(facts.Verbs[i].Cgroup) {
			t.verbs = append(t.verbs, facts.Verbs[i])
		}
	}
	for i := range facts.VerbErrors {
		if wanted(facts.VerbErrors[i].Cgroup) {
			t.errors = append(t.errors, facts.VerbErrors[i])
		}
	}
	return t
}

// forget takes leave of cgroups that are about to be forgotten. Their figures
// are their own: what others left to their owner was added to one of them.
func (r *retired) forget(facts *model.Snapshot, cgroups []uint64) {
	if r.leaving == nil {
		r.leaving = map[uint64]leaver{}
	}
	for _, id := range cgroups {
		r.leaving[id] = leaver{
			owner:  attribution.OwnerOf(facts.Entities[id]),
			totals: totalsOf(&r.own, func(cgroup uint64) bool { return cgroup == id }),
		}
	}
}

// add adds to facts what those that left had counted. While the probe does not
// answer nothing can be said of who left. A probe that counts verbs and no
// objects has answered: then no objects are added, for they are not counted.
func (r *retired) add(facts *model.Snapshot) {
	r.own = model.Snapshot{Objects: facts.Objects, Verbs: facts.Verbs, VerbErrors: facts.VerbErrors}
	if facts.Objects == nil && facts.Verbs == nil {
		return
	}
	nobody := func(cgroup uint64) bool { return facts.Entities[cgroup].Workload == "" }
	named := func(cgroup uint64) bool { return !nobody(cgroup) }
	r.of(attribution.Owner{}).add(r.unnamed, named)
	r.unnamed = totalsOf(facts, nobody)

	if len(r.leaving) > 0 {
		present := map[uint64]bool{}
		totalsOf(facts, func(cgroup uint64) bool { present[cgroup] = true; return false })
		for id, l := range r.leaving {
			if !present[id] {
				r.of(l.owner).add(l.totals, func(uint64) bool { return true })
				delete(r.leaving, id)
			}
		}
	}

	// Cgroup 0 does not exist, and so is nobody's.
	cgroupOf := map[attribution.Owner]uint64{{}: 0}
	if len(r.left) > 1 {
		for id, e := range facts.Entities {
			if e.Workload != "" {
				cgroupOf[attribution.OwnerOf(e)] = id
			}
		}
	}
	var more model.Snapshot
	for owner, s := range r.left {
		if cgroup, ok := cgroupOf[owner]; ok {
			s.appendTo(&more, cgroup)
		} else {
			delete(r.left, owner)
		}
	}
	if facts.Objects == nil {
		more.Objects = nil
	}
	facts.Merge(more)
}

func (r *retired) of(owner attribution.Owner) *sums {
	if r.left == nil {
		r.left = map[attribution.Owner]*sums{}
	}
	s := r.left[owner]
	if s == nil {
		s = &sums{map[figure]uint64{}, map[figure]model.Histogram{}, map[figure]uint64{}}
		r.left[owner] = s
	}
	return s
}

func (s *sums) add(t totals, wanted func(cgroup uint64) bool) {
	for _, f := range t.objects {
		if wanted(f.Cgroup) {
			s.objects[figure{device: f.Device, what: string(f.Type)}] += f.Created
		}
	}
	for _, f := range t.verbs {
		if wanted(f.Cgroup) {
			k := figure{device: f.Device, what: f.Verb}
			h := s.verbs[k]
			h.Add(f.Duration)
			s.verbs[k] = h
		}
	}
	for _, f := range t.errors {
		if wanted(f.Cgroup) {
			s.errors[figure{device: f.Device, what: f.Verb, errno: f.Errno}] += f.Count
		}
	}
}

func (s *sums) appendTo(facts *model.Snapshot, cgroup uint64) {
	for f, n := range s.objects {
		facts.Objects = append(facts.Objects,
			model.Objects{Cgroup: cgroup, Device: f.device, Type: model.ObjectType(f.what), Created: n})
	}
	for f, h := range s.verbs {
		facts.Verbs = append(facts.Verbs, model.Verb{Cgroup: cgroup, Device: f.device, Verb: f.what, Duration: h})
	}
	for f, n := range s.errors {
		facts.VerbErrors = append(facts.VerbErrors,
			model.VerbError{Cgroup: cgroup, Device: f.device, Verb: f.what, Errno: f.errno, Count: n})
	}
}
