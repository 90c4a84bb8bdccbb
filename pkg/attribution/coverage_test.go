// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
)

// fakePorts is a PortLedger with equal answers for all owners.
type fakePorts struct{ exclusive, missed bool }

func (f fakePorts) Exclusive(identity.OwnerID, string) bool           { return f.exclusive }
func (f fakePorts) Missed(identity.OwnerID, string, []model.Gap) bool { return f.missed }

// TestCoverage: a workload with queue pairs is complete, or has a gap for each reason. Cgroup 1 is a container, 11 and
// 12 are a job.
func TestCoverage(t *testing.T) {
	qps := func(cgroup model.CgroupID, n uint64) model.Objects {
		return model.Objects{Cgroup: cgroup, Device: "d", Type: model.QP, Current: n}
	}
	devx := model.Objects{Cgroup: 1, Device: "d", Type: model.DEVXObj, Current: 5}
	row := func(cgroup model.CgroupID, gap model.Gap) model.Coverage {
		return model.Coverage{Cgroup: cgroup, Device: "d", Gap: gap}
	}
	bound := func(cgroup model.CgroupID, n uint64) []model.Traffic {
		f := model.Traffic{Cgroup: cgroup, Device: "d", Method: model.MethodQPCounter, Direction: model.Transmit, QPs: n}
		other := f
		other.Direction = model.Receive
		return []model.Traffic{f, other}
	}
	attached := &model.DataPathStats{Attached: true}
	source := []model.SourceState{{Source: "rdma"}, {Source: "datapath", State: model.StateOK}}
	failed := []model.SourceState{{Source: "datapath", State: model.StateUnsupported}}
	const container, slurm = 1, 2
	gap := func(owner int, gaps ...model.Gap) (out []CoverageShare) {
		for _, g := range gaps {
			out = append(out, CoverageShare{owner, "d", g})
		}
		return out
	}
	tests := map[string]struct {
		facts     model.Snapshot
		states    []model.SourceState
		exclusive bool
		missed    bool
		want      []CoverageShare
	}{
		"off": {
			facts: model.Snapshot{Objects: []model.Objects{qps(1, 2)}}, want: gap(container, model.GapOff),
		},
		"off, but alone on the device": {
			facts: model.Snapshot{Objects: []model.Objects{qps(1, 2), devx}}, exclusive: true, want: gap(container, ""),
		},
		"alone on the device after others": {
			facts: model.Snapshot{Objects: []model.Objects{qps(1, 2)}}, exclusive: true, missed: true, want: gap(container, model.GapUnattributed),
		},
		"off, after bytes were missed": {
			facts: model.Snapshot{Objects: []model.Objects{qps(1, 2)}}, missed: true, want: gap(container, model.GapOff),
		},
		"all queue pairs have counters now": {
			facts: model.Snapshot{Objects: []model.Objects{qps(1, 2)}, Traffic: bound(1, 2)}, missed: true, want: gap(container, model.GapUnattributed),
		},
		"off, all queue pairs have counters": {
			facts: model.Snapshot{Objects: []model.Objects{qps(1, 2)}, Traffic: bound(1, 2)}, want: gap(container, ""),
		},
		"off, one queue pair has no counter": {
			facts: model.Snapshot{Objects: []model.Objects{qps(1, 2)}, Traffic: bound(1, 1)}, want: gap(container, model.GapOff),
		},
		"DEVX objects have no counter": {
			facts: model.Snapshot{Objects: []model.Objects{qps(1, 2), devx}, Traffic: bound(1, 2)}, want: gap(container, model.GapOff),
		},
		"the source could not be made": {
			facts: model.Snapshot{Objects: []model.Objects{qps(1, 2)}}, states: failed, want: gap(container, model.GapRefused),
		},
		"the hooks could not be attached": {
			facts:  model.Snapshot{Objects: []model.Objects{qps(1, 2)}, DataPath: &model.DataPathStats{}},
			states: source, want: gap(container, model.GapRefused),
		},
		"all counted": {
			facts:  model.Snapshot{Objects: []model.Objects{qps(1, 2)}, DataPath: attached, Coverage: []model.Coverage{row(1, "")}},
			states: source, want: gap(container, ""),
		},
		"a gap in one of two cgroups": {
			facts: model.Snapshot{
				Objects: []model.Objects{qps(11, 2), qps(12, 1)}, DataPath: attached,
				Coverage: []model.Coverage{row(11, ""), row(12, model.GapLate), row(12, model.GapSurvey)},
			},
			states: source, want: gap(1, model.GapLate, model.GapSurvey),
		},
		"one gap in two cgroups": {
			facts: model.Snapshot{
				DataPath: attached, Coverage: []model.Coverage{row(11, model.GapLate), row(12, model.GapLate)},
			},
			states: source, want: gap(1, model.GapLate),
		},
		"queue pairs and DEVX objects": {
			facts: model.Snapshot{
				Objects: []model.Objects{qps(1, 2), devx}, DataPath: attached, Coverage: []model.Coverage{row(1, "")},
			},
			states: source, want: gap(container, model.GapDEVX),
		},
		"DEVX objects alone": {
			facts:  model.Snapshot{Objects: []model.Objects{devx}, DataPath: attached},
			states: source, want: gap(container, model.GapDEVX),
		},
		"queue pairs without a context": {
			facts: model.Snapshot{
				Objects: []model.Objects{qps(1, 2), qps(11, 1)}, DataPath: attached, Coverage: []model.Coverage{row(11, "")},
			},
			states: source, want: append(gap(container, model.GapNotSeen), gap(slurm, "")...),
		},
		"listed by netlink": {
			facts:  model.Snapshot{Holdings: []model.Holding{{Device: "d", Cgroup: 1, Type: model.QP, Count: 3}}, DataPath: attached},
			states: source, want: gap(container, model.GapNotSeen),
		},
		"no queue pairs": {
			facts: model.Snapshot{Objects: []model.Objects{
				qps(1, 0), {Cgroup: 1, Device: "d", Type: model.CQ, Current: 4}, qps(20, 3), qps(99, 3),
			}},
			want: []CoverageShare{},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var c Counters
			owners := identitytest.Table(entities())
			var got []CoverageShare
			c.Credit(&tt.facts, owners, nil)
			Attribute(&tt.facts, owners, &c, func(a *Attribution) {
				got = Coverage(&tt.facts, a, owners, tt.states, fakePorts{tt.exclusive, tt.missed})
			})
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
