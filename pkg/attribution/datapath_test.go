// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestDataPathShares: the cgroups of an owner are summed, what is exact and what
// is sampled apart, and a share rests when one of its cgroups does.
func TestDataPathShares(t *testing.T) {
	sampled, resting := model.Seen{Sampled: true}, model.Seen{Resting: true}
	fast := func(n uint64) model.FineHistogram { return model.FineHistogram{Count: n, SumSeconds: float64(n)} }
	got := Attribute(model.Snapshot{
		Entities: entities(),
		WorkRequests: []model.WorkRequests{
			{Cgroup: 11, Device: "d", Opcode: "send", Count: 1, Bytes: 10},
			{Cgroup: 12, Device: "d", Opcode: "send", Count: 2, Bytes: 20, Seen: resting},
			{Cgroup: 12, Device: "d", Opcode: "send", Count: 7, Bytes: 70, Seen: sampled},
			{Cgroup: 12, Device: "d", Opcode: "recv", Count: 3},
			{Cgroup: 1, Device: "d", Opcode: "send", Count: 4, Bytes: 40},
			{Cgroup: 99, Device: "d", Opcode: "send", Count: 5, Bytes: 50},
		},
		CompletionErrors: []model.CompletionErrors{
			{Cgroup: 11, Device: "d", Status: "wr_flush_error", Count: 1, Seen: resting},
			{Cgroup: 12, Device: "d", Status: "wr_flush_error", Count: 2},
			{Cgroup: 12, Device: "d", Status: "wr_flush_error", Count: 3, Seen: sampled},
		},
		Completions: []model.Completions{
			{Cgroup: 11, Device: "d", Opcode: "write", Duration: fast(1)},
			{Cgroup: 12, Device: "d", Opcode: "write", Duration: fast(2), Seen: resting},
			{Cgroup: 12, Device: "d", Opcode: "write", Duration: fast(4), Seen: sampled},
		},
		Sampling: []model.Sampling{
			{Cgroup: 11, Device: "d", Calls: model.PollCalls, Ratio: 1},
			{Cgroup: 12, Device: "d", Calls: model.PollCalls, Ratio: 0.25},
			{Cgroup: 12, Device: "d", Calls: model.PostCalls, Ratio: 0.5},
		},
		Budgets: []model.Budget{
			{Cgroup: 11, LimitRatio: math.Inf(1), SpentRatio: 0.5, SpentSeconds: 1},
			{Cgroup: 12, LimitRatio: 0.01, SpentRatio: 0.2, SpentSeconds: 2},
		},
	})
	want := Attribution{
		WorkRequests: []WorkRequestShare{
			{Owner: 1, Device: "d", Opcode: "send", Count: 3, Bytes: 30, Seen: resting},
			{Owner: 1, Device: "d", Opcode: "send", Count: 7, Bytes: 70, Seen: sampled},
			{Owner: 1, Device: "d", Opcode: "recv", Count: 3},
			{Owner: 2, Device: "d", Opcode: "send", Count: 4, Bytes: 40},
			{Owner: 0, Device: "d", Opcode: "send", Count: 5, Bytes: 50},
		},
		CompletionErrors: []CompletionErrorShare{
			{Owner: 1, Device: "d", Status: "wr_flush_error", Count: 3, Seen: resting},
			{Owner: 1, Device: "d", Status: "wr_flush_error", Count: 3, Seen: sampled},
		},
		Completions: []CompletionShare{
			{Owner: 1, Device: "d", Opcode: "write", Duration: fast(3), Seen: resting},
			{Owner: 1, Device: "d", Opcode: "write", Duration: fast(4), Seen: sampled},
		},
		Sampling: []SamplingShare{
			{Owner: 1, Device: "d", Calls: model.PollCalls, Ratio: 0.25},
			{Owner: 1, Device: "d", Calls: model.PostCalls, Ratio: 0.5},
		},
		Budgets: []BudgetShare{{Owner: 1, LimitRatio: math.Inf(1), SpentRatio: 0.5, SpentSeconds: 3}},
	}
	for what, pair := range map[string][2]any{
		"work requests":     {want.WorkRequests, got.WorkRequests},
		"completion errors": {want.CompletionErrors, got.CompletionErrors},
		"completions":       {want.Completions, got.Completions},
		"sampling":          {want.Sampling, got.Sampling},
		"budgets":           {want.Budgets, got.Budgets},
	} {
		if d := cmp.Diff(pair[0], pair[1]); d != "" {
			t.Errorf("%s:\n%s", what, d)
		}
	}
	none := Attribute(model.Snapshot{Entities: entities()})
	if none.WorkRequests != nil || none.CompletionErrors != nil || none.Completions != nil || none.Sampling != nil ||
		none.Budgets != nil || none.Traffic != nil {
		t.Error("what was not collected is there")
	}
	var l Ledger
	if a := l.Attribute(model.Snapshot{}); a.Traffic != nil {
		t.Errorf("traffic of nothing: %v", a.Traffic)
	}
}
