// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestJoin: two processes with one rank are added up, and the facts stay as they are.
func TestJoin(t *testing.T) {
	operation := func(name string, n uint64) model.CommunicatorOperation {
		return model.CommunicatorOperation{Operation: name, Launches: model.Launches{Count: n, Bytes: 10 * n}}
	}
	first := []model.CommunicatorOperation{operation("all_reduce", 1), operation("send", 2)}
	c := CommunicatorShare{Communicator: model.Communicator{Since: time.Unix(1, 0), LastLaunch: time.Unix(5, 0), Operations: first}}
	c.Late, c.Launched, c.Kept = model.Some(3), 3, []model.KeptLaunch{{Number: 3}}
	c.Process = model.LaunchingProcess{PID: 1, LastGraph: time.Unix(6, 0)}
	c.Process.LastLaunch = time.Unix(9, 0) // in another communicator
	c.join(&model.Communicator{
		Process:    model.LaunchingProcess{PID: 2, LastLaunch: time.Unix(7, 0)},
		LastLaunch: time.Unix(7, 0), Operations: []model.CommunicatorOperation{operation("recv", 3), operation("send", 4)},
	})
	c.join(&model.Communicator{
		LastLaunch: time.Unix(4, 0), Process: model.LaunchingProcess{PID: 3, LastGraph: time.Unix(8, 0)},
	})
	want := model.Communicator{
		LastLaunch: time.Unix(7, 0),
		// The process that launched last, with the last launches of all three.
		Process:    model.LaunchingProcess{PID: 2, LastLaunch: time.Unix(9, 0), LastGraph: time.Unix(8, 0)},
		Operations: []model.CommunicatorOperation{operation("all_reduce", 1), operation("recv", 3), operation("send", 6)},
	}
	if d := cmp.Diff(want, c.Communicator); d != "" {
		t.Error(d)
	}
	if first[1].Count != 2 {
		t.Errorf("the fact became %+v", first)
	}
}

// TestReportedGaps: launches are complete also while it is unknown how late they are, and not beside any other gap.
func TestReportedGaps(t *testing.T) {
	const lost, behind = model.CollectiveLost, model.CollectiveBehind
	for _, tt := range []struct{ gaps, want []model.CollectiveGap }{
		{[]model.CollectiveGap{""}, []model.CollectiveGap{""}},
		{[]model.CollectiveGap{behind, ""}, []model.CollectiveGap{"", behind}},
		{[]model.CollectiveGap{"", lost}, []model.CollectiveGap{lost}},
		{[]model.CollectiveGap{lost, "", behind}, []model.CollectiveGap{behind, lost}},
	} {
		if d := cmp.Diff(tt.want, reported(slices.Clone(tt.gaps))); d != "" {
			t.Errorf("%v: %s", tt.gaps, d)
		}
	}
}

// TestCollectiveGaps: each owner with coverage has its gaps once, also an owner with a single cgroup.
func TestCollectiveGaps(t *testing.T) {
	got := attribute(facts{Entities: entities(), Snapshot: model.Snapshot{CollectiveCoverage: []model.CollectiveCoverage{
		{Cgroup: 1}, {Cgroup: 11, Gap: model.CollectiveLate}, {Cgroup: 12, Gap: model.CollectiveLate}, {Cgroup: 99, Gap: model.CollectiveLost},
	}}})
	var all []string
	for _, g := range got.CollectiveGaps {
		all = append(all, got.Owners[g.Owner].Workload+" "+string(g.Gap))
	}
	if d := cmp.Diff([]string{train.Workload + " ", job.Workload + " late"}, all); d != "" {
		t.Error(d)
	}
}
