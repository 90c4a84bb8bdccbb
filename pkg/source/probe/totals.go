// SPDX-License-Identifier: Apache-2.0

package probe

import "github.com/accelscope/accelscope/pkg/model"

// totals holds the counters of cgroups on removed devices and under former device names.
type totals struct {
	verbs   model.Totals[model.VerbKey, model.Histogram, *model.Histogram]
	errors  model.Totals[model.VerbErrorKey, model.Count, *model.Count]
	created model.Totals[model.ObjectKey, model.Count, *model.Count]
	lost    model.Totals[model.LossKey, model.Count, *model.Count]
}

// add keeps the counters of a snapshot, without live objects and bytes.
func (t *totals) add(s *model.Snapshot) {
	for i := range s.Verbs {
		t.verbs.Add(s.Verbs[i].Cgroup, s.Verbs[i].Key, s.Verbs[i].Value)
	}
	for i := range s.VerbErrors {
		t.errors.Add(s.VerbErrors[i].Cgroup, s.VerbErrors[i].Key, s.VerbErrors[i].Value)
	}
	for i := range s.Created {
		t.created.Add(s.Created[i].Cgroup, s.Created[i].Key, s.Created[i].Value)
	}
	for i := range s.OwnerLosses {
		t.lost.Add(s.OwnerLosses[i].Cgroup, s.OwnerLosses[i].Key, s.OwnerLosses[i].Value)
	}
}

func (t *totals) forget(ids map[model.CgroupID]bool) {
	t.verbs.Forget(ids)
	t.errors.Forget(ids)
	t.created.Forget(ids)
	t.lost.Forget(ids)
}

// fill adds the counters to a snapshot, which may then list a key twice. If objects are not counted, Created stays nil.
func (t *totals) fill(s *model.Snapshot) {
	s.Verbs = t.verbs.AppendTo(s.Verbs)
	s.VerbErrors = t.errors.AppendTo(s.VerbErrors)
	s.OwnerLosses = t.lost.AppendTo(s.OwnerLosses)
	if s.Created != nil {
		s.Created = t.created.AppendTo(s.Created)
	}
}
