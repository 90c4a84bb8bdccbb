// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// entity is a cgroup with its name.
type entity struct {
	Workload, Namespace, Pod, Container, ContainerID, PodUID, Runtime, Image, User, Step, Cgroup string
	Claimed                                                                                      bool
}

func (e entity) cgroup(id uint64) model.Cgroup {
	return model.Cgroup{
		ID: model.CgroupID(id), Path: model.CgroupPath(e.Cgroup), Workload: e.Workload, ContainerID: e.ContainerID, PodUID: e.PodUID,
		Runtime: e.Runtime, User: e.User, Step: e.Step, Claimed: e.Claimed,
	}
}

func (e entity) name() name {
	return name{
		Owner:  Owner{e.Workload, e.Namespace, e.Pod, e.Container, e.ContainerID},
		PodUID: e.PodUID, Runtime: e.Runtime, Image: e.Image, User: e.User, Path: model.CgroupPath(e.Cgroup), Claimed: e.Claimed,
	}
}

func TestName(t *testing.T) {
	const id = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	inPod := entity{
		Workload: "pod:u1/0123456789ab", ContainerID: id, PodUID: "u1", Runtime: "containerd", Cgroup: "/kubepods/podu1/" + id,
	}
	worker := model.Container{
		ID: id, Runtime: "containerd", Name: "worker", Namespace: "ml", Pod: "train-0", PodUID: "u1", Image: "train:1",
	}
	named := entity{
		Workload: "ml/train-0/worker", Namespace: "ml", Pod: "train-0", Container: "worker", ContainerID: id,
		PodUID: "u1", Runtime: "containerd", Image: "train:1", Cgroup: inPod.Cgroup,
	}
	free := entity{Workload: "cgroup:/default/web/child", Cgroup: "/default/web/child"}
	static := entity{Workload: "pod:hash", PodUID: "hash", Cgroup: "/kubepods/podhash"}
	for title, c := range map[string]struct {
		entity     entity
		containers []model.Container
		pods       []model.Pod
		before     map[uint64]entity
		want       entity
	}{
		"by id":            {entity: inPod, containers: []model.Container{worker}, want: named},
		"not listed":       {entity: inPod, want: inPod},
		"listed before":    {entity: inPod, before: map[uint64]entity{7: named}, want: named},
		"the id is reused": {entity: static, before: map[uint64]entity{7: named}, want: static},
		"a sandbox": {
			entity:     inPod,
			containers: []model.Container{{ID: id, Sandbox: true, Name: "POD", Namespace: "ml", Pod: "train-0", PodUID: "u1"}},
			want: entity{
				Workload: "ml/train-0", Namespace: "ml", Pod: "train-0", ContainerID: id, PodUID: "u1", Runtime: "containerd",
				Cgroup: inPod.Cgroup,
			},
		},
		"only its pod": {
			entity: inPod, pods: []model.Pod{{UID: "u1", Namespace: "ml", Name: "train-0"}},
			want: entity{
				Workload: "ml/train-0/0123456789ab", Namespace: "ml", Pod: "train-0", ContainerID: id, PodUID: "u1",
				Runtime: "containerd", Cgroup: inPod.Cgroup,
			},
		},
		"a container without the name of its pod": {
			entity: static, containers: []model.Container{{ID: "x", Runtime: "docker", PodUID: "hash"}},
			want: static,
		},
		"a static pod": {
			entity: static, pods: []model.Pod{{UID: "u9", StaticUID: "hash", Namespace: "kube-system", Name: "etcd"}},
			want: entity{
				Workload: "kube-system/etcd", Namespace: "kube-system", Pod: "etcd", PodUID: "hash", Cgroup: "/kubepods/podhash",
			},
		},
		"a job with a user found later": {
			entity: entity{Workload: "slurm:7", User: "ada", Runtime: "slurm", Cgroup: "/slurm/job_7"},
			before: map[uint64]entity{7: {Workload: "slurm:7", Runtime: "slurm", Cgroup: "/slurm/job_7"}},
			want:   entity{Workload: "slurm:7", User: "ada", Runtime: "slurm", Cgroup: "/slurm/job_7"},
		},
		"an ended job": {
			entity: entity{Workload: "slurm:7", Runtime: "slurm", Cgroup: "/slurm/job_7"},
			before: map[uint64]entity{7: {Workload: "slurm:7", User: "ada", Runtime: "slurm", Cgroup: "/slurm/job_7"}},
			want:   entity{Workload: "slurm:7", User: "ada", Runtime: "slurm", Cgroup: "/slurm/job_7"},
		},
		"docker": {
			entity:     entity{Workload: "docker:0123456789ab", ContainerID: id, Runtime: "docker", Cgroup: "/docker/" + id},
			containers: []model.Container{{ID: id, Runtime: "docker", Name: "web", Image: "nginx"}},
			want: entity{
				Workload: "docker:web", ContainerID: id, Runtime: "docker", Image: "nginx", Cgroup: "/docker/" + id,
			},
		},
		"by its cgroup": {
			entity:     free,
			containers: []model.Container{{ID: "web", Runtime: "containerd", Name: "web", Cgroup: "/default/web"}},
			want: entity{
				Workload: "containerd:web", ContainerID: "web", Runtime: "containerd", Cgroup: "/default/web/child",
			},
		},
		"a child of a forgotten container": {
			entity: free,
			before: map[uint64]entity{
				7: {Workload: "containerd:web", ContainerID: "web", Runtime: "containerd", Cgroup: "/default/web/child"},
			},
			want: entity{
				Workload: "containerd:web", ContainerID: "web", Runtime: "containerd", Cgroup: "/default/web/child",
			},
		},
		"a sandbox with a pod listed later": {
			entity: inPod, pods: []model.Pod{{UID: "u1", Namespace: "ml", Name: "train-0"}},
			before: map[uint64]entity{7: inPod},
			want: entity{
				Workload: "ml/train-0/0123456789ab", Namespace: "ml", Pod: "train-0", ContainerID: id, PodUID: "u1",
				Runtime: "containerd", Cgroup: inPod.Cgroup,
			},
		},
		"an id that a user could claim": {
			entity:     entity{Workload: "podman:0123456789ab", ContainerID: id, Runtime: "podman", Cgroup: "/u/x", Claimed: true},
			containers: []model.Container{worker},
			want:       entity{Workload: "podman:0123456789ab", ContainerID: id, Runtime: "podman", Cgroup: "/u/x", Claimed: true},
		},
		"a unit that a runtime lists by the id in its name": {
			entity:     entity{Workload: "unit:docker-" + id + ".scope", Runtime: "systemd", Cgroup: "/user.slice/docker-" + id + ".scope"},
			containers: []model.Container{{ID: id, Runtime: "docker", Name: "web", Cgroup: "/user.slice/docker-" + id + ".scope"}},
			want: entity{
				Workload: "docker:web", ContainerID: id, Runtime: "systemd", Cgroup: "/user.slice/docker-" + id + ".scope",
			},
		},
		"a unit with the id of a container at another place": {
			entity:     entity{Workload: "unit:docker-" + id + ".scope", Runtime: "systemd", Cgroup: "/user.slice/docker-" + id + ".scope"},
			containers: []model.Container{{ID: id, Runtime: "docker", Name: "web", Cgroup: "/ecs/" + id}},
			want:       entity{Workload: "unit:docker-" + id + ".scope", Runtime: "systemd", Cgroup: "/user.slice/docker-" + id + ".scope"},
		},
		"an id that a user could claim, and that a runtime lists at this place": {
			entity:     entity{Workload: "podman:0123456789ab", ContainerID: id, Runtime: "podman", Cgroup: "/u/libpod-" + id, Claimed: true},
			containers: []model.Container{{ID: id, Runtime: "podman", Name: "web", Cgroup: "/u/libpod-" + id}},
			want:       entity{Workload: "podman:web", ContainerID: id, Runtime: "podman", Cgroup: "/u/libpod-" + id},
		},
		"by a reused cgroup path": {
			entity: free,
			containers: []model.Container{
				{ID: "web", Runtime: "containerd", Name: "web", Cgroup: "/default/web"},
				{ID: "old", Runtime: "containerd", Name: "old", Cgroup: "/default/web", Status: model.ContainerExited},
			},
			want: entity{
				Workload: "containerd:web", ContainerID: "web", Runtime: "containerd", Cgroup: "/default/web/child",
			},
		},
		// A user who may make cgroups below its own cgroup must not take another workload's name.
		"a unit is not a container": {
			entity:     entity{Workload: "unit:evil.service", Runtime: "systemd", Cgroup: "/default/web"},
			containers: []model.Container{{ID: "web", Runtime: "containerd", Name: "web", Cgroup: "/default/web"}},
			want:       entity{Workload: "unit:evil.service", Runtime: "systemd", Cgroup: "/default/web"},
		},
	} {
		t.Run(title, func(t *testing.T) {
			resolve := func(before map[uint64]entity) (*Table, name) {
				var table Table
				table.init()
				for id, e := range before {
					n := e.name()
					table.cgroups[model.CgroupID(id)] = &cgroup{name: n, owner: table.place(&n, true)}
				}
				s := model.Snapshot{Cgroups: []model.Cgroup{c.entity.cgroup(7)}, Containers: c.containers, Pods: c.pods}
				table.Resolve(&s, nil)
				return &table, table.cgroups[7].name
			}
			if _, got := resolve(c.before); got != c.want.name() {
				t.Errorf("%+v, want %+v", got, c.want.name())
			}
			// A container has the same owner as its cgroup.
			for i := range c.containers {
				table, now := resolve(nil)
				if now != c.want.name() || c.want.ContainerID != c.containers[i].ID || c.want.Claimed || c.containers[i].ID == "old" {
					continue
				}
				if got, want := table.OfContainer(&c.containers[i]), table.Of(7); got != want || table.OwnerOf(7) != c.want.name().Owner {
					t.Errorf("by the container %+v, by the cgroup %+v", table.Owner(got), table.Owner(want))
				}
			}
		})
	}
}

func TestContainers(t *testing.T) {
	n, fewer := uint64(3), uint64(0)
	got := Containers([]model.Container{
		{ID: "a", Runtime: "containerd", Name: "a", Restarts: &fewer, Status: model.ContainerRunning, Labels: map[string]string{"app": "x", "k": "1"}},
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
		t.Error("want nil without a list of containers")
	}
}
