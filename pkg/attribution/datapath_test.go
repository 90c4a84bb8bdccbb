// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

func request(
	cgroup model.CgroupID, opcode string, count, bytes uint64, resting bool,
) model.Series[model.WorkRequestKey, model.Requests] {
	return model.Series[model.WorkRequestKey, model.Requests]{
		Cgroup: cgroup, Key: model.WorkRequestKey{Device: "d", Opcode: opcode},
		Value: model.Requests{Count: count, Bytes: bytes}, Resting: resting,
	}
}

func failure(cgroup model.CgroupID, n model.Count, resting bool) model.Series[model.CompletionErrorKey, model.Count] {
	return model.Series[model.CompletionErrorKey, model.Count]{
		Cgroup: cgroup, Key: model.CompletionErrorKey{Device: "d", Status: "wr_flush_error"}, Value: n, Resting: resting,
	}
}

func completion(
	cgroup model.CgroupID, h model.FineHistogram, resting bool,
) model.Series[model.CompletionKey, model.FineHistogram] {
	return model.Series[model.CompletionKey, model.FineHistogram]{
		Cgroup: cgroup, Key: model.CompletionKey{Device: "d", Opcode: "write"}, Value: h, Resting: resting,
	}
}

// TestDataPathShares checks that the cgroups of an owner are added up, and that a share rests if a cgroup rests.
func TestDataPathShares(t *testing.T) {
	fast := func(n uint64) model.FineHistogram { return model.FineHistogram{Count: n, Sum: n} }
	got := attribute(facts{Entities: entities(), Snapshot: model.Snapshot{
		WorkRequests: []model.Series[model.WorkRequestKey, model.Requests]{
			request(11, "send", 1, 10, false),
			request(12, "send", 2, 20, true),
			request(12, "recv", 3, 0, false),
			request(1, "send", 4, 40, false),
			request(99, "send", 5, 50, false),
		},
		CompletionErrors: []model.Series[model.CompletionErrorKey, model.Count]{
			failure(11, 1, true),
			failure(12, 2, false),
		},
		Late: []model.Series[model.DeviceKey, model.Count]{
			{Cgroup: 11, Key: model.DeviceKey{Device: "d"}, Value: 1}, {Cgroup: 12, Key: model.DeviceKey{Device: "d"}, Value: 2},
		},
		Unread: []model.Series[model.DeviceKey, model.Count]{
			{Cgroup: 11, Key: model.DeviceKey{Device: "d"}, Value: 4}, {Cgroup: 12, Key: model.DeviceKey{Device: "d"}, Value: 8},
		},
		ReceiveWaits: []model.Series[model.DeviceKey, model.WaitTime]{
			{Cgroup: 11, Key: model.DeviceKey{Device: "d"}, Value: 16}, {Cgroup: 12, Key: model.DeviceKey{Device: "d"}, Value: 32, Resting: true},
		},
		Completions: []model.Series[model.CompletionKey, model.FineHistogram]{
			completion(11, fast(1), false),
			completion(12, fast(2), true),
		},
		Budgets: []model.Budget{
			{Cgroup: 11, SpentRatio: 0.5}, {Cgroup: 12, SpentRatio: 0.2},
		},
		Spent: []model.Series[model.SpentKey, model.CPUTime]{{Cgroup: 11, Value: 1e9}, {Cgroup: 12, Value: 2e9}},
	}})
	want := Attribution{
		CounterShares: CounterShares{
			WorkRequests: []Share[model.WorkRequestKey, model.Requests]{
				{Owner: 1, Key: model.WorkRequestKey{Device: "d", Opcode: "send"}, Value: model.Requests{Count: 3, Bytes: 30}, Resting: true},
				{Owner: 1, Key: model.WorkRequestKey{Device: "d", Opcode: "recv"}, Value: model.Requests{Count: 3, Bytes: 0}},
				{Owner: 2, Key: model.WorkRequestKey{Device: "d", Opcode: "send"}, Value: model.Requests{Count: 4, Bytes: 40}},
				{Owner: 0, Key: model.WorkRequestKey{Device: "d", Opcode: "send"}, Value: model.Requests{Count: 5, Bytes: 50}},
			},
			CompletionErrors: []Share[model.CompletionErrorKey, model.Count]{
				{Owner: 1, Key: model.CompletionErrorKey{Device: "d", Status: "wr_flush_error"}, Value: 3, Resting: true},
			},
			Late:   []Share[model.DeviceKey, model.Count]{{Owner: 1, Key: model.DeviceKey{Device: "d"}, Value: 3}},
			Unread: []Share[model.DeviceKey, model.Count]{{Owner: 1, Key: model.DeviceKey{Device: "d"}, Value: 12}},
			ReceiveWaits: []Share[model.DeviceKey, model.WaitTime]{
				{Owner: 1, Key: model.DeviceKey{Device: "d"}, Value: 48, Resting: true},
			},
			Completions: []Share[model.CompletionKey, model.FineHistogram]{
				{Owner: 1, Key: model.CompletionKey{Device: "d", Opcode: "write"}, Value: fast(3), Resting: true},
			},
		},
		Budgets: []BudgetShare{{Owner: 1, SpentRatio: 0.5, Spent: 3e9}},
	}
	for name, pair := range map[string][2]any{
		"work requests":     {want.WorkRequests, got.WorkRequests},
		"completion errors": {want.CompletionErrors, got.CompletionErrors},
		"completions":       {want.Completions, got.Completions},
		"late contexts":     {want.Late, got.Late},
		"unread":            {want.Unread, got.Unread},
		"receive waits":     {want.ReceiveWaits, got.ReceiveWaits},
		"budgets":           {want.Budgets, got.Budgets},
	} {
		if d := cmp.Diff(pair[0], pair[1]); d != "" {
			t.Errorf("%s:\n%s", name, d)
		}
	}
	none := attribute(facts{Entities: entities()})
	if none.WorkRequests != nil || none.CompletionErrors != nil || none.Completions != nil ||
		none.Budgets != nil || none.Traffic != nil {
		t.Error("there are shares of counters that were not collected")
	}
}
