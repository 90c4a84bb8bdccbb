// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

// fabricCounter is a counter of a port as the performance manager's attributes name it,
// and what infiniband_exporter calls it.
type fabricCounter struct {
	counter, name string
	unit          float64
	help          string
}

// fabricTraffic and fabricErrors are all that perfquery tells. Of adapters there are
// errors alone: the tools tell them of all adapters at once, and traffic of those only
// that have some.
var fabricTraffic = []fabricCounter{
	{"PortXmitData", "transmit_data_bytes", wordBytes, "Data sent on all virtual lanes of the port, in bytes"},
	{"PortRcvData", "receive_data_bytes", wordBytes, "Data received on all virtual lanes of the port, in bytes"},
	{"PortXmitPkts", "transmit_packets", 1, "Packets sent, those with errors included"},
	{"PortRcvPkts", "receive_packets", 1, "Packets received, those with errors included"},
	{"PortUnicastXmitPkts", "unicast_transmit_packets", 1, "Unicast packets sent, those with errors included"},
	{"PortUnicastRcvPkts", "unicast_receive_packets", 1, "Unicast packets received, those with errors included"},
	{"PortMulticastXmitPkts", "multicast_transmit_packets", 1, "Multicast packets sent, those with errors included"},
	{"PortMulticastRcvPkts", "multicast_receive_packets", 1, "Multicast packets received, those with errors included"},
	{"PortXmitWait", "transmit_wait", 1, "Ticks of the port's clock during which it had data to send and could not send any"},
}

var fabricErrors = []fabricCounter{
	{"SymbolErrorCounter", "symbol_error", 1, "Symbols with errors that the port received"},
	{"LinkErrorRecoveryCounter", "link_error_recovery", 1, "Times that the link recovered from errors by itself"},
	{"LinkDownedCounter", "link_downed", 1, "Times that the link went down, as its recovery failed"},
	{"PortRcvErrors", "receive_errors", 1, "Packets with errors that the port received"},
	{"PortRcvRemotePhysicalErrors", "receive_remote_physical_errors", 1, "Packets received that another port marked as bad"},
	{"PortRcvSwitchRelayErrors", "receive_switch_relay_errors", 1, "Packets received that the switch could not forward"},
	{"PortXmitDiscards", "transmit_discards", 1, "Packets that were not sent, as the port was down or congested"},
	{"PortXmitConstraintErrors", "transmit_constraint_errors", 1, "Packets that were not sent, as a filter or partition forbids them"},
	{"PortRcvConstraintErrors", "receive_constraint_errors", 1, "Packets received that a filter or partition forbids"},
	{"LocalLinkIntegrityErrors", "local_link_integrity_errors", 1, "Times that errors on the link went beyond its threshold"},
	{"ExcessiveBufferOverrunErrors", "excessive_buffer_overrun_errors", 1, "Times that the buffer overran again and again"},
	{"VL15Dropped", "vl15_dropped", 1, "Packets of subnet management that were dropped for want of room"},
	{"QP1Dropped", "qp1_dropped", 1, "Packets of general services that were dropped for want of room"},
}

// fabricNodeMetrics are those of the nodes of the fabric and of their ports.
func fabricNodeMetrics() []metric {
	var rows []metric
	add := func(kind, prefix, what string, counters []fabricCounter) {
		for _, c := range counters {
			rows = append(rows, metric{
				name: prefix + c.name + "_total", typ: counter, labels: fabricPortLabels,
				help: fmt.Sprintf("%s (%s of %s).", c.help, c.counter, what),
				emit: func(v *view, b *exposition.Builder) {
					for _, s := range v.fabric.counters[kind].of(c.counter) {
						b.Add(s.labels, float64(s.value)*c.unit)
					}
				},
			})
		}
	}
	add(model.FabricSwitch, "infiniband_switch_port_", "a switch", slices.Concat(fabricTraffic, fabricErrors))
	add(model.FabricCA, "infiniband_hca_port_", "an adapter in the fabric", fabricErrors)
	return slices.Concat(rows, []metric{
		fabricInfo("infiniband_switch_info", model.FabricSwitch, "switch", "The name of a switch of the fabric, and its LID."),
		fabricInfo("infiniband_hca_info", model.FabricCA, "hca", "The name of a channel adapter in the fabric, and its LID."),
		fabricUplinks("infiniband_switch_uplink_info", model.FabricSwitch, "switch", "What the link of a switch port leads to"),
		fabricUplinks("infiniband_hca_uplink_info", model.FabricCA, "hca", "What the link of an adapter's port leads to"),
		fabricNode("infiniband_switch_up", model.FabricSwitch,
			"Whether the switch answered when its counters were read last (1) or not (0). Then its counters are those of before.",
			func(n *model.FabricNode) model.Optional {
				return model.Optional{Value: truth(n.Error == ""), Known: n.Error != "" || !n.Queried.IsZero()}
			}),
		fabricNode("infiniband_switch_queried_timestamp_seconds", model.FabricSwitch,
			"When the counters of the switch were read last, in seconds since 1970.",
			func(n *model.FabricNode) model.Optional {
				return model.Optional{Value: seconds(n.Queried), Known: !n.Queried.IsZero()}
			}),
		fabricSwitchPort("infiniband_switch_port_up", "Whether the port of the switch has a link (1) or not (0).",
			func(p *model.FabricPort) model.Optional { return model.Some(truth(p.Peer != nil)) }),
		fabricSwitchPort("infiniband_switch_port_link_width_lanes", "Lanes that the link of the switch port has in use.",
			func(p *model.FabricPort) model.Optional {
				return model.Optional{Value: float64(p.Width), Known: p.Peer != nil && p.Width > 0}
			}),
		fabricSwitchPort("infiniband_switch_port_rate_bytes_per_second",
			"Rate of the link of the switch port, in bytes of data per second.",
			func(p *model.FabricPort) model.Optional { return linkRate(p, laneRates[p.Speed].data) }),
		fabricSwitchPort("infiniband_switch_port_raw_rate_bytes_per_second",
			"Rate of the link of the switch port with its encoding, in bytes per second.",
			func(p *model.FabricPort) model.Optional { return linkRate(p, laneRates[p.Speed].raw) }),
		{
			name: "infiniband_switch_port_degraded", typ: gauge, labels: []string{"guid", "port", "reason"},
			help: "Whether the link of the switch port has fewer lanes (reason width) or a lower speed (reason speed) than both of its " +
				"ends are capable of, or than is expected (1), or not (0). Absent where that is not known.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.fabric.ports {
					p := &v.fabric.ports[i]
					if p.node.Kind != model.FabricSwitch || p.Peer == nil {
						continue
					}
					if p.Narrow != nil {
						b.Value(truth(*p.Narrow), p.node.GUID, p.number, "width")
					}
					if p.Slow != nil {
						b.Value(truth(*p.Slow), p.node.GUID, p.number, "speed")
					}
				}
			},
		},
	})
}

// linkRate is the rate of a link in bytes per second, of that of a lane in 1e9 bits.
func linkRate(p *model.FabricPort, lane float64) model.Optional {
	return model.Optional{Value: lane * float64(p.Width) * 1e9 / bitsPerByte, Known: p.Peer != nil && lane > 0 && p.Width > 0}
}

// lid is a LID as a label, empty for none.
func lid(n uint32) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(n), 10)
}

func fabricInfo(name, kind, label, help string) metric {
	return metric{
		name: name, typ: gauge, labels: []string{"guid", label, "lid"}, help: help + " The value is always 1.",
		emit: func(v *view, b *exposition.Builder) {
			if v.fabric.Fabric == nil {
				return
			}
			for i := range v.fabric.Nodes {
				if n := &v.fabric.Nodes[i]; n.Kind == kind {
					b.Value(1, n.GUID, n.Name, lid(n.LID))
				}
			}
		},
	}
}

// fabricUplinks is the row of the links of the nodes of a kind, with both ends.
func fabricUplinks(name, kind, label, help string) metric {
	return metric{
		name: name, typ: gauge,
		help:   help + ": its name, GUID, type (SW, CA, RT), port and LID. The value is always 1.",
		labels: []string{"guid", "port", label, "uplink", "uplink_guid", "uplink_type", "uplink_port", "uplink_lid"},
		emit: func(v *view, b *exposition.Builder) {
			for i := range v.fabric.ports {
				p := &v.fabric.ports[i]
				if p.node.Kind != kind || p.Peer == nil {
					continue
				}
				peer := v.fabric.nodes[p.Peer.GUID]
				if peer == nil {
					peer = &model.FabricNode{}
				}
				b.Value(1, p.node.GUID, p.number, p.node.Name, peer.Name, p.Peer.GUID, peer.Kind, strconv.Itoa(p.Peer.Port), lid(peer.LID))
			}
		},
	}
}
