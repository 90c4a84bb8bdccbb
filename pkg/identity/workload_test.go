// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestWorkloadOf: WorkloadOf returns the label that the metrics have.
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

// TestLabelOf: a container has the labels of its pod; the labels of an unknown cgroup are unknown.
func TestLabelOf(t *testing.T) {
	s := &model.Snapshot{
		Cgroups:    []model.Cgroup{{ID: 1, Workload: "cgroup:/x", ContainerID: "0123"}},
		Containers: []model.Container{{ID: "0123", Namespace: "ns", Pod: "pod", PodUID: "u", Name: "c", Labels: map[string]string{"a": "1"}}},
		Pods:       []model.Pod{{UID: "u", Namespace: "ns", Name: "pod", Labels: map[string]string{"probe": "off"}}},
	}
	var table Table
	table.Resolve(s, nil)
	table.Label(s)
	for _, c := range []struct {
		cgroup     model.CgroupID
		name, want string
	}{{1, "probe", "off"}, {1, "a", "1"}, {1, "b", ""}, {2, "probe", ""}} {
		if got, known := table.LabelOf(c.cgroup, c.name); got != c.want || known != (c.cgroup == 1) {
			t.Errorf("label %s of cgroup %d is %q, want %q; known: %v", c.name, c.cgroup, got, c.want, known)
		}
	}

	// The labels stay until the next round reports labels.
	table.Resolve(s, nil)
	if got, known := table.LabelOf(1, "probe"); got != "off" || !known {
		t.Errorf("between two rounds: %q, %v", got, known)
	}

	// Docker does not list the labels of a pod.
	var docker Table
	s.Containers[0].Runtime, s.Pods = model.RuntimeDocker, nil
	docker.Resolve(s, nil)
	docker.Label(s)
	if got, known := docker.LabelOf(1, "a"); got != "1" || known {
		t.Errorf("a container of cri-dockerd without its pod: %q, %v", got, known)
	}
}
