// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
)

// TestJobGPUs checks which GPUs Slurm jobs have, and the evidence.
func TestJobGPUs(t *testing.T) {
	nvidia := func(minors ...int) (gpus []model.GPU) {
		for i, minor := range minors {
			gpus = append(gpus, model.GPU{
				Vendor: model.NVIDIA, ID: fmt.Sprint(i), UUID: fmt.Sprint("GPU-", minor), Nodes: []string{fmt.Sprint("/dev/nvidia", minor)},
			})
		}
		return gpus
	}
	pod := []model.Allocation{given("nvidia.com/gpu", "GPU-1")}
	for name, c := range map[string]struct {
		gpus        []model.GPU
		jobs        []model.JobGPUs // of the cgroups 7, 8, … of the jobs 7, 8, …
		allocations []model.Allocation
		want        []string
	}{
		"by its device cgroup": {
			mixed(),
			[]model.JobGPUs{{Cgroup: 7, Nodes: []string{"/dev/nvidia0", "/dev/nvidia9", "/dev/dri/card0"}}},
			nil,
			[]string{"slurm:7 GPU-0 device_cgroup"},
		},
		"a MIG instance": {
			mixed(),
			[]model.JobGPUs{{Cgroup: 7, Nodes: []string{"/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap75"}}},
			nil,
			[]string{"slurm:7 MIG-2 device_cgroup"},
		},
		"a MIG instance by its environment": {
			mixed(),
			[]model.JobGPUs{{Cgroup: 7, UUIDs: []string{"MIG-1", "GPU-1", "MIG-unknown"}, Numbers: []int{0}}},
			nil,
			[]string{"slurm:7 MIG-1 environment"}, // with parts, numbers are not device node numbers
		},
		"numbers": {
			nvidia(4, 0, 1),
			[]model.JobGPUs{{Cgroup: 7, Numbers: []int{0, 2}}, {Cgroup: 8, Numbers: []int{1, 3, -1, 255}}},
			nil,
			[]string{"slurm:7 GPU-0 environment", "slurm:7 GPU-4 environment", "slurm:8 GPU-1 environment"},
		},
		"numbers of AMD": { // whose cards may have other numbers
			mixed()[:2], []model.JobGPUs{{Cgroup: 7, Numbers: []int{1}}}, nil, []string{"slurm:7 bb environment"},
		},
		"numbers of several vendors": {mixed()[1:3], []model.JobGPUs{{Cgroup: 7, Numbers: []int{0}}}, nil, []string{}},
		"numbers without nodes":      {[]model.GPU{{UUID: "x"}}, []model.JobGPUs{{Cgroup: 7, Numbers: []int{0}}}, nil, []string{}},
		"two steps of a job": {
			nvidia(0, 1),
			[]model.JobGPUs{{Cgroup: 7, Numbers: []int{0, 1}}, {Cgroup: 7, Nodes: []string{"/dev/nvidia1"}}},
			nil,
			[]string{"slurm:7 GPU-0 environment", "slurm:7 GPU-1 device_cgroup"},
		},
		"jobs that share a GPU": {
			nvidia(0),
			[]model.JobGPUs{{Cgroup: 7, Numbers: []int{0}}, {Cgroup: 8, Numbers: []int{0}}},
			nil,
			[]string{"slurm:7 GPU-0 environment", "slurm:8 GPU-0 environment"},
		},
		"an environment that names GPUs of others": {
			nvidia(0, 1, 2),
			[]model.JobGPUs{{Cgroup: 7, Nodes: []string{"/dev/nvidia0"}}, {Cgroup: 8, Numbers: []int{0, 1, 2}}},
			pod,
			[]string{"ml/train-0/worker GPU-1 kubelet", "slurm:7 GPU-0 device_cgroup", "slurm:8 GPU-2 environment"},
		},
		"a cgroup of nobody": {nvidia(0), []model.JobGPUs{{Cgroup: 99, Numbers: []int{0}}}, nil, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			a := attribute(facts{
				Snapshot: model.Snapshot{
					GPUs: c.gpus, JobGPUs: c.jobs, Allocations: c.allocations, Containers: []model.Container{worker()},
				},
				Entities: map[model.CgroupID]identitytest.Entity{
					7: {Workload: "slurm:7", Runtime: "slurm", Step: "0"}, 8: {Workload: "slurm:8", Runtime: "slurm", Step: "0"},
				},
			})
			got := []string{}
			for _, s := range a.GPUs { // an owner without processes has a share: its GPU is idle
				if s.Assigned != nil {
					got = append(got, fmt.Sprintf("%s %s %s", a.Owners[s.Owner].Workload, s.GPU.UUID, s.Assigned.Allocated))
				}
			}
			slices.Sort(got)
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}
