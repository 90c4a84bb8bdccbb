// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var linkNotes = []string{
	"`netdev` is the network interface behind the port. A port on a bond has one for each of its interfaces. `device` and `port` " +
		"are empty for the interface of a PF without an HCA. [Links](../docs/links.md) lists what each driver reports.",
	"`rdma_port_pause_frames_total`: `priority` is 0 to 7 for priority flow control (PFC), and listed only if PFC is enabled for " +
		"it; `global` for pause of the whole link, if that is enabled. Where the driver does not report which priorities are enabled, " +
		"a priority is listed from its first pause on; `any` is then PFC of all priorities, `tc0` to `tc7` are traffic classes.",
	"`rdma_port_pause_seconds_total`: `receive` is the time in which the port did not send, because the other end had paused it; " +
		"`transmit` the time in which the port had paused the other end.",
	"`rdma_port_pause_storm_events_total`: `type` is `error` (the port paused the other end for so long that it stopped doing so) " +
		"or `warning` (85 % of that) for mlx5; `link` and `roce` for continuous pause with bnxt_en.",
	"`rdma_port_pcie_stalled_seconds_total`: mlx5 only. Credits of PCIe were missing: the link is narrow or slow, or memory behind it is.",
	"`rdma_port_link_discards_total`: `reason` is `port_buffer` of the physical port, `pcie_buffer` to PCIe, `host_buffer` or " +
		"`host_congestion` of the host (all priorities). Only mlx5 has the last three. The counters count all traffic of the interface.",
	"`rdma_port_dcb_info`: `pfc` lists the priorities with PFC, `traffic_classes` the traffic class of each priority, `bandwidth` " +
		"the percentage of each traffic class, or `strict`, `cbs`, `vendor`. `trust` is known for mlx5 only.",
	"`rdma_port_fec_corrected_blocks_total`: 32 bits with ice, which wrap. A block is a codeword.",
	"`rdma_port_bond_rate_bytes_per_second`: for ports on bonds only. A leg is active if it has a carrier and the bond sends on it, " +
		"so in the mode active-backup there is only one. `infiniband_port_rate_bytes_per_second` is what the driver says, with mlx5 " +
		"the rate of a leg.",
	"`rdma_port_link_up`: `operstate` of the interface. `rdma_port_link_admin_up`: its flag `IFF_UP`, which `ip link set` sets, and so " +
		"do CNI plugins; for a leg of a bond that an HCA has alone also the flag of the bond, as the port is down with it. " +
		"`infiniband_port_state` is the state of the port of the RDMA device.",
	"`rdma_port_carrier_down_total` and `rdma_port_carrier_changes_total` also count `ip link set down`. IPoIB interfaces have no " +
		"carrier counters here: their carrier depends on the subnet manager, too.",
	"`rdma_port_link_flaps_total`: losses of the carrier that ended while the interface stayed administratively up, since the " +
		"sensor found it. Losses are those of `rdma_port_carrier_down_total`, so short ones count.",
	"`rdma_port_link_read_timestamp_seconds`: drivers are asked every 30 s, in the background. The time stands still while a " +
		"driver hangs, and the values are those of that time, except carrier counters and flaps, which need no driver.",
}

var linkLabels = []string{"device", "port", "netdev"}

func linksOf(v *view) []model.Link { return v.facts.Links }

// linkMetrics returns the metrics of the links of ports.
func linkMetrics() []metric {
	return []metric{
		pauseCounter("rdma_port_pause_frames_total", "Pause frames, by direction and priority.",
			func(p *model.PauseCount) model.Optional { return valueOf(p.Frames) }),
		pauseCounter("rdma_port_pause_seconds_total", "Time during which a direction was paused, by priority.",
			func(p *model.PauseCount) model.Optional {
				micros := valueOf(p.Micros)
				micros.Value /= 1e6
				return micros
			}),
		{
			name: "rdma_port_pause_storm_events_total", typ: counter, labels: append(linkLabels[:3:3], "type"),
			help: "Events in which a pause lasted for too long, by type.",
			emit: eachLink(func(b *exposition.Builder, l *model.Link, labels ...string) {
				for _, s := range l.Storms {
					b.Value(float64(s.Count), append(labels, s.Type)...)
				}
			}),
		},
		{
			name: "rdma_port_pcie_stalled_seconds_total", typ: counter, labels: append(linkLabels[:3:3], "direction"),
			help: "Seconds in which the HCA could not read or write memory over PCIe for more than 30 % of the time.",
			emit: eachLink(func(b *exposition.Builder, l *model.Link, labels ...string) {
				known(b, valueOf(l.Stalls.ReadSeconds), nil, append(labels, "read")...)
				known(b, valueOf(l.Stalls.WriteSeconds), nil, append(labels, "write")...)
			}),
		},
		{
			name: "rdma_port_link_discards_total", typ: counter, labels: append(linkLabels[:3:3], "reason"),
			help: "Packets that the HCA received and had no room for, by where.",
			emit: eachLink(func(b *exposition.Builder, l *model.Link, labels ...string) {
				for _, d := range l.Discards {
					b.Value(float64(d.Count), append(labels, d.Reason)...)
				}
			}),
		},
		{
			name: "rdma_port_dcb_info", typ: gauge, labels: append(linkLabels[:3:3], "pfc", "trust", "traffic_classes", "bandwidth"),
			help: "Configuration of priority flow control and traffic classes of the port, always 1.",
			emit: eachLink(func(b *exposition.Builder, l *model.Link, labels ...string) {
				if l.DCB != nil {
					classes, bandwidth := etsLabels(l.DCB.ETS)
					b.Value(1, append(labels, pfcLabel(l.DCB), l.DCB.Trust, classes, bandwidth)...)
				}
			}),
		},
		fecCounter("rdma_port_fec_corrected_blocks_total", "Blocks with errors that forward error correction has corrected.",
			func(f *model.FEC) *uint64 { return f.Corrected }),
		fecCounter("rdma_port_fec_uncorrectable_blocks_total", "Blocks with errors that forward error correction could not correct.",
			func(f *model.FEC) *uint64 { return f.Uncorrectable }),
		fecCounter("rdma_port_fec_corrected_bit_errors_total", "Bits that forward error correction has corrected.",
			func(f *model.FEC) *uint64 { return f.CorrectedBits }),
		{
			name: "rdma_port_fec_info", typ: gauge, labels: append(linkLabels[:3:3], "mode"),
			help: "Active mode of forward error correction, always 1.",
			emit: eachLink(func(b *exposition.Builder, l *model.Link, labels ...string) {
				if l.FEC != nil && l.FEC.Mode != "" {
					b.Value(1, append(labels, l.FEC.Mode)...)
				}
			}),
		},
		{
			name: "rdma_port_link_down_reason", typ: gauge, labels: append(linkLabels[:3:3], "reason", "detail"),
			help: "Reason that the driver reports for a link that is down, always 1.",
			emit: eachLink(func(b *exposition.Builder, l *model.Link, labels ...string) {
				if l.Phy != nil && l.Phy.Reason != "" {
					b.Value(1, append(labels, l.Phy.Reason, l.Phy.Detail)...)
				}
			}),
		},
		linkValue("rdma_port_link_down_events_total", counter, "Losses of the physical link, as the driver counts them.",
			func(l *model.Link) model.Optional {
				if l.Phy == nil {
					return model.Optional{}
				}
				return valueOf(l.Phy.Downs)
			}),
		{
			name: "rdma_port_bond_rate_bytes_per_second", typ: gauge, labels: devicePortLabels,
			help: "Sum of the rates of the active legs of the bond that the port is on.",
			emit: func(v *view, b *exposition.Builder) {
				rates := model.BondRates(v.facts.Links)
				for i := range v.facts.Links {
					id := model.PortID{Device: v.facts.Links[i].Device, Port: v.facts.Links[i].Port}
					if rate, ok := rates[id]; ok {
						b.Value(rate/8, id.Device, strconv.Itoa(id.Port))
						delete(rates, id)
					}
				}
			},
		},
		carrierValue("rdma_port_link_up", gauge, "Whether the network interface has a carrier (1) or not (0).",
			func(c *model.Carrier) model.Optional { return model.Some(truth(c.Up)) }),
		carrierValue("rdma_port_link_admin_up", gauge,
			"Whether the network interface and its bond are administratively up (1), or one was set down (0).",
			func(c *model.Carrier) model.Optional { return model.Some(truth(c.Admin)) }),
		carrierValue("rdma_port_carrier_changes_total", counter, "Changes of the carrier of the network interface.",
			func(c *model.Carrier) model.Optional { return model.Some(float64(c.Changes)) }),
		carrierValue("rdma_port_carrier_down_total", counter, "Losses of the carrier of the network interface.",
			func(c *model.Carrier) model.Optional { return model.Some(float64(c.Downs)) }),
		carrierValue("rdma_port_link_flaps_total", counter,
			"Losses of the carrier that ended while the interface stayed administratively up.",
			func(c *model.Carrier) model.Optional { return model.Some(float64(c.Flaps)) }),
		carrierValue("rdma_port_link_changed_timestamp_seconds", gauge,
			"Unix time at which the sensor last noticed a change of the carrier.",
			func(c *model.Carrier) model.Optional { return moment(c.Changed) }),
		linkValue("rdma_port_link_read_timestamp_seconds", gauge, "Unix time at which the driver of the network interface was last read.",
			func(l *model.Link) model.Optional { return moment(l.Read) }),
	}
}

// eachLink returns an emit function for the series of links. The labels that add gets have room for more.
func eachLink(add func(b *exposition.Builder, l *model.Link, labels ...string)) func(*view, *exposition.Builder) {
	return each(linksOf, func(_ *view, b *exposition.Builder, l *model.Link) {
		port := ""
		if l.Port > 0 {
			port = strconv.Itoa(l.Port)
		}
		add(b, l, l.Device, port, l.Netdev)
	})
}

func linkValue(name string, typ dto.MetricType, help string, of func(*model.Link) model.Optional) metric {
	return metric{
		name: name, typ: typ, help: help, labels: linkLabels,
		emit: eachLink(func(b *exposition.Builder, l *model.Link, labels ...string) { known(b, of(l), nil, labels...) }),
	}
}

func carrierValue(name string, typ dto.MetricType, help string, of func(*model.Carrier) model.Optional) metric {
	return linkValue(name, typ, help, func(l *model.Link) model.Optional {
		if l.Carrier == nil {
			return model.Optional{}
		}
		return of(l.Carrier)
	})
}

func fecCounter(name, help string, of func(*model.FEC) *uint64) metric {
	return linkValue(name, counter, help, func(l *model.Link) model.Optional {
		if l.FEC == nil {
			return model.Optional{}
		}
		return valueOf(of(l.FEC))
	})
}

func pauseCounter(name, help string, of func(*model.PauseCount) model.Optional) metric {
	return metric{
		name: name, typ: counter, help: help, labels: append(linkLabels[:3:3], "direction", "priority"),
		emit: eachLink(func(b *exposition.Builder, l *model.Link, labels ...string) {
			for i := range l.Pause {
				p := &l.Pause[i]
				direction := "receive"
				if p.Transmit {
					direction = "transmit"
				}
				known(b, of(p), nil, append(labels, direction, p.Priority)...)
			}
		}),
	}
}

// pfcLabel lists the priorities with priority flow control: "3,4".
func pfcLabel(d *model.DCB) string {
	var enabled []string
	for priority, on := range d.PFC {
		if on {
			enabled = append(enabled, strconv.Itoa(priority))
		}
	}
	return strings.Join(enabled, ",")
}

// etsLabels returns the traffic class of each priority, and the share of each traffic class.
func etsLabels(e *model.ETS) (classes, bandwidth string) {
	if e == nil {
		return "", ""
	}
	var class, share [8]string
	for i := range 8 {
		class[i] = strconv.Itoa(int(e.Classes[i]))
		switch e.Algorithms[i] {
		case 0:
			share[i] = "strict"
		case 1:
			share[i] = "cbs"
		case 2:
			share[i] = strconv.Itoa(int(e.Bandwidth[i]))
		default:
			share[i] = "vendor"
		}
	}
	return strings.Join(class[:], ","), strings.Join(share[:], ",")
}
