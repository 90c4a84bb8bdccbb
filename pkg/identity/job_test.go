// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestJob: the pod of a job and all its containers belong to the job, also a container that only a cgroup shows. They
// stay in the job when the kubelet no longer lists the pod. A claimed cgroup with the pod's UID does not belong to the
// job.
func TestJob(t *testing.T) {
	pods := []model.Pod{{UID: "u1", Namespace: "ml", Name: "llm-0", Job: model.Job{Kind: "JobSet", Name: "llm", Queue: "q", Rank: "0"}}}
	facts := model.Snapshot{
		Cgroups: []model.Cgroup{
			{ID: 1, Workload: "pod:u1/a", ContainerID: "a", PodUID: "u1", Runtime: "containerd", Path: "/u1/a"},
			{ID: 2, Workload: "pod:u1/b", ContainerID: "b", PodUID: "u1", Runtime: "containerd", Path: "/u1/b"},
			{ID: 3, Workload: "pod:u1", PodUID: "u1", Path: "/u1"},
			{ID: 4, Workload: "pod:u1/c", ContainerID: "c", PodUID: "u1", Runtime: "podman", Path: "/user/u1/c", Claimed: true},
			{ID: 5, Workload: "unit:sshd.service", Path: "/sshd"},
			{ID: 6, Workload: "slurm:4711", Runtime: "slurm", Path: "/slurm/job_4711"},
			{ID: 7, Workload: "pbs:12.server", Runtime: "pbs", Path: "/pbs_jobs.service/jobid/12.server"},
			{ID: 8, Workload: "condor:slot1", Runtime: "condor", Path: "/htcondor/condor_slot1"},
		},
		Containers: []model.Container{{ID: "a", Runtime: "containerd", Name: "main", Namespace: "ml", Pod: "llm-0", PodUID: "u1"}},
		Pods:       pods,
	}
	want := map[model.CgroupID]model.Job{
		1: pods[0].Job, 2: pods[0].Job, 3: pods[0].Job, 4: {}, 5: {}, 6: {Kind: "Slurm", Name: "4711"}, 7: {Kind: "PBS", Name: "12.server"}, 8: {},
	}
	var table Table
	for _, listed := range []bool{true, false} {
		if !listed {
			facts.Pods, facts.Containers = nil, nil
		}
		table.Resolve(&facts, nil)
		table.Label(&facts)
		for id, job := range want {
			if got := table.Info(table.Of(id)).Job; got != job {
				t.Errorf("listed %v: %v is in %+v, want %+v", listed, *table.Owner(table.Of(id)), got, job)
			}
		}
	}
}

// TestRanksOfProcesses: a rank from an environment replaces the rank from the controller, and needs no job.
func TestRanksOfProcesses(t *testing.T) {
	facts := model.Snapshot{
		Cgroups: []model.Cgroup{
			{ID: 1, Workload: "pod:u1/a", ContainerID: "a", PodUID: "u1", Path: "/u1/a"},
			{ID: 2, Workload: "docker:b", ContainerID: "b", Path: "/b"},
		},
		Pods:  []model.Pod{{UID: "u1", Namespace: "ml", Name: "llm-0", Job: model.Job{Kind: "Job", Name: "llm", Rank: "1"}}},
		Ranks: []model.Ranks{{Cgroup: 1, Ranks: "8..15"}, {Cgroup: 2, Ranks: "0"}, {Cgroup: 3, Ranks: "7"}},
	}
	var table Table
	table.Resolve(&facts, nil)
	table.Label(&facts)
	for id, want := range map[model.CgroupID]model.Job{1: {Kind: "Job", Name: "llm", Rank: "8..15"}, 2: {Rank: "0"}, 3: {}} {
		if got := table.Info(table.Of(id)).Job; got != want {
			t.Errorf("%d: %+v, want %+v", id, got, want)
		}
	}
}
