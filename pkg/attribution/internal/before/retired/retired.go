// SPDX-License-Identifier: Apache-2.0

package retired

import (
	"github.com/accelscope/accelscope/pkg/attribution/internal/before/attribution"
	"github.com/accelscope/accelscope/pkg/attribution/internal/before/model"
)

// retired keeps the totals of an owner from falling. They are the sum over its
// cgroups, and one may leave before the others: a job step that is over, or,
// of the cgroups that count for nobody, one that gets its name late. What it
// had counted stays with the owner for as long as that has any other cgroup;
// nobody always has.
//
// The bytes of the data path are not among them: the attribution.Ledger books them
// as they grow, and what is booked stays when the cgroup is forgotten.
type retired struct {
	kept      // what the probe counts
	path kept // what is seen on the data path
	// access is the opens of device nodes. Each of them answers for itself.
	access kept
}

// forget takes leave of cgroups that are about to be forgotten.
func (r *retired) forget(facts *model.Snapshot, cgroups []uint64) {
	r.kept.forget(facts, cgroups)
	r.path.forget(facts, cgroups)
	r.access.forget(facts, cgroups)
}

// add adds to facts what those that left had counted. A probe that counts verbs
// and no objects has answered.
func (r *retired) add(facts *model.Snapshot) {
	r.kept.add(facts, facts.Objects != nil || facts.Verbs != nil, totals{
		objects: facts.Objects, verbs: facts.Verbs, errors: facts.VerbErrors,
	})
	r.path.add(facts, facts.WorkRequests != nil || facts.Budgets != nil, totals{
		requests: facts.WorkRequests, failures: facts.CompletionErrors, completions: facts.Completions,
		budgets: facts.Budgets,
	})
	r.access.add(facts, facts.DeviceOpens != nil, totals{opens: facts.DeviceOpens})
}

// kept is what one source counted.
type kept struct {
	// own is what it said in this refresh, without what is added to it.
	own totals
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

// forget notes the figures of cgroups. They are their own: what others left to
// their owner was added to one of them.
func (r *kept) forget(facts *model.Snapshot, cgroups []uint64) {
	if r.leaving == nil {
		r.leaving = map[uint64]leaver{}
	}
	for _, id := range cgroups {
		t := r.own.of(func(cgroup uint64) bool { return cgroup == id })
		if !t.empty() {
			r.leaving[id] = leaver{owner: attribution.OwnerOf(facts.Entities[id]), totals: t}
		}
	}
}

// add adds to facts what those that left had counted. While the source does not
// answer nothing can be said of who left. To what it did not collect nothing is
// added.
func (r *kept) add(facts *model.Snapshot, answered bool, own totals) {
	if r.own = own; !answered {
		return
	}
	nobody := func(cgroup uint64) bool { return facts.Entities[cgroup].Workload == "" }
	named := func(cgroup uint64) bool { return !nobody(cgroup) }
	r.of(attribution.Owner{}).add(r.unnamed.of(named))
	r.unnamed = own.of(nobody)

	if len(r.leaving) > 0 {
		present := map[uint64]bool{}
		own.of(func(cgroup uint64) bool { present[cgroup] = true; return false })
		for id, l := range r.leaving {
			if !present[id] {
				r.of(l.owner).add(l.totals)
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
	if own.objects == nil {
		more.Objects = nil
	}
	if own.requests == nil {
		more.WorkRequests = nil
	}
	if own.failures == nil {
		more.CompletionErrors = nil
	}
	if own.completions == nil {
		more.Completions = nil
	}
	if own.budgets == nil {
		more.Budgets = nil
	}
	facts.Merge(more)
}

func (r *kept) of(owner attribution.Owner) *sums {
	if r.left == nil {
		r.left = map[attribution.Owner]*sums{}
	}
	s := r.left[owner]
	if s == nil {
		s = &sums{
			objects: map[figure]uint64{}, verbs: map[figure]model.Histogram{}, errors: map[figure]uint64{},
			requests: map[figure]requests{}, failures: map[figure]uint64{}, completions: map[figure]*model.FineHistogram{},
			opens: map[figure]opens{},
		}
		r.left[owner] = s
	}
	return s
}
