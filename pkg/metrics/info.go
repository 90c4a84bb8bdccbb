// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"

	"github.com/accelscope/accelscope/pkg/exposition"
)

var infoNotes = []string{
	"`accelscope_workload_info`: `--workload.labels` adds `label_NAME`. `job_kind`, `job_name`, `queue` and `rank` come from " +
		"the pod's controller and labels, which its author can write, or from Slurm's cgroup; `rank` also from " +
		"`--workload.env`.",
	"`accelscope_slurm_step_info`: `job_id` replaces the deprecated `job`. `account`, `partition` and `name` come from the " +
		"processes' environment, which the user can change.",
	"`accelscope_workload_device_info`: `method` has the strongest source, as in `container_rdma_allocated`.",
	"`accelscope_workload_device_unhealthy` needs [ResourceHealthStatus](../docs/gpus.md#resource-claims). Absent for healthy " +
		"devices, unknown health, and resources with IDs that name no device (`rdma/…`).",
	"`container_rdma_allocated`: `method` is `kubelet` (PodResources), `namespace` (the HCA is in the workload's network " +
		"namespace), `network` (network-status annotation) or `device_node`. The last two are not exclusive. Privileged access to " +
		"all devices, and a VF without a device node, do not count.",
	"`container_device_opens_total`: the device cgroup refused `denied` opens.",
	"`class` is `rdma` (/dev/infiniband/*), `nvidia` (/dev/nvidia*), `amdgpu` (/dev/kfd) or `dri` (/dev/dri/*).",
}

// LabelOf returns the label of accelscope_workload_info for a label or annotation of the workload.
func LabelOf(name string) string { return exposition.NameOf("label_<label>", name) }

// infoMetrics returns the metrics that describe workloads. The listed labels and annotations become label_NAME, as in
// kube-state-metrics.
func infoMetrics(labels []string) []metric {
	names := []string{"pod_uid", "runtime", "image", "user", "node", "cgroup", "job_kind", "job_name", "queue", "rank"}
	listed := make([]string, 0, len(labels)) // their names in the workload's metadata
	for _, l := range labels {
		if name := LabelOf(l); !slices.Contains(names, name) {
			names = append(names, name)
			listed = append(listed, l)
		}
	}
	return []metric{{
		name: "accelscope_workload_info", typ: gauge, owned: true, labels: names,
		help: "Pod UID, runtime, image, user, node, cgroup, job and selected labels of the workload.",
		emit: func(v *view, b *exposition.Builder) {
			values := make([]string, 0, len(names))
			for _, i := range v.shares.Infos {
				if !v.scope.describes(i.Owner) {
					continue
				}
				values = append(values[:0], i.PodUID, i.Runtime, i.Image, i.User, v.node, string(i.Cgroup),
					i.Job.Kind, i.Job.Name, i.Job.Queue, i.Job.Rank)
				for _, l := range listed {
					values = append(values, i.Labels[l])
				}
				b.Share(1, v.owners[i.Owner], values...)
			}
		},
	}, {
		name: "accelscope_slurm_step_info", typ: gauge,
		labels: []string{"workload", "job_id", "job", "step", "user", "account", "partition", "name"},
		help:   "Slurm job step on the node, and its user.",
		emit: func(v *view, b *exposition.Builder) {
			for _, s := range v.facts.JobSteps {
				b.Value(1, "slurm:"+s.Job, s.Job, s.Job, s.Step, s.User, s.Account, s.Partition, s.Name)
			}
		},
	}}
}
