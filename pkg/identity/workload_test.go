// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestWorkloadOf: WorkloadOf returns the label of the metrics.
func TestWorkloadOf(t *testing.T) {
	for _, test := range []struct {
		c    model.Container
		want string
	}{
		{model.Container{ID: "0123456789abcdef", Runtime: "containerd", Namespace: "ns", Pod: "pod", Name: "c"}, "ns/pod/c"},
		{model.Container{ID: "0123456789abcdef", Namespace: "ns", Pod: "pod", Name: "c", Sandbox: true}, "ns/pod"},
		{model.Container{ID: "0123456789abcdef", Runtime: "docker", Name: "train"}, "docker:train"},
		{model.Container{ID: "0123456789abcdef", Runtime: "containerd"}, "containerd:0123456789ab"},
		{model.Container{ID: "0123456789abcdef", Runtime: "docker", Name: "a\xff"}, "docker:a\uFFFD"},
	} {
		if got := WorkloadOf(&test.c); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
		var table Table
		table.Resolve(&model.Snapshot{
			Cgroups:    []model.Cgroup{{ID: 1, Workload: "cgroup:/x", ContainerID: test.c.ID}},
			Containers: []model.Container{test.c},
		}, nil)
		if named, _ := table.Workload(1); named != test.want {
			t.Errorf("metrics have %q, want %q", named, test.want)
		}
	}
}
