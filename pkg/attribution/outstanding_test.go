// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestOutstanding checks that the cgroups of an owner are joined, and that an owner with gaps has a share only if queue
// pairs are certainly stalled.
func TestOutstanding(t *testing.T) {
	late := []model.Gap{model.GapLate}
	for name, c := range map[string]struct {
		facts []model.Outstanding
		want  []OutstandingShare
	}{
		"not collected": {},
		"none":          {facts: []model.Outstanding{}, want: []OutstandingShare{}},
		"two cgroups of an owner": {
			facts: []model.Outstanding{
				{Cgroup: 11, Device: "d", Oldest: time.Second, Stalled: 1},
				{Cgroup: 12, Device: "d", Oldest: 3 * time.Second, Stalled: 2},
				{Cgroup: 12, Device: "e"},
				{Cgroup: 1, Device: "d", Oldest: time.Millisecond},
				{Cgroup: 99, Device: "d"},
			},
			want: []OutstandingShare{
				{Owner: 1, Device: "d", Oldest: 3 * time.Second, Stalled: 3},
				{Owner: 1, Device: "e"},
				{Owner: 2, Device: "d", Oldest: time.Millisecond},
				{Owner: 0, Device: "d"},
			},
		},
		"gaps": {
			facts: []model.Outstanding{
				{Cgroup: 11, Device: "d", Oldest: time.Second},
				{Cgroup: 12, Device: "d", Gaps: late},
				{Cgroup: 1, Device: "d", Gaps: late},
				{Cgroup: 1, Device: "e"},
			},
			want: []OutstandingShare{
				{Owner: 1, Device: "d", Oldest: time.Second, Gaps: late}, {Owner: 2, Device: "d", Gaps: late}, {Owner: 2, Device: "e"},
			},
		},
		"gaps, and stalled": {
			facts: []model.Outstanding{
				{Cgroup: 11, Device: "d", Oldest: time.Minute, Stalled: 2},
				{Cgroup: 12, Device: "d", Gaps: late},
			},
			want: []OutstandingShare{{Owner: 1, Device: "d", Oldest: time.Minute, Stalled: 2, Gaps: late}},
		},
		"waits for receives": {
			facts: []model.Outstanding{
				{Cgroup: 11, Device: "d", OldestReceive: time.Second, ReceiveGaps: late},
				{Cgroup: 12, Device: "d", OldestReceive: 2 * time.Second, ReceiveGaps: []model.Gap{model.GapPreposted, model.GapLate}},
			},
			want: []OutstandingShare{{
				Owner: 1, Device: "d", OldestReceive: 2 * time.Second, ReceiveGaps: []model.Gap{model.GapLate, model.GapPreposted},
			}},
		},
		"gaps of two cgroups": {
			facts: []model.Outstanding{
				{Cgroup: 11, Device: "d", Gaps: []model.Gap{model.GapUnmatched}},
				{Cgroup: 12, Device: "d", Gaps: []model.Gap{model.GapLate, model.GapUnmatched}},
			},
			want: []OutstandingShare{{Owner: 1, Device: "d", Gaps: []model.Gap{model.GapLate, model.GapUnmatched}}},
		},
	} {
		got := attribute(facts{Entities: entities(), Snapshot: model.Snapshot{Outstanding: c.facts}}).Outstanding
		if d := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}
