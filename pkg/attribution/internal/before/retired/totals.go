// SPDX-License-Identifier: Apache-2.0

package retired

import "github.com/accelscope/accelscope/pkg/attribution/internal/before/model"

// totals are the facts that accumulate.
type totals struct {
	objects []model.Objects
	verbs   []model.Verb
	errors  []model.VerbError

	requests    []model.WorkRequests
	failures    []model.CompletionErrors
	completions []model.Completions
	budgets     []model.Budget

	opens []model.DeviceOpens
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

	opens map[figure]opens
}

type figure struct {
	device, what, errno string
	sampled             bool
}

type requests struct{ count, bytes uint64 }

type opens struct{ allowed, denied uint64 }

// of are the totals of the cgroups that are wanted.
func (t *totals) of(wanted func(cgroup uint64) bool) totals {
	return totals{
		objects:     those(t.objects, wanted, func(f *model.Objects) uint64 { return f.Cgroup }),
		verbs:       those(t.verbs, wanted, func(f *model.Verb) uint64 { return f.Cgroup }),
		errors:      those(t.errors, wanted, func(f *model.VerbError) uint64 { return f.Cgroup }),
		requests:    those(t.requests, wanted, func(f *model.WorkRequests) uint64 { return f.Cgroup }),
		failures:    those(t.failures, wanted, func(f *model.CompletionErrors) uint64 { return f.Cgroup }),
		completions: those(t.completions, wanted, func(f *model.Completions) uint64 { return f.Cgroup }),
		budgets:     those(t.budgets, wanted, func(f *model.Budget) uint64 { return f.Cgroup }),
		opens:       those(t.opens, wanted, func(f *model.DeviceOpens) uint64 { return f.Cgroup }),
	}
}

// those are the facts of the cgroups that are wanted.
func those[F any](facts []F, wanted func(uint64) bool, cgroup func(*F) uint64) (chosen []F) {
	for i := range facts {
		if wanted(cgroup(&facts[i])) {
			chosen = append(chosen, facts[i])
		}
	}
	return chosen
}

func (t *totals) empty() bool {
	return len(t.objects)+len(t.verbs)+len(t.errors)+len(t.requests)+len(t.failures)+len(t.completions)+len(t.budgets)+
		len(t.opens) == 0
}

func (s *sums) add(t totals) {
	for _, f := range t.objects {
		s.objects[figure{device: f.Device, what: string(f.Type)}] += f.Created
	}
	for _, f := range t.verbs {
		k := figure{device: f.Device, what: f.Verb}
		h := s.verbs[k]
		h.Add(f.Duration)
		s.verbs[k] = h
	}
	for _, f := range t.errors {
		s.errors[figure{device: f.Device, what: f.Verb, errno: f.Errno}] += f.Count
	}
	for _, f := range t.requests {
		k := figure{device: f.Device, what: f.Opcode, sampled: f.Sampled}
		n := s.requests[k]
		s.requests[k] = requests{n.count + f.Count, n.bytes + f.Bytes}
	}
	for _, f := range t.failures {
		s.failures[figure{device: f.Device, what: f.Status, sampled: f.Sampled}] += f.Count
	}
	for i := range t.completions {
		f := &t.completions[i]
		k := figure{device: f.Device, what: f.Opcode, sampled: f.Sampled}
		if s.completions[k] == nil {
			s.completions[k] = &model.FineHistogram{}
		}
		s.completions[k].Add(&f.Duration)
	}
	for _, f := range t.budgets {
		if s.budget == nil {
			s.budget = &model.Budget{}
		}
		// The limit is the same for all; what is over takes nothing now.
		s.budget.LimitRatio = f.LimitRatio
		s.budget.SpentSeconds += f.SpentSeconds
	}
	for _, f := range t.opens {
		k := figure{device: f.Device, what: string(f.Class)}
		n := s.opens[k]
		s.opens[k] = opens{n.allowed + f.Allowed, n.denied + f.Denied}
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
	for f, n := range s.opens {
		facts.DeviceOpens = append(facts.DeviceOpens, model.DeviceOpens{
			Cgroup: cgroup, Device: f.device, Class: model.DeviceClass(f.what), Allowed: n.allowed, Denied: n.denied,
		})
	}
}
