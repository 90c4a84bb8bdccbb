// SPDX-License-Identifier: Apache-2.0

package collector

import "github.com/accelscope/accelscope/pkg/model"

// totals are the facts that accumulate.
type totals struct {
	objects []model.Objects
	verbs   []model.Verb
	errors  []model.VerbError

	requests    []model.WorkRequests
	failures    []model.CompletionErrors
	completions []model.Completions
	budgets     []model.Budget
}

// sums are totals by what they count.
type sums struct {
	objects map[figure]uint64
	verbs   map[figure]model.Histogram
	errors  map[figure]uint64

	requests    map[figure]requests
	failures    map[figure]uint64
	completions map[figure]*model.FineHistogram
	budget      *model.Budget
}

type figure struct {
	device, what, errno string
	sampled             bool
}

type requests struct{ count, bytes uint64 }

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
	for i := range facts.WorkRequests {
		if wanted(facts.WorkRequests[i].Cgroup) {
			t.requests = append(t.requests, facts.WorkRequests[i])
		}
	}
	for i := range facts.CompletionErrors {
		if wanted(facts.CompletionErrors[i].Cgroup) {
			t.failures = append(t.failures, facts.CompletionErrors[i])
		}
	}
	for i := range facts.Completions {
		if wanted(facts.Completions[i].Cgroup) {
			t.completions = append(t.completions, facts.Completions[i])
		}
	}
	for i := range facts.Budgets {
		if wanted(facts.Budgets[i].Cgroup) {
			t.budgets = append(t.budgets, facts.Budgets[i])
		}
	}
	return t
}

func (t *totals) empty() bool {
	return len(t.objects)+len(t.verbs)+len(t.errors)+len(t.requests)+len(t.failures)+len(t.completions)+len(t.budgets) == 0
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
	for _, f := range t.requests {
		if wanted(f.Cgroup) {
			k := figure{device: f.Device, what: f.Opcode, sampled: f.Sampled}
			n := s.requests[k]
			s.requests[k] = requests{n.count + f.Count, n.bytes + f.Bytes}
		}
	}
	for _, f := range t.failures {
		if wanted(f.Cgroup) {
			s.failures[figure{device: f.Device, what: f.Status, sampled: f.Sampled}] += f.Count
		}
	}
	for i := range t.completions {
		if f := &t.completions[i]; wanted(f.Cgroup) {
			k := figure{device: f.Device, what: f.Opcode, sampled: f.Sampled}
			if s.completions[k] == nil {
				s.completions[k] = &model.FineHistogram{}
			}
			s.completions[k].Add(&f.Duration)
		}
	}
	for _, f := range t.budgets {
		if wanted(f.Cgroup) {
			if s.budget == nil {
				s.budget = &model.Budget{}
			}
			// The limit is the same for all; what is over takes nothing now.
			s.budget.LimitRatio = f.LimitRatio
			s.budget.SpentSeconds += f.SpentSeconds
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
	seen := func(f figure) model.Seen { return model.Seen{Sampled: f.sampled} }
	for f, n := range s.requests {
		facts.WorkRequests = append(facts.WorkRequests, model.WorkRequests{
			Cgroup: cgroup, Device: f.device, Opcode: f.what, Count: n.count, Bytes: n.bytes, Seen: seen(f),
		})
	}
	for f, n := range s.failures {
		facts.CompletionErrors = append(facts.CompletionErrors,
			model.CompletionErrors{Cgroup: cgroup, Device: f.device, Status: f.what, Count: n, Seen: seen(f)})
	}
	for f, h := range s.completions {
		facts.Completions = append(facts.Completions,
			model.Completions{Cgroup: cgroup, Device: f.device, Opcode: f.what, Duration: *h, Seen: seen(f)})
	}
	if b := s.budget; b != nil {
		facts.Budgets = append(facts.Budgets,
			model.Budget{Cgroup: cgroup, LimitRatio: b.LimitRatio, SpentSeconds: b.SpentSeconds})
	}
}
