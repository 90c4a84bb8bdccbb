// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/accelscope/accelscope/pkg/exposition"

var placementNotes = []string{
	"Only workloads with a problem have series. [Placement](../docs/placement.md) defines `problem`: `other_numa_node`, " +
		"`other_pcie_switch`, `gpudirect_unused`, `idle_rails`, `data_direct_path`.",
}

func placementMetrics() []metric {
	return []metric{{
		name: "accelscope_placement_problem", typ: gauge, owned: true, labels: []string{"problem"},
		help: "Placement problems of the workload's GPUs and HCAs, 1 for each.",
		emit: func(v *view, b *exposition.Builder) {
			for _, w := range v.placement.Workloads() {
				for _, p := range w.Problems {
					b.Share(1, v.owners[w.Owner], p.Name)
				}
			}
		},
	}}
}
