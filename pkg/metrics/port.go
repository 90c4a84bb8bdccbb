// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var devicePortLabels = []string{"device", "port"}

// wordBytes is the unit of port_rcv_data and port_xmit_data.
const wordBytes = 4

// The states of a port, in the words of the kernel and of the labels.
var (
	portStates = []string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}
	physStates = []string{
		"Sleep", "Polling", "Disabled", "PortConfigurationTraining", "LinkUp", "LinkErrorRecovery", "Phy Test",
	}
	portStateLabels = []string{"nop", "down", "init", "armed", "active", "active_defer"}
	physStateLabels = []string{
		"sleep", "polling", "disabled", "port_configuration_training", "link_up", "link_error_recovery", "phy_test",
	}
)

// stateLabel is the label of a state; one that is not known keeps its word.
func stateLabel(state string, states, labels []string) string {
	if i := slices.Index(states, state); i >= 0 {
		return labels[i]
	}
	return strings.ToLower(state)
}

// portErrors are the error counters of a port and what they are called here.
var portErrors = []struct{ counter, typ string }{
	{"symbol_error", "symbol"},
	{"link_error_recovery", "link_recovery"},
	{"link_downed", "link_downed"},
	{"port_rcv_errors", "receive"},
	{"port_rcv_remote_physical_errors", "receive_remote_physical"},
	{"port_rcv_switch_relay_errors", "receive_switch_relay"},
	{"port_rcv_constraint_errors", "receive_constraint"},
	{"port_rcv_discards", "receive_discard"},
	{"port_xmit_constraint_errors", "transmit_constraint"},
	{"port_xmit_discards", "transmit_discard"},
	{"local_link_integrity_errors", "local_link_integrity"},
	{"excessive_buffer_overrun_errors", "excessive_buffer_overrun"},
	{"VL15_dropped", "vl15_dropped"},
}

// portMetrics are what the devices and ports themselves tell.
func portMetrics() []metric {
	return []metric{
		pma("infiniband_port_receive_data_bytes_total", "port_rcv_data", wordBytes,
			"Data received on all virtual lanes of the port, in bytes."),
		pma("infiniband_port_transmit_data_bytes_total", "port_xmit_data", wordBytes,
			"Data sent on all virtual lanes of the port, in bytes."),
		pma("infiniband_port_receive_packets_total", "port_rcv_packets", 1,
			"Packets received on all virtual lanes of the port, those with errors included."),
		pma("infiniband_port_transmit_packets_total", "port_xmit_packets", 1,
			"Packets sent on all virtual lanes of the port, those with errors included."),
		pma("infiniband_port_receive_unicast_packets_total", "unicast_rcv_packets", 1,
			"Unicast packets received, those with errors included."),
		pma("infiniband_port_transmit_unicast_packets_total", "unicast_xmit_packets", 1,
			"Unicast packets sent, those with errors included."),
		pma("infiniband_port_receive_multicast_packets_total", "multicast_rcv_packets", 1,
			"Multicast packets received, those with errors included."),
		pma("infiniband_port_transmit_multicast_packets_total", "multicast_xmit_packets", 1,
			"Multicast packets sent, those with errors included."),
		pma("infiniband_port_transmit_wait_total", "port_xmit_wait", 1,
			"Ticks of the port's clock during which it had data to send and could not send any."),
		{
			name: "infiniband_port_errors_total", typ: counter, labels: []string{"device", "port", "type"},
			help: "Errors that the port counted, by type. Most of these counters stop at their highest value.",
			emit: func(v *view, b *exposition.Builder) {
				for _, e := range portErrors {
					for _, s := range v.pma.of(e.counter) {
						b.Value(float64(s.value), s.device(), s.port(), e.typ)
					}
				}
			},
		},
		{
			name: "infiniband_port_state", typ: gauge, labels: []string{"device", "port", "state"},
			help: "Logical state of the port: 1 for the state it is in, 0 for the others.",
			emit: func(v *view, b *exposition.Builder) {
				for _, p := range v.ports {
					if p.State != "" {
						b.StateSet(stateLabel(p.State, portStates, portStateLabels), portStateLabels, p.hca.Name, p.number)
					}
				}
			},
		},
		{
			name: "infiniband_port_physical_state", typ: gauge, labels: []string{"device", "port", "state"},
			help: "Physical state of the port: 1 for the state it is in, 0 for the others.",
			emit: func(v *view, b *exposition.Builder) {
				for _, p := range v.ports {
					if p.PhysState != "" {
						b.StateSet(stateLabel(p.PhysState, physStates, physStateLabels), physStateLabels, p.hca.Name, p.number)
					}
				}
			},
		},
		portGauge("infiniband_port_rate_gbps", "Data rate of the port in gigabits per second.",
			func(p *model.Port) float64 { return p.RateBits / 1e9 }),
		portGauge("infiniband_port_rate_bytes_per_second", "Data rate of the port in bytes per second.",
			func(p *model.Port) float64 { return p.RateBits / 8 }),
		portGauge("infiniband_port_link_width_lanes", "Lanes that the link of the port has in use.",
			func(p *model.Port) float64 { return float64(p.Width) }),
		{
			name: "infiniband_device_info", typ: gauge,
			labels: []string{
				"device", "firmware", "board_id", "hca_type", "node_type", "node_guid", "sys_image_guid", "node_desc",
				"pci_address", "numa_node", "uverbs", "is_vf", "pf_device", "netns",
			},
			help: "What the kernel tells of an HCA that is no number. The value is always 1. netns is the network namespace " +
				"that it was moved to, by its inode.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.facts.HCAs {
					h := &v.facts.HCAs[i]
					b.Value(1, h.Name, h.Firmware, h.Board, h.Type, h.NodeType, h.NodeGUID, h.SysImageGUID, h.NodeDesc,
						h.PCIAddress, h.NUMANode, h.CharDevice, strconv.FormatBool(h.VF), h.PF, inode(h.Netns))
				}
			},
		},
		{
			name: "infiniband_port_info", typ: gauge,
			labels: []string{"device", "port", "link_layer", "speed", "netdev", "lid", "sm_lid", "port_guid"},
			help:   "What the kernel tells of a port that is no number. The value is always 1.",
			emit: func(v *view, b *exposition.Builder) {
				for _, p := range v.ports {
					b.Value(1, p.hca.Name, p.number, p.LinkLayer, p.Speed, p.Netdev, p.LID, p.SMLID, p.PortGUID)
				}
			},
		},
	}
}

// inode is that of a namespace, empty for that of the node.
func inode(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// pma is the row of one counter of sysfs counters/, times its unit.
func pma(name, file string, unit float64, help string) metric {
	return metric{
		name: name, help: help, typ: counter, labels: devicePortLabels,
		emit: func(v *view, b *exposition.Builder) {
			for _, s := range v.pma.of(file) {
				b.Add(s.labels, float64(s.value)*unit)
			}
		},
	}
}

// portGauge is the row of a figure that is 0 where the kernel does not tell it.
func portGauge(name, help string, of func(*model.Port) float64) metric {
	return metric{
		name: name, help: help, typ: gauge, labels: devicePortLabels,
		emit: func(v *view, b *exposition.Builder) {
			for _, p := range v.ports {
				if value := of(p.Port); value > 0 {
					b.Add(p.labels, value)
				}
			}
		},
	}
}
