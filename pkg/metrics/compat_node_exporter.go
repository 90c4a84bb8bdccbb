// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var nodeExporterNotes = []string{
	"Names and descriptions are node_exporter's (infiniband collector), except descriptions of `node_infiniband_legacy`: " +
		"`counters_ext`, drivers for kernels before 4.5.",
}

// nodeExporterMetrics returns the metrics of node_exporter's infiniband collector, with the same names and help.
func nodeExporterMetrics() []metric {
	rows := []metric{
		{
			name: "node_infiniband_info", typ: gauge,
			labels: []string{"device", "board_id", "firmware_version", "hca_type"},
			help:   "Non-numeric data from /sys/class/infiniband/<device>, value is always 1.",
			emit: each(hcasOf, func(_ *view, b *exposition.Builder, h *model.HCA) {
				b.Value(1, h.Name, h.Board, h.Firmware, h.Type)
			}),
		},
		{
			name: "node_infiniband_rate_bytes_per_second", typ: gauge, labels: devicePortLabels,
			help: "Maximum signal transfer rate",
			emit: each(portsOf, func(_ *view, b *exposition.Builder, p *portView) {
				if p.RateBits > 0 {
					b.Add(p.labels, p.RateBits/8)
				}
			}),
		},
		stateID("node_infiniband_state_id",
			"State of the InfiniBand port (0: no change, 1: down, 2: init, 3: armed, 4: active, 5: act defer)",
			func(p *model.Port) int { return slices.Index(portStates, p.State) }),
		stateID("node_infiniband_physical_state_id",
			"Physical state of the InfiniBand port (0: no change, 1: sleep, 2: polling, 3: disable, 4: shift, "+
				"5: link up, 6: link error recover, 7: phytest)",
			func(p *model.Port) int {
				if i := slices.Index(physStates, p.PhysState); i >= 0 {
					return i + 1
				}
				return -1
			}),
	}
	for _, c := range []struct {
		name, file string
		unit       float64
		help       string
	}{
		{
			"excessive_buffer_overrun_errors", "excessive_buffer_overrun_errors", 1,
			"Number of times that OverrunErrors consecutive flow control update periods occurred, " +
				"each having at least one overrun error.",
		},
		{
			"link_downed", "link_downed", 1,
			"Number of times the link failed to recover from an error state and went down",
		},
		{
			"link_error_recovery", "link_error_recovery", 1,
			"Number of times the link successfully recovered from an error state",
		},
		{
			"local_link_integrity_errors", "local_link_integrity_errors", 1,
			"Number of times that the count of local physical errors exceeded the threshold specified by LocalPhyErrors.",
		},
		{
			"multicast_packets_received", "multicast_rcv_packets", 1,
			"Number of multicast packets received (including errors)",
		},
		{
			"multicast_packets_transmitted", "multicast_xmit_packets", 1,
			"Number of multicast packets transmitted (including errors)",
		},
		{
			"port_constraint_errors_received", "port_rcv_constraint_errors", 1,
			"Number of packets received on the switch physical port that are discarded",
		},
		{
			"port_constraint_errors_transmitted", "port_xmit_constraint_errors", 1,
			"Number of packets not transmitted from the switch physical port",
		},
		{"port_data_received_bytes", "port_rcv_data", wordBytes, "Number of data octets received on all links"},
		{"port_data_transmitted_bytes", "port_xmit_data", wordBytes, "Number of data octets transmitted on all links"},
		{
			"port_discards_received", "port_rcv_discards", 1,
			"Number of inbound packets discarded by the port because the port is down or congested",
		},
		{
			"port_discards_transmitted", "port_xmit_discards", 1,
			"Number of outbound packets discarded by the port because the port is down or congested",
		},
		{
			"port_errors_received", "port_rcv_errors", 1,
			"Number of packets containing an error that were received on this port",
		},
		{
			"port_packets_received", "port_rcv_packets", 1,
			"Number of packets received on all VLs by this port (including errors)",
		},
		{
			"port_packets_transmitted", "port_xmit_packets", 1,
			"Number of packets transmitted on all VLs from this port (including errors)",
		},
		{
			"port_receive_remote_physical_errors", "port_rcv_remote_physical_errors", 1,
			"Number of packets marked with the EBP (End of Bad Packet) delimiter received on the port.",
		},
		{
			"port_receive_switch_relay_errors", "port_rcv_switch_relay_errors", 1,
			"Number of packets that could not be forwarded by the switch.",
		},
		{
			"port_transmit_wait", "port_xmit_wait", 1,
			"Number of ticks during which the port had data to transmit but no data was sent during the entire tick",
		},
		{
			"symbol_error", "symbol_error", 1,
			"Number of minor link errors detected on one or more physical lanes.",
		},
		{
			"unicast_packets_received", "unicast_rcv_packets", 1,
			"Number of unicast packets received (including errors)",
		},
		{
			"unicast_packets_transmitted", "unicast_xmit_packets", 1,
			"Number of unicast packets transmitted (including errors)",
		},
		{
			"vl15_dropped", "VL15_dropped", 1,
			"Number of incoming VL15 packets dropped due to resource limitations.",
		},
	} {
		rows = append(rows, pma("node_infiniband_"+c.name+"_total", c.file, c.unit, c.help))
	}
	for _, c := range []struct {
		name, file string
		unit       float64
		what       string
	}{
		{"data_received_bytes", "port_rcv_data_64", wordBytes, "Bytes received"},
		{"data_transmitted_bytes", "port_xmit_data_64", wordBytes, "Bytes sent"},
		{"multicast_packets_received", "port_multicast_rcv_packets", 1, "Multicast packets received"},
		{"multicast_packets_transmitted", "port_multicast_xmit_packets", 1, "Multicast packets sent"},
		{"packets_received", "port_rcv_packets_64", 1, "Packets received"},
		{"packets_transmitted", "port_xmit_packets_64", 1, "Packets sent"},
		{"unicast_packets_received", "port_unicast_rcv_packets", 1, "Unicast packets received"},
		{"unicast_packets_transmitted", "port_unicast_xmit_packets", 1, "Unicast packets sent"},
	} {
		rows = append(rows, portCounter("node_infiniband_legacy_"+c.name+"_total", c.file, c.unit,
			c.what+", from counters_ext in sysfs.", func(v *view) *columns { return &v.ext }))
	}
	return rows
}

// stateID returns the row of a state as the kernel's number.
func stateID(name, help string, of func(*model.Port) int) metric {
	return metric{
		name: name, help: help, typ: gauge, labels: devicePortLabels,
		emit: each(portsOf, func(_ *view, b *exposition.Builder, p *portView) {
			if id := of(p.Port); id >= 0 {
				b.Add(p.labels, float64(id))
			}
		}),
	}
}
