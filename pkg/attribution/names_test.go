// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

func TestName(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	inPod := model.Entity{
		Workload: "pod:u1/0123456789ab", ContainerID: id, PodUID: "u1", Runtime: "containerd", Cgroup: "/kubepods/podu1/" + id,
	}
	worker := model.Container{
		ID: id, Runtime: "containerd", Name: "worker", Namespace: "ml", Pod: "train-0", PodUID: "u1", Image: "train:1",
	}
	named := model.Entity{
		Workload: "ml/train-0/worker", Namespace: "ml", Pod: "train-0", Container: "worker", ContainerID: id,
		PodUID: "u1", Runtime: "containerd", Image: "train:1", Cgroup: inPod.Cgroup,
	}
	free := model.Entity{Workload: "cgroup:/default/web/child", Cgroup: "/default/web/child"}
	static := model.Entity{Workload: "pod:hash", PodUID: "hash", Cgroup: "/kubepods/podhash"}
	for name, c := range map[string]struct {
		entity     model.Entity
		containers []model.Container
		pods       []model.Pod
		before     map[uint64]model.Entity
		want       model.Entity
	}{
		"by id":             {entity: inPod, containers: []model.Container{worker}, want: named},
		"nobody tells":      {entity: inPod, want: inPod},
		"told before":       {entity: inPod, before: map[uint64]model.Entity{7: named}, want: named},
		"the id came again": {entity: static, before: map[uint64]model.Entity{7: named}, want: static},
		"a sandbox": {
			entity:     inPod,
			containers: []model.Container{{ID: id, Sandbox: true, Name: "POD", Namespace: "ml", Pod: "train-0", PodUID: "u1"}},
			want: model.Entity{
				Workload: "ml/train-0", Namespace: "ml", Pod: "train-0", ContainerID: id, PodUID: "u1", Runtime: "containerd",
				Cgroup: inPod.Cgroup,
			},
		},
		"its pod alone": {
			entity: inPod, pods: []model.Pod{{UID: "u1", Namespace: "ml", Name: "train-0"}},
			want: model.Entity{
				Workload: "ml/train-0/0123456789ab", Namespace: "ml", Pod: "train-0", ContainerID: id, PodUID: "u1",
				Runtime: "containerd", Cgroup: inPod.Cgroup,
			},
		},
		"a static pod": {
			entity: static, pods: []model.Pod{{UID: "u9", StaticUID: "hash", Namespace: "kube-system", Name: "etcd"}},
			want: model.Entity{
				Workload: "kube-system/etcd", Namespace: "kube-system", Pod: "etcd", PodUID: "hash", Cgroup: "/kubepods/podhash",
			},
		},
		"a job whose user is learned late": {
			entity: model.Entity{Workload: "slurm:7", User: "ada", Runtime: "slurm", Cgroup: "/slurm/job_7"},
			before: map[uint64]model.Entity{7: {Workload: "slurm:7", Runtime: "slurm", Cgroup: "/slurm/job_7"}},
			want:   model.Entity{Workload: "slurm:7", User: "ada", Runtime: "slurm", Cgroup: "/slurm/job_7"},
		},
		"a job that is over": {
			entity: model.Entity{Workload: "slurm:7", Runtime: "slurm", Cgroup: "/slurm/job_7"},
			before: map[uint64]model.Entity{7: {Workload: "slurm:7", User: "ada", Runtime: "slurm", Cgroup: "/slurm/job_7"}},
			want:   model.Entity{Workload: "slurm:7", User: "ada", Runtime: "slurm", Cgroup: "/slurm/job_7"},
		},
		"docker": {
			entity:     model.Entity{Workload: "docker:0123456789ab", ContainerID: id, Runtime: "docker", Cgroup: "/docker/" + id},
			containers: []model.Container{{ID: id, Runtime: "docker", Name: "web", Image: "nginx"}},
			want: model.Entity{
				Workload: "docker:web", ContainerID: id, Runtime: "docker", Image: "nginx", Cgroup: "/docker/" + id,
			},
		},
		"by its cgroup": {
			entity:     free,
			containers: []model.Container{{ID: "web", Runtime: "containerd", Name: "web", Cgroup: "/default/web"}},
			want: model.Entity{
				Workload: "containerd:web", ContainerID: "web", Runtime: "containerd", Cgroup: "/default/web/child",
			},
		},
		"a child whose container is forgotten": {
			entity: free,
			before: map[uint64]model.Entity{
				7: {Workload: "containerd:web", ContainerID: "web", Runtime: "containerd", Cgroup: "/default/web/child"},
			},
			want: model.Entity{
				Workload: "containerd:web", ContainerID: "web", Runtime: "containerd", Cgroup: "/default/web/child",
			},
		},
		"a sandbox whose pod is told late": {
			entity: inPod, pods: []model.Pod{{UID: "u1", Namespace: "ml", Name: "train-0"}},
			before: map[uint64]model.Entity{7: inPod},
			want: model.Entity{
				Workload: "ml/train-0/0123456789ab", Namespace: "ml", Pod: "train-0", ContainerID: id, PodUID: "u1",
				Runtime: "containerd", Cgroup: inPod.Cgroup,
			},
		},
		"an id that anybody could claim": {
			entity:     model.Entity{Workload: "podman:0123456789ab", ContainerID: id, Runtime: "podman", Cgroup: "/u/x", Claimed: true},
			containers: []model.Container{worker},
			want:       model.Entity{Workload: "podman:0123456789ab", ContainerID: id, Runtime: "podman", Cgroup: "/u/x", Claimed: true},
		},
		"by a cgroup that is used again": {
			entity: free,
			containers: []model.Container{
				{ID: "web", Runtime: "containerd", Name: "web", Cgroup: "/default/web"},
				{ID: "old", Runtime: "containerd", Name: "old", Cgroup: "/default/web", Status: model.ContainerExited},
			},
			want: model.Entity{
				Workload: "containerd:web", ContainerID: "web", Runtime: "containerd", Cgroup: "/default/web/child",
			},
		},
		// Whoever may make cgroups below its own must not take another's name.
		"a unit is not a container": {
			entity:     model.Entity{Workload: "unit:evil.service", Runtime: "systemd", Cgroup: "/default/web"},
			containers: []model.Container{{ID: "web", Runtime: "containerd", Name: "web", Cgroup: "/default/web"}},
			want:       model.Entity{Workload: "unit:evil.service", Runtime: "systemd", Cgroup: "/default/web"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := model.Snapshot{
				Entities: map[uint64]model.Entity{7: c.entity}, Containers: c.containers, Pods: c.pods,
			}
			if d := cmp.Diff(c.want, Name(&s, c.before)[7]); d != "" {
				t.Error(d)
			}
			if s.Entities[7] != c.entity {
				t.Error("the snapshot was changed")
			}
			// Whoever asks for the owner of the container gets the same one.
			for i := range c.containers {
				if !cmp.Equal(Name(&s, nil)[7], c.want) || c.entity.Runtime == "systemd" || c.entity.Claimed || c.containers[i].ID == "old" {
					continue
				}
				if got, want := OwnerOf(entityOf(&c.containers[i], model.Entity{})), OwnerOf(c.want); got != want {
					t.Errorf("by the container %+v, by the cgroup %+v", got, want)
				}
			}
		})
	}
}

func TestContainers(t *testing.T) {
	n := uint64(3)
	got := Containers([]model.Container{
		{ID: "a", Runtime: "containerd", Name: "a", Status: model.ContainerRunning, Labels: map[string]string{"app": "x", "k": "1"}},
		{ID: "b", Runtime: "docker", Name: "web"},
		{ID: "b", AllDevices: true, GPURequests: []string{"0"}},
		{
			ID: "a", Name: "worker", Namespace: "ml", Pod: "train-0", Restarts: &n, Status: model.ContainerExited,
			Labels: map[string]string{"app": "y", "z": "2"},
		},
	})
	want := []model.Container{
		{
			ID: "a", Runtime: "containerd", Name: "worker", Namespace: "ml", Pod: "train-0", Restarts: &n,
			Status: model.ContainerRunning, Labels: map[string]string{"app": "x", "k": "1", "z": "2"},
		},
		{ID: "b", Runtime: "docker", Name: "web", AllDevices: true, GPURequests: []string{"0"}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if Containers(nil) != nil {
		t.Error("nobody told of containers, and there are some")
	}
}

// TestLabels: a container has the labels of its pod and, before those, its own;
// the pod has those of its sandbox and what the kubelet tells.
func TestLabels(t *testing.T) {
	s := model.Snapshot{
		Entities: map[uint64]model.Entity{7: {Workload: "pod:u1/b", ContainerID: "b", PodUID: "u1", Cgroup: "/kubepods/podu1/b"}},
		Containers: []model.Container{
			{
				ID: "a", Name: "worker", Namespace: "ml", Pod: "train-0", PodUID: "u1",
				Labels: map[string]string{"team": "own"},
			},
			{
				ID: "b", Namespace: "ml", Pod: "train-0", PodUID: "u1", Sandbox: true,
				Labels: map[string]string{"team": "vision"},
			},
		},
		Pods:       []model.Pod{{UID: "u1", Namespace: "ml", Name: "train-0", Labels: map[string]string{"team": "pod", "queue": "q"}}},
		Namespaces: []model.Namespace{{Inode: 9, Cgroup: 7, Interfaces: []model.Interface{{Name: "eth0"}}}},
	}
	s.Entities = Name(&s, nil)
	a := Attribute(s)
	got := map[string]map[string]string{}
	for _, i := range a.Infos {
		o := a.Owners[i.Owner]
		got[o.Workload+" "+o.ContainerID] = i.Labels
	}
	want := map[string]map[string]string{
		"ml/train-0/worker a": {"team": "own", "queue": "q"},
		"ml/train-0 b":        {"team": "vision", "queue": "q"},
		"ml/train-0 ":         {"team": "vision", "queue": "q"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
