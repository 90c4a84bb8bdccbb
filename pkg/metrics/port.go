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

// The states of a port: names in sysfs, and values of the label.
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

var portNotes = []string{
	"`infiniband_port_*_data_bytes_total`: only drivers with `counters/`. Omni-Path (hfi1) counts 8-byte flits: the real value " +
		"is twice as large.",
	"With mlx5, these and `rdma_port_*_bytes_total` count the function, not the physical port: add the VFs' series " +
		"(`infiniband_device_info{pf_device}`).",
	"`infiniband_port_errors_total`: most counters stop at their highest value.",
	"`infiniband_device_info`: `netns` is the inode of the network namespace, empty for the node's.",
	"An HCA's node GUID is `guid` of `infiniband_hca_uplink_info`. The fabric lists no VFs: a VF has its PF's link.",
}

func portMetrics() []metric {
	return []metric{
		pma("infiniband_port_receive_data_bytes_total", "port_rcv_data", wordBytes,
			"Bytes received, with mlx5 without the bytes of VFs."),
		pma("infiniband_port_transmit_data_bytes_total", "port_xmit_data", wordBytes,
			"Bytes sent, with mlx5 without the bytes of VFs."),
		pma("infiniband_port_receive_packets_total", "port_rcv_packets", 1,
			"Packets received, including errors."),
		pma("infiniband_port_transmit_packets_total", "port_xmit_packets", 1,
			"Packets sent, including errors."),
		pma("infiniband_port_receive_unicast_packets_total", "unicast_rcv_packets", 1,
			"Unicast packets received, including errors."),
		pma("infiniband_port_transmit_unicast_packets_total", "unicast_xmit_packets", 1,
			"Unicast packets sent, including errors."),
		pma("infiniband_port_receive_multicast_packets_total", "multicast_rcv_packets", 1,
			"Multicast packets received, including errors."),
		pma("infiniband_port_transmit_multicast_packets_total", "multicast_xmit_packets", 1,
			"Multicast packets sent, including errors."),
		pma("infiniband_port_transmit_wait_total", "port_xmit_wait", 1,
			"Port clock ticks with data that could not be sent."),
		{
			name: "infiniband_port_errors_total", typ: counter, labels: []string{"device", "port", "type"},
			help: "Errors of the port, by type.",
			emit: func(v *view, b *exposition.Builder) {
				for _, e := range model.PortErrors {
					for _, s := range v.pma.of(e.Counter) {
						b.Value(s.value, s.device(), s.port(), e.Name)
					}
				}
			},
		},
		portState("infiniband_port_state", "Logical state of the port, 1 if current.",
			portStates, portStateLabels, func(p *model.Port) string { return p.State }),
		portState("infiniband_port_physical_state",
			"Physical state of the port, 1 if current.",
			physStates, physStateLabels, func(p *model.Port) string { return p.PhysState }),
		portGauge("infiniband_port_rate_gbps", "Data rate of the port in Gb/s.",
			func(p *model.Port) float64 { return p.RateBits / 1e9 }),
		portGauge("infiniband_port_rate_bytes_per_second", "Data rate of the port.",
			func(p *model.Port) float64 { return p.RateBits / 8 }),
		portGauge("infiniband_port_link_width_lanes", "Lanes of the port's link.",
			func(p *model.Port) float64 { return float64(p.Width) }),
		{
			name: "rdma_port_gids", typ: gauge, labels: []string{"device", "port", "type"},
			help: "GID table entries of the port, by type.",
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
			help: "Whether the RoCE port lacks a RoCE v2 GID of an IPv4 or routable IPv6 address.",
			emit: each(portsOf, func(_ *view, b *exposition.Builder, p *portView) {
				if missing, isKnown := p.hca.LacksRoCEv2(p.Port); isKnown {
					b.Add(p.labels, truth(missing))
				}
			}),
		},
		{
			name: "infiniband_port_pkeys", typ: gauge, labels: []string{"device", "port", "membership"},
			help: "P_Keys of the InfiniBand port, by membership (full, limited).",
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
			help: "Whether the InfiniBand port lacks the default P_Key, 0x7fff.",
			emit: each(portsOf, func(_ *view, b *exposition.Builder, p *portView) {
				if p.PKeys != nil {
					b.Add(p.labels, truth(p.LacksDefaultPartition()))
				}
			}),
		},
		{
			name: "infiniband_port_sm_changes_total", typ: counter, labels: devicePortLabels,
			help: "Changes of the InfiniBand port's subnet manager LID.",
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
			help: "Firmware, board, GUIDs, PCI address and network namespace of the RDMA device.",
			emit: each(hcasOf, func(_ *view, b *exposition.Builder, h *model.HCA) {
				b.Value(1, h.Name, h.Firmware, h.Board, h.Type, h.NodeType, h.NodeGUID, h.SysImageGUID, h.NodeDesc,
					h.PCIAddress, h.NUMANode, h.CharDevice, strconv.FormatBool(h.VF), h.PF, nonZero(h.Netns))
			}),
		},
		{
			name: "infiniband_port_info", typ: gauge,
			labels: []string{"device", "port", "link_layer", "speed", "netdev", "lid", "sm_lid", "port_guid"},
			help:   "Link layer, speed, network interface, LIDs and GUID of the port.",
			emit: each(portsOf, func(_ *view, b *exposition.Builder, p *portView) {
				b.Value(1, p.hca.Name, p.number, p.LinkLayer, p.Speed, p.Netdev, p.LID, p.SMLID, p.PortGUID)
			}),
		},
	}
}

var (
	bothRoCE       = []model.GIDType{model.GIDRoCEv1, model.GIDRoCEv2}
	onlyInfiniBand = []model.GIDType{model.GIDInfiniBand}
	onlyOther      = []model.GIDType{model.GIDOther}
)

// gidTypes returns the types of GIDs that the port can have, or nil if its GIDs were not read.
func gidTypes(p *portView) []model.GIDType {
	_, roce := p.hca.LacksRoCEv2(p.Port)
	switch {
	case p.GIDs == nil:
		return nil
	case roce:
		return bothRoCE
	case p.LinkLayer == "InfiniBand":
		return onlyInfiniBand
	}
	return onlyOther
}

// nonZero formats a number as a label; 0 becomes "".
func nonZero(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// pma returns the row of a counter in the sysfs directory counters/, multiplied by unit.
func pma(name, file string, unit float64, help string) metric {
	return portCounter(name, file, unit, help, func(v *view) *columns { return &v.pma })
}

// portCounter returns the row of a counter of ports, multiplied by unit.
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

// portGauge returns the row of a port attribute. 0 means unknown and is left out.
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
