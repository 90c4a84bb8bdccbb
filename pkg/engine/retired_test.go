// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// pathFacts is what n of everything looks like, exact and sampled, of each cgroup.
func pathFacts(counts map[uint64]uint64, entities map[uint64]model.Entity) *model.Snapshot {
	s := &model.Snapshot{
		WorkRequests: []model.WorkRequests{}, CompletionErrors: []model.CompletionErrors{}, Completions: []model.Completions{},
		Budgets: []model.Budget{}, Entities: entities,
	}
	for id, n := range counts {
		for _, seen := range []model.Seen{{}, {Sampled: true}} {
			if seen.Sampled {
				n *= 10
			}
			s.WorkRequests = append(s.WorkRequests,
				model.WorkRequests{Cgroup: id, Device: "d", Opcode: "send", Count: n, Bytes: 2 * n, Seen: seen})
			s.CompletionErrors = append(s.CompletionErrors,
				model.CompletionErrors{Cgroup: id, Device: "d", Status: "wr_flush_error", Count: n, Seen: seen})
			h := model.FineHistogram{Count: n, SumSeconds: float64(n)}
			h.Buckets[9] = n
			s.Completions = append(s.Completions,
				model.Completions{Cgroup: id, Device: "d", Opcode: "write", Duration: h, Seen: seen})
		}
		s.Budgets = append(s.Budgets, model.Budget{Cgroup: id, LimitRatio: 0.01, SpentSeconds: float64(counts[id])})
	}
	return s
}

// pathTotals is the figures of an owner, in words.
func pathTotals(s *model.Snapshot, workload string) map[string]float64 {
	got := map[string]float64{}
	a := attribution.Attribute(*s)
	is := func(owner int) bool { return a.Owners[owner].Workload == workload }
	for _, w := range a.WorkRequests {
		if is(w.Owner) {
			got[fmt.Sprint("requests ", w.Sampled)], got[fmt.Sprint("bytes ", w.Sampled)] = float64(w.Count), float64(w.Bytes)
		}
	}
	for _, e := range a.CompletionErrors {
		if is(e.Owner) {
			got[fmt.Sprint("errors ", e.Sampled)] = float64(e.Count)
		}
	}
	for _, c := range a.Completions {
		if is(c.Owner) {
			got[fmt.Sprint("completions ", c.Sampled)] = float64(c.Duration.Buckets[9])
		}
	}
	for _, b := range a.Budgets {
		if is(b.Owner) {
			got["spent"], got["limit"] = b.SpentSeconds, b.LimitRatio
		}
	}
	return got
}

// TestRetiredDataPath: what was seen on the data path stays with the owner when
// one of its cgroups is forgotten, whether there is a probe or not.
func TestRetiredDataPath(t *testing.T) {
	entities := map[uint64]model.Entity{1: {Workload: "job"}, 2: {Workload: "job"}, 3: {Workload: "job"}}
	want := func(n float64) map[string]float64 {
		return map[string]float64{
			"requests false": n, "requests true": 10 * n, "bytes false": 2 * n, "bytes true": 20 * n, "errors false": n,
			"errors true": 10 * n, "completions false": n, "completions true": 10 * n, "spent": n, "limit": 0.01,
		}
	}
	var r retired
	for _, step := range []struct {
		what   string
		counts map[uint64]uint64
		forget []uint64
		want   map[string]float64
	}{
		{"three", map[uint64]uint64{1: 5, 2: 2, 3: 1}, []uint64{2, 3}, want(8)},
		{"two are over", map[uint64]uint64{1: 5, 2: 3, 3: 1}, []uint64{2, 3}, want(9)},
		{"and are gone", map[uint64]uint64{1: 6}, nil, want(10)},
		{"no answer", nil, nil, map[string]float64{}},
		{"goes on", map[uint64]uint64{1: 7}, []uint64{1}, want(11)},
	} {
		s := pathFacts(step.counts, entities)
		if step.counts == nil {
			s = &model.Snapshot{Entities: entities}
		}
		r.add(s)
		if d := cmp.Diff(step.want, pathTotals(s, "job")); d != "" {
			t.Errorf("%s:\n%s", step.what, d)
		}
		if step.counts == nil && s.WorkRequests != nil {
			t.Errorf("%s: what was not collected is there", step.what)
		}
		r.forget(s, step.forget)
	}
	s := pathFacts(nil, map[uint64]model.Entity{})
	r.add(s)
	if len(r.path.left) > 1 || len(r.path.leaving)+len(r.left)+len(r.leaving) > 1 {
		t.Errorf("totals are kept of an owner that is gone")
	}
	// Without an answer nobody is remembered as leaving.
	r = retired{}
	r.add(&model.Snapshot{})
	r.forget(&model.Snapshot{}, []uint64{1, 2, 3})
	if len(r.leaving)+len(r.path.leaving) > 0 {
		t.Error("cgroups that counted nothing are remembered")
	}
}

// TestRetiredOpens: an owner's opens of device nodes stay when one of its cgroups is
// forgotten, and what nobody is known to have opened does not fall.
func TestRetiredOpens(t *testing.T) {
	entities := map[uint64]model.Entity{1: {Workload: "job"}, 2: {Workload: "job"}}
	var r retired
	for _, step := range []struct {
		what         string
		counts       map[uint64]uint64
		forget       []uint64
		job, unowned [2]uint64 // allowed, denied
	}{
		{"two, and one without a name", map[uint64]uint64{1: 5, 2: 2, 9: 4}, []uint64{2}, [2]uint64{7, 70}, [2]uint64{4, 40}},
		{"one is over", map[uint64]uint64{1: 5, 2: 3, 9: 4}, []uint64{2, 9}, [2]uint64{8, 80}, [2]uint64{4, 40}},
		{"and is gone", map[uint64]uint64{1: 6}, nil, [2]uint64{9, 90}, [2]uint64{4, 40}},
		{"no answer", nil, nil, [2]uint64{}, [2]uint64{}},
		{"goes on", map[uint64]uint64{1: 7}, nil, [2]uint64{10, 100}, [2]uint64{4, 40}},
	} {
		s := &model.Snapshot{Entities: entities}
		if step.counts != nil {
			s.DeviceOpens = []model.DeviceOpens{}
		}
		for id, n := range step.counts {
			s.DeviceOpens = append(s.DeviceOpens,
				model.DeviceOpens{Cgroup: id, Device: "nvidia0", Class: model.ClassNVIDIA, Allowed: n, Denied: 10 * n})
		}
		r.add(s)
		got := map[string][2]uint64{}
		a := attribution.Attribute(*s)
		for _, o := range a.DeviceOpens {
			got[a.Owners[o.Owner].Workload] = [2]uint64{o.Allowed, o.Denied}
		}
		if got["job"] != step.job || got[""] != step.unowned {
			t.Errorf("%s: %v", step.what, got)
		}
		if step.counts == nil && s.DeviceOpens != nil {
			t.Errorf("%s: what was not collected is there", step.what)
		}
		r.forget(s, step.forget)
	}
}
