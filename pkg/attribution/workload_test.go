// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

// The key is the one that metrics have.
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
		if got := WorkloadOf(test.c); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
		s := &model.Snapshot{
			Entities:   map[uint64]model.Entity{1: {Workload: "cgroup:/x", ContainerID: test.c.ID}},
			Containers: []model.Container{test.c},
		}
		if named := OwnerOf(Name(s, nil)[1]).Workload; named != test.want {
			t.Errorf("metrics say %q, want %q", named, test.want)
		}
	}
}
