// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"
	"strconv"

	"github.com/accelscope/accelscope/pkg/exposition"
)

var rdmaExporterNotes = []string{
	"`rdma_<counter>_total`: data counters count words of four bytes, as in sysfs.",
}

// rdmaExporterMetrics returns the metrics of rdma_exporter that come from sysfs and netlink.
func rdmaExporterMetrics() []metric {
	return []metric{
		{
			name: "rdma_<counter>_total", typ: counter, labels: devicePortLabels,
			help: "Counter of the port or driver, with the name and unit of sysfs.",
			emit: func(v *view, b *exposition.Builder) {
				names := slices.Concat(v.pma.names, v.hw.names)
				slices.Sort(names)
				for _, name := range slices.Compact(names) {
					if !b.OpenPart(name) {
						continue
					}
					for _, s := range v.pma.of(name) {
						b.Add(s.labels, s.value)
					}
					for _, s := range v.hw.of(name) {
						if s.port() != "" {
							b.Add(s.labels, s.value)
						}
					}
				}
			},
		},
		{
			name: "rdma_port_info", typ: gauge,
			labels: []string{
				"device", "port", "netdev", "link_layer", "state", "phys_state", "link_width", "link_speed", "pci_addr",
			},
			help: "Network interface, states, link and PCI address of the port.",
			emit: each(portsOf, func(_ *view, b *exposition.Builder, p *portView) {
				width := ""
				if p.Width > 0 {
					width = strconv.Itoa(p.Width) + "X"
				}
				b.Value(1, p.hca.Name, p.number, p.Netdev, p.LinkLayer, p.State, p.PhysState, width, p.Speed,
					p.hca.PCIAddress)
			}),
		},
	}
}
