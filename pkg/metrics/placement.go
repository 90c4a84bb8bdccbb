// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/accelscope/accelscope/pkg/exposition"

var placementNotes = []string{
	"Only while a workload has a problem, so most nodes have no series. [docs/placement.md](../docs/placement.md) defines each value of " +
		"`problem`: `other_numa_node`, `other_pcie_switch`, `gpudirect_unused`, `idle_rails`, `data_direct_path`. " +
		"`/api/v1/topology` lists the devices concerned.",
	"Needs the source `pci`.",
}

// placementMetrics returns the metric of wrong placement.
func placementMetrics() []metric {
	return []metric{{
		name: "accelscope_placement_problem", typ: gauge, owned: true, labels: []string{"problem"},
		help: "Problems with where the GPUs and HCAs of the workload are, 1 for each.",
		emit: func(v *view, b *exposition.Builder) {
			for _, w := range v.placement.Workloads() {
				for _, p := range w.Problems {
					b.Share(1, v.owners[w.Owner], p.Name)
				}
			}
		},
	}}
}
