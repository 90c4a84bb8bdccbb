// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/exposition"
)

// infoMetrics tell what is known of workloads beyond their identity. The labels
// and annotations that the user listed become label_NAME, as kube-state-metrics
// has them.
func infoMetrics(labels []string) []metric {
	names := []string{"pod_uid", "runtime", "image", "user", "node", "cgroup"}
	listed := make([]string, 0, len(labels)) // as the workload has them
	for _, l := range labels {
		if name := labelName(l); !slices.Contains(names, name) {
			names = append(names, name)
			listed = append(listed, l)
		}
	}
	return []metric{{
		name: "accelscope_workload_info", typ: gauge, owned: true, labels: names,
		help: "What else is known of a workload; to be joined by the identity labels. The value is always 1.",
		emit: func(v *view, b *exposition.Builder) {
			values := make([]string, 0, len(names))
			for _, i := range v.shares.Infos {
				values = append(values[:0], i.PodUID, i.Runtime, i.Image, i.User, v.node, string(i.Cgroup))
				for _, l := range listed {
					values = append(values, i.Labels[l])
				}
				b.Share(1, v.owners[i.Owner], values...)
			}
		},
	}, {
		name: "accelscope_slurm_step_info", typ: gauge, labels: []string{"workload", "job", "step", "user"},
		help: "The steps of the Slurm jobs on the node and whose they are. The value is always 1.",
		emit: func(v *view, b *exposition.Builder) {
			for _, s := range v.facts.JobSteps {
				b.Value(1, "slurm:"+s.Job, s.Job, s.Step, s.User)
			}
		},
	}}
}

// labelName is the label under which a label of a pod is shown.
func labelName(label string) string {
	return "label_" + strings.Map(func(r rune) rune {
		switch {
		case 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', '0' <= r && r <= '9', r == '_':
			return r
		}
		return '_'
	}, label)
}
