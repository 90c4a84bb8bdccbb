// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

// fabricCounter is a counter of a port, with its names in the performance manager's attributes and in
// infiniband_exporter.
type fabricCounter struct {
	counter, name string
	unit          float64
	help          string
}

// fabricTraffic and fabricErrors are all counters that perfquery reports. Adapters have only error counters: the tools
// report the errors of all adapters in one query, but traffic only for adapters with errors.
var fabricTraffic = []fabricCounter{
	{"PortXmitData", "transmit_data_bytes", wordBytes, "Bytes sent on all virtual lanes"},
	{"PortRcvData", "receive_data_bytes", wordBytes, "Bytes received on all virtual lanes"},
	{"PortXmitPkts", "transmit_packets", 1, "Packets sent, including errors"},
	{"PortRcvPkts", "receive_packets", 1, "Packets received, including errors"},
	{"PortUnicastXmitPkts", "unicast_transmit_packets", 1, "Unicast packets sent, including errors"},
	{"PortUnicastRcvPkts", "unicast_receive_packets", 1, "Unicast packets received, including errors"},
	{"PortMulticastXmitPkts", "multicast_transmit_packets", 1, "Multicast packets sent, including errors"},
	{"PortMulticastRcvPkts", "multicast_receive_packets", 1, "Multicast packets received, including errors"},
	{"PortXmitWait", "transmit_wait", 1, "Port clock ticks with data waiting"},
}

var fabricErrors = []fabricCounter{
	{"SymbolErrorCounter", "symbol_error", 1, "Symbols received with errors"},
	{"LinkErrorRecoveryCounter", "link_error_recovery", 1, "Link recoveries"},
	{"LinkDownedCounter", "link_downed", 1, "Link downs after a failed recovery"},
	{"PortRcvErrors", "receive_errors", 1, "Packets received with errors"},
	{"PortRcvRemotePhysicalErrors", "receive_remote_physical_errors", 1, "Packets that another port marked as bad"},
	{"PortRcvSwitchRelayErrors", "receive_switch_relay_errors", 1, "Packets that the switch could not forward"},
	{"PortXmitDiscards", "transmit_discards", 1, "Packets not sent, port down or congested"},
	{"PortXmitConstraintErrors", "transmit_constraint_errors", 1, "Packets not sent, forbidden by filter or partition"},
	{"PortRcvConstraintErrors", "receive_constraint_errors", 1, "Packets received, forbidden by filter or partition"},
	{"LocalLinkIntegrityErrors", "local_link_integrity_errors", 1, "Link errors above the threshold"},
	{"ExcessiveBufferOverrunErrors", "excessive_buffer_overrun_errors", 1, "Persistent buffer overruns"},
	{"VL15Dropped", "vl15_dropped", 1, "Subnet management packets without a buffer"},
	{"QP1Dropped", "qp1_dropped", 1, "General services packets without a buffer"},
}

func fabricNodeMetrics() []metric {
	var rows []metric
	add := func(kind, prefix, what string, counters []fabricCounter) {
		for _, c := range counters {
			rows = append(rows, metric{
				name: prefix + c.name + "_total", typ: counter, labels: fabricPortLabels,
				help: fmt.Sprintf("%s (%s %s).", c.help, what, c.counter),
				emit: func(v *view, b *exposition.Builder) {
					for _, s := range v.fabric.counters[kind].of(c.counter) {
						b.Add(s.labels, s.value*c.unit)
					}
				},
			})
		}
	}
	add(model.FabricSwitch, "infiniband_switch_port_", "switch", slices.Concat(fabricTraffic, fabricErrors))
	add(model.FabricCA, "infiniband_hca_port_", "HCA", fabricErrors)
	return slices.Concat(rows, []metric{
		fabricInfo("infiniband_switch_info", model.FabricSwitch, "switch", "Name and LID of the switch"),
		fabricInfo("infiniband_hca_info", model.FabricCA, "hca", "Name and LID of the channel adapter"),
		fabricUplinks("infiniband_switch_uplink_info", model.FabricSwitch, "switch", "switch"),
		fabricUplinks("infiniband_hca_uplink_info", model.FabricCA, "hca", "adapter"),
		fabricNode("infiniband_switch_up", model.FabricSwitch,
			"Whether the switch answered the last query.",
			func(n *model.FabricNode) model.Optional {
				return model.Optional{Value: truth(n.Error == ""), Known: n.Error != "" || !n.Queried.IsZero()}
			}),
		fabricNode("infiniband_switch_queried_timestamp_seconds", model.FabricSwitch,
			"Unix time of the last reading of the switch's counters.",
			func(n *model.FabricNode) model.Optional { return moment(n.Queried) }),
		fabricSwitchPort("infiniband_switch_port_up", "Whether the switch port has a link.",
			func(p *model.FabricPort) model.Optional { return model.Some(truth(p.Peer != nil)) }),
		fabricSwitchPort("infiniband_switch_port_link_width_lanes", "Lanes of the switch port's link.",
			func(p *model.FabricPort) model.Optional {
				return model.Optional{Value: float64(p.Width), Known: p.Peer != nil && p.Width > 0}
			}),
		fabricSwitchPort("infiniband_switch_port_rate_bytes_per_second",
			"Data rate of the switch port's link.",
			func(p *model.FabricPort) model.Optional { return linkRate(p, laneRates[p.Speed].data) }),
		fabricSwitchPort("infiniband_switch_port_raw_rate_bytes_per_second",
			"Rate of the switch port's link with encoding.",
			func(p *model.FabricPort) model.Optional { return linkRate(p, laneRates[p.Speed].raw) }),
		{
			name: "infiniband_switch_port_degraded", typ: gauge, labels: []string{"guid", "port", "reason"},
			help: "Whether the link has less than the expected width or speed.",
			emit: each(fabricPortsOf, func(_ *view, b *exposition.Builder, p *fabricPort) {
				if p.node.Kind != model.FabricSwitch || p.Peer == nil {
					return
				}
				if p.Narrow != nil {
					b.Value(truth(*p.Narrow), p.node.GUID, p.number, "width")
				}
				if p.Slow != nil {
					b.Value(truth(*p.Slow), p.node.GUID, p.number, "speed")
				}
			}),
		},
	})
}

// linkRate returns a link's rate in bytes per second. lane is the rate of a lane in 1e9 bits per second.
func linkRate(p *model.FabricPort, lane float64) model.Optional {
	return model.Optional{Value: lane * float64(p.Width) * 1e9 / bitsPerByte, Known: p.Peer != nil && lane > 0 && p.Width > 0}
}

func fabricInfo(name, kind, label, help string) metric {
	return metric{
		name: name, typ: gauge, labels: []string{"guid", label, "lid"}, help: help + ".",
		emit: each(fabricNodesOf, func(_ *view, b *exposition.Builder, n *model.FabricNode) {
			if n.Kind == kind {
				b.Value(1, n.GUID, n.Name, nonZero(uint64(n.LID)))
			}
		}),
	}
}

// fabricUplinks returns the row of the links of a kind of node, with both ends.
func fabricUplinks(name, kind, label, owner string) metric {
	return metric{
		name: name, typ: gauge,
		help:   "Name, GUID, type, port and LID at the other end of the " + owner + "'s link.",
		labels: []string{"guid", "port", label, "uplink", "uplink_guid", "uplink_type", "uplink_port", "uplink_lid"},
		emit: each(fabricPortsOf, func(v *view, b *exposition.Builder, p *fabricPort) {
			if p.node.Kind != kind || p.Peer == nil {
				return
			}
			peer := v.fabric.nodes[p.Peer.GUID]
			if peer == nil {
				peer = &model.FabricNode{}
			}
			b.Value(1, p.node.GUID, p.number, p.node.Name, peer.Name, p.Peer.GUID, peer.Kind,
				strconv.Itoa(p.Peer.Port), nonZero(uint64(peer.LID)))
		}),
	}
}
