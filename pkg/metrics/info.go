// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"

	"github.com/accelscope/accelscope/pkg/exposition"
)

var infoNotes = []string{
	"`accelscope_workload_info` is joined with other metrics by the identity labels. The labels and annotations that " +
		"`--workload.labels` lists are added as `label_NAME`.",
	"`accelscope_workload_info`: `job_kind`, `job_name`, `queue` and `rank` come from the controller and the labels of the pod, " +
		"which the author of the pod can write, for a Slurm job from its cgroup; `rank` also from the variables of processes that " +
		"`--workload.env` lists. They are empty outside a job.",
	"`accelscope_slurm_step_info`: `job` is deprecated, and `job_id` replaces it: `job` is the label of Prometheus for the scrape job. " +
		"`account`, `partition` and `name` are those of the job in the environment of its processes, which its user can change.",
	"`accelscope_workload_device_info`: the device was assigned by the kubelet, as a device node, as a network of the pod, or " +
		"by moving it into the network namespace of the workload; `method` has the strongest source, as in `container_rdma_allocated`. " +
		"Unknown values are empty.",
	"`accelscope_workload_device_unhealthy`: from kubelets with the feature `ResourceHealthStatus` (alpha in Kubernetes 1.35). It is " +
		"absent for a healthy device, for one of unknown health, and for a resource with IDs that name no device (`rdma/…`).",
	"`container_rdma_allocated`: `method` is `kubelet` (PodResources lists the PCI function), `namespace` (the HCA is in the " +
		"network namespace of the workload), `network` (the network-status annotation of the pod names the HCA) or " +
		"`device_node` (the container has the device node, such as from a plugin that shares HCAs). The last two are not " +
		"exclusive. Access to all devices of the node (privileged) does not count, nor does a virtual function without a " +
		"device node, which is a network interface only.",
	"`container_device_opens_total` counts from the start of the sensor; `denied` are opens that the device cgroup refused. " +
		"`device` is the name of the device node.",
	"`container_device_handles` is absent where the kernel has no BPF iterator over open files.",
	"`class` is `rdma` (/dev/infiniband/*), `nvidia` (/dev/nvidia*), `amdgpu` (/dev/kfd) or `dri` (/dev/dri/*).",
}

// LabelOf returns the label of accelscope_workload_info that has the value of a label or annotation of the workload.
func LabelOf(name string) string { return exposition.NameOf("label_<label>", name) }

// infoMetrics returns the metrics that describe workloads. The labels and annotations
// that the user listed become label_NAME, as in kube-state-metrics.
func infoMetrics(labels []string) []metric {
	names := []string{"pod_uid", "runtime", "image", "user", "node", "cgroup", "job_kind", "job_name", "queue", "rank"}
	listed := make([]string, 0, len(labels)) // the names in the workload's own metadata
	for _, l := range labels {
		if name := LabelOf(l); !slices.Contains(names, name) {
			names = append(names, name)
			listed = append(listed, l)
		}
	}
	return []metric{{
		name: "accelscope_workload_info", typ: gauge, owned: true, labels: names,
		help: "Pod UID, runtime, image, user, node, cgroup, job and selected labels of the workload, always 1.",
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
		help:   "Step of a Slurm job on the node and the user that runs it, always 1.",
		emit: func(v *view, b *exposition.Builder) {
			for _, s := range v.facts.JobSteps {
				b.Value(1, "slurm:"+s.Job, s.Job, s.Job, s.Step, s.User, s.Account, s.Partition, s.Name)
			}
		},
	}}
}
