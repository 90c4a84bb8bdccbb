// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

// lensMetrics are named after what `rdma statistic` prints. They are untyped:
// a counter would need a name that ends in _total.
func lensMetrics() []metric {
	return []metric{{
		name: "rdma_stat_<counter>", typ: untyped, compat: CompatLens, labels: devicePortLabels,
		help: "Hardware counter of the driver, under the driver's name; the port is empty for one of the whole device.",
		emit: func(v *view, b *exposition.Builder) {
			for _, name := range v.hw.names {
				if b.OpenPart(name) {
					for _, s := range v.hw.of(name) {
						b.Add(s.labels, float64(s.value))
					}
				}
			}
		},
	}}
}

// lensGPUMetrics are those of Primus Lens beside gpu_utilization, which is always
// there.
func lensGPUMetrics() []metric {
	rows := []metric{
		gpuValue("gpu_socket_power_watts", gauge, "Power that the GPU draws, in watts, as gpu_power_watts.",
			func(g *gpuView) model.Optional { return g.Power }),
		gpuValue("gpu_pcie_bandwidth_mbs", gauge, "What the GPU receives and sends over PCIe, in 1,000,000 bits per second, the unit of "+
			"amd-smi. Absent on AMD GPUs, whose driver tells it in no certain unit.",
			func(g *gpuView) model.Optional {
				both := add(g.PCIe.Receive, g.PCIe.Transmit)
				return scaled(both, bitsPerByte/bitsPerMbit)
			}),
	}
	for i := range rows {
		rows[i].compat = CompatLens
	}
	return rows
}

// add is the sum of two numbers, known when both are.
func add(a, b model.Optional) model.Optional {
	return model.Optional{Value: a.Value + b.Value, Known: a.Known && b.Known}
}
