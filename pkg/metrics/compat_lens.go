// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var lensNotes = []string{
	"`gpu_pcie_bandwidth_mbs`: a megabit is 1,000,000 bits. Absent for AMD, because its unit is not certain.",
}

// lensMetrics returns the metrics of Primus Lens except gpu_utilization, which is always exported: the counters and
// names of `rdma statistic`, and GPU values. Counters are untyped, because their names do not end in _total.
func lensMetrics() []metric {
	counters := metric{
		name: "rdma_stat_<counter>", typ: untyped, labels: devicePortLabels,
		help: "Hardware counter, under the driver's name.",
		emit: func(v *view, b *exposition.Builder) { v.hw.emit(b) },
	}
	return append(of("rdma", []metric{counters}), of("gpu", []metric{
		gpuValue("gpu_socket_power_watts", gauge, "Power drawn by the GPU.",
			func(g *gpuView) model.Optional { return g.Power }),
		gpuValue("gpu_pcie_bandwidth_mbs", gauge, "PCIe traffic in both directions, in megabits per second.",
			func(g *gpuView) model.Optional {
				received, sent := g.PCIe.Receive, g.PCIe.Transmit
				both := model.Optional{Value: received.Value + sent.Value, Known: received.Known && sent.Known}
				return scaled(both, bitsPerByte/bitsPerMbit)
			}),
	})...)
}
