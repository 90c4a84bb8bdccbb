// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestDriverShares checks that the cgroups of an owner are joined.
func TestDriverShares(t *testing.T) {
	for name, c := range map[string]struct {
		facts []model.DriverUse
		want  []DriverShare
	}{
		"not collected": {},
		"none":          {facts: []model.DriverUse{}, want: []DriverShare{}},
		"two cgroups of an owner": {
			facts: []model.DriverUse{
				{Cgroup: 11, Driver: "nvidia", Oldest: time.Minute, Stuck: 1},
				{Cgroup: 12, Driver: "nvidia", Oldest: time.Hour, Stuck: 2},
				{Cgroup: 12, Driver: "amdgpu"},
				{Cgroup: 1, Driver: "nvidia"},
				{Cgroup: 99, Driver: "nvidia", Oldest: time.Second},
			},
			want: []DriverShare{
				{Owner: 1, Driver: "nvidia", Oldest: time.Hour, Stuck: 3},
				{Owner: 1, Driver: "amdgpu"},
				{Owner: 2, Driver: "nvidia"},
				{Owner: 0, Driver: "nvidia", Oldest: time.Second},
			},
		},
	} {
		got := attribute(facts{Entities: entities(), Snapshot: model.Snapshot{DriverUses: c.facts}}).DriverShares
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// TestDriverTasks checks the owners of stuck tasks and their order: by driver, the oldest call first.
func TestDriverTasks(t *testing.T) {
	at := time.Unix(1700000000, 0)
	tasks := []model.DriverTask{
		{Cgroup: 11, Driver: "nvidia", TID: 1, Since: at.Add(time.Second)},
		{Cgroup: 1, Driver: "nvidia", TID: 2, Since: at},
		{Cgroup: 99, Driver: "amdgpu", TID: 3, Since: at.Add(time.Minute)},
	}
	a := attribute(facts{Entities: entities(), Snapshot: model.Snapshot{DriverTasks: tasks}})
	want := []DriverTask{{0, &tasks[2]}, {2, &tasks[1]}, {1, &tasks[0]}} // owners in the order of the facts
	if d := cmp.Diff(want, a.DriverTasks); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if got := attribute(facts{Entities: entities()}).DriverTasks; got != nil {
		t.Errorf("not collected: %v", got)
	}
}
