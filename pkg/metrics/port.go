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

// The states of a port: the names in sysfs and the values of the label.
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

// portErrors maps the error counters of a port in sysfs to values of the label type.
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

var portNotes = []string{
	"`infiniband_port_transmit_data_bytes_total`, `infiniband_port_receive_data_bytes_total`: of drivers with `counters/` only, as of " +
		"node_exporter. Omni-Path (hfi1) counts flits of 8 bytes there: it moved twice as much.",
	"With mlx5 they, and `rdma_port_transmit_bytes_total` and `rdma_port_receive_bytes_total`, have the bytes of the function, " +
		"not of the physical port. A PF looks idle while its VFs are busy: add their series (`infiniband_device_info{pf_device}`).",
	"`infiniband_port_errors_total`: most of these counters stop at their highest value.",
	"`infiniband_device_info`: `netns` is the inode of the network namespace that the device was moved to, and empty in the " +
		"namespace of the node.",
	"`rdma_port_gids`, `rdma_port_roce_v2_gid_missing`: the GID table is read every five minutes, and when the state of the port " +
		"changes. `type` is `ib`, `roce_v1`, `roce_v2` or `other` (iWARP, EFA). The GID may be of any interface on the port, such as " +
		"a VLAN. A VF lacks it while its interface has no address. `/rdma` lists the GIDs.",
	"`infiniband_port_pkeys`, `infiniband_port_default_pkey_missing`: the P_Key table is read when the port changes, and every hour, as " +
		"mlx5 needs a command of its firmware for each entry. `/rdma` lists the P_Keys.",
	"`infiniband_port_sm_changes_total`: changes of the subnet manager's LID, which is read every 30 s. The loss of a subnet manager " +
		"and its return are none.",
	"GUIDs are written as `0x` and 16 digits in all metrics. The node GUID of an HCA is `guid` of `infiniband_hca_uplink_info`, " +
		"which has the switch and its port at the other end. The fabric lists no VFs: a VF has the link of its PF.",
}

// portMetrics returns the metrics that devices and ports report about themselves.
func portMetrics() []metric {
	return []metric{
		pma("infiniband_port_receive_data_bytes_total", "port_rcv_data", wordBytes,
			"Data received on all virtual lanes of the port, in bytes, with mlx5 of the function without its VFs."),
		pma("infiniband_port_transmit_data_bytes_total", "port_xmit_data", wordBytes,
			"Data sent on all virtual lanes of the port, in bytes, with mlx5 of the function without its VFs."),
		pma("infiniband_port_receive_packets_total", "port_rcv_packets", 1,
			"Packets received on all virtual lanes of the port, including packets with errors."),
		pma("infiniband_port_transmit_packets_total", "port_xmit_packets", 1,
			"Packets sent on all virtual lanes of the port, including packets with errors."),
		pma("infiniband_port_receive_unicast_packets_total", "unicast_rcv_packets", 1,
			"Unicast packets received, including packets with errors."),
		pma("infiniband_port_transmit_unicast_packets_total", "unicast_xmit_packets", 1,
			"Unicast packets sent, including packets with errors."),
		pma("infiniband_port_receive_multicast_packets_total", "multicast_rcv_packets", 1,
			"Multicast packets received, including packets with errors."),
		pma("infiniband_port_transmit_multicast_packets_total", "multicast_xmit_packets", 1,
			"Multicast packets sent, including packets with errors."),
		pma("infiniband_port_transmit_wait_total", "port_xmit_wait", 1,
			"Ticks of the port's clock during which the port had data to send but could not send any."),
		{
			name: "infiniband_port_errors_total", typ: counter, labels: []string{"device", "port", "type"},
			help: "Errors that the port counted, by type.",
			emit: func(v *view, b *exposition.Builder) {
				for _, e := range portErrors {
					for _, s := range v.pma.of(e.counter) {
						b.Value(s.value, s.device(), s.port(), e.typ)
					}
				}
			},
		},
		portState("infiniband_port_state", "Logical state of the port, 1 for the current state and 0 for the others.",
			portStates, portStateLabels, func(p *model.Port) string { return p.State }),
		portState("infiniband_port_physical_state",
			"Physical state of the port, 1 for the current state and 0 for the others.",
			physStates, physStateLabels, func(p *model.Port) string { return p.PhysState }),
		portGauge("infiniband_port_rate_gbps", "Data rate of the port, in gigabits per second.",
			func(p *model.Port) float64 { return p.RateBits / 1e9 }),
		portGauge("infiniband_port_rate_bytes_per_second", "Data rate of the port.",
			func(p *model.Port) float64 { return p.RateBits / 8 }),
		portGauge("infiniband_port_link_width_lanes", "Lanes that the link of the port uses.",
			func(p *model.Port) float64 { return float64(p.Width) }),
		{
			name: "rdma_port_gids", typ: gauge, labels: []string{"device", "port", "type"},
			help: "Entries of the GID table of the port, by type.",
			emit: each(portsOf, func(_ *view, b *exposition.Builder, p *portView) {
				for _, t := range gidTypes(p) {
					n := 0
					for i := range p.GIDs {
						if p.GIDs[i].Type == t {
							n++
						}
					}
					b.Value(float64(n), p.hca.Name, p.number, string(t))
				}
			}),
		},
		{
			name: "rdma_port_roce_v2_gid_missing", typ: gauge, labels: devicePortLabels,
			help: "Whether the RoCE port has no RoCE v2 GID of an IPv4 address or a routable IPv6 address (1) or has one (0).",
			emit: each(portsOf, func(_ *view, b *exposition.Builder, p *portView) {
				if missing, isKnown := p.hca.LacksRoCEv2(p.Port); isKnown {
					b.Add(p.labels, truth(missing))
				}
			}),
		},
		{
			name: "infiniband_port_pkeys", typ: gauge, labels: []string{"device", "port", "membership"},
			help: "P_Keys of the InfiniBand port, by membership in the partition (full, limited).",
			emit: each(portsOf, func(_ *view, b *exposition.Builder, p *portView) {
				if p.PKeys == nil {
					return
				}
				full := 0
				for _, k := range p.PKeys {
					if k.Full {
						full++
					}
				}
				b.Value(float64(full), p.hca.Name, p.number, "full")
				b.Value(float64(len(p.PKeys)-full), p.hca.Name, p.number, "limited")
			}),
		},
		{
			name: "infiniband_port_default_pkey_missing", typ: gauge, labels: devicePortLabels,
			help: "Whether no P_Key of the InfiniBand port is that of the default partition, 0x7fff (1) or one is (0).",
			emit: each(portsOf, func(_ *view, b *exposition.Builder, p *portView) {
				if p.PKeys != nil {
					b.Add(p.labels, truth(p.LacksDefaultPartition()))
				}
			}),
		},
		{
			name: "infiniband_port_sm_changes_total", typ: counter, labels: devicePortLabels,
			help: "Changes of the InfiniBand port from one subnet manager to another, by their LIDs.",
			emit: each(portsOf, func(_ *view, b *exposition.Builder, p *portView) {
				if p.LinkLayer == "InfiniBand" {
					b.Add(p.labels, float64(p.SMChanges))
				}
			}),
		},
		{
			name: "infiniband_device_info", typ: gauge,
			labels: []string{
				"device", "firmware", "board_id", "hca_type", "node_type", "node_guid", "sys_image_guid", "node_desc",
				"pci_address", "numa_node", "uverbs", "is_vf", "pf_device", "netns",
			},
			help: "Firmware, board, type, GUIDs, PCI address and network namespace of the RDMA device, always 1.",
			emit: each(hcasOf, func(_ *view, b *exposition.Builder, h *model.HCA) {
				b.Value(1, h.Name, h.Firmware, h.Board, h.Type, h.NodeType, h.NodeGUID, h.SysImageGUID, h.NodeDesc,
					h.PCIAddress, h.NUMANode, h.CharDevice, strconv.FormatBool(h.VF), h.PF, nonZero(h.Netns))
			}),
		},
		{
			name: "infiniband_port_info", typ: gauge,
			labels: []string{"device", "port", "link_layer", "speed", "netdev", "lid", "sm_lid", "port_guid"},
			help:   "Link layer, speed, network interface, LIDs and GUID of the port, always 1.",
			emit: each(portsOf, func(_ *view, b *exposition.Builder, p *portView) {
				b.Value(1, p.hca.Name, p.number, p.LinkLayer, p.Speed, p.Netdev, p.LID, p.SMLID, p.PortGUID)
			}),
		},
	}
}

// gidTypes returns the types of GIDs that the port can have, none if its GIDs were not read.
func gidTypes(p *portView) []model.GIDType {
	_, roce := p.hca.LacksRoCEv2(p.Port)
	switch {
	case p.GIDs == nil:
		return nil
	case roce:
		return []model.GIDType{model.GIDRoCEv1, model.GIDRoCEv2}
	case p.LinkLayer == "InfiniBand":
		return []model.GIDType{model.GIDInfiniBand}
	}
	return []model.GIDType{model.GIDOther}
}

// nonZero formats a number as a label. 0, which stands for no number, is empty.
func nonZero(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// pma returns the row of a counter in the sysfs directory counters/, multiplied by its unit.
func pma(name, file string, unit float64, help string) metric {
	return portCounter(name, file, unit, help, func(v *view) *columns { return &v.pma })
}

// portCounter returns the row of a counter of ports, multiplied by its unit.
func portCounter(name, file string, unit float64, help string, of func(*view) *columns) metric {
	return metric{
		name: name, help: help, typ: counter, labels: devicePortLabels,
		emit: func(v *view, b *exposition.Builder) {
			for _, s := range of(v).of(file) {
				b.Add(s.labels, s.value*unit)
			}
		},
	}
}

// portState returns the row of a state of ports. An unknown state keeps its name in lower case.
func portState(name, help string, states, labels []string, of func(*model.Port) string) metric {
	return metric{
		name: name, help: help, typ: gauge, labels: []string{"device", "port", "state"},
		emit: each(portsOf, func(_ *view, b *exposition.Builder, p *portView) {
			state := of(p.Port)
			if i := slices.Index(states, state); i >= 0 {
				b.StateSet(nil, labels[i], labels, p.hca.Name, p.number)
			} else if state != "" {
				b.StateSet(nil, strings.ToLower(state), labels, p.hca.Name, p.number)
			}
		}),
	}
}

// portGauge returns the row of a port attribute. The row leaves out 0, which stands for an unknown value.
func portGauge(name, help string, of func(*model.Port) float64) metric {
	return metric{
		name: name, help: help, typ: gauge, labels: devicePortLabels,
		emit: each(portsOf, func(_ *view, b *exposition.Builder, p *portView) {
			if value := of(p.Port); value > 0 {
				b.Add(p.labels, value)
			}
		}),
	}
}
