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
	"`netdev` is the port's network interface; a bond has several. `device` and `port` are empty for a PF without an HCA. " +
		"[Links](../docs/links.md) lists what each driver reports.",
	"`rdma_port_pause_frames_total`: `priority` is 0 to 7 for enabled PFC priorities, or `global` for pause of the whole link. " +
		"If the driver does not report enabled priorities, a priority is listed from its first pause on; `any` is PFC of all " +
		"priorities, `tc0` to `tc7` are traffic classes.",
	"`rdma_port_pause_seconds_total`: `receive` is time in which the other end paused the port.",
	"`rdma_port_pause_storm_events_total`: mlx5 `error` (the port ended a too long pause), `warning` (at 85 %); bnxt_en " +
		"`link`, `roce` (continuous pause).",
	"`rdma_port_link_discards_total`, `rdma_port_pcie_stalled_seconds_total`: see [loss in the " +
		"host](../docs/links.md#loss-in-the-host).",
	"`rdma_port_dcb_info`: `pfc` lists priorities, `traffic_classes` the class of each priority, `bandwidth` the percentage of " +
		"each class, or `strict`, `cbs`, `vendor`. Only mlx5 has `trust`.",
	"`rdma_port_link_up` is `operstate`, `rdma_port_link_admin_up` the flag `IFF_UP`; for a bond's leg that an HCA has alone, " +
		"also the bond's flag. The RDMA port's state is `infiniband_port_state`.",
	"`rdma_port_carrier_down_total`, `rdma_port_carrier_changes_total` include `ip link set down`. " +
		"[Flaps](../docs/links.md#flaps) count from the sensor's start.",
}

var linkLabels = []string{"device", "port", "netdev"}

func linksOf(v *view) []model.Link { return v.facts.Links }

func linkMetrics() []metric {
	return []metric{
		pauseCounter("rdma_port_pause_frames_total", "Pause frames, by direction and priority.",
			func(p *model.PauseCount) model.Optional { return valueOf(p.Frames) }),
		pauseCounter("rdma_port_pause_seconds_total", "Time that a direction was paused, by priority.",
			func(p *model.PauseCount) model.Optional {
				micros := valueOf(p.Micros)
				micros.Value /= 1e6
				return micros
			}),
		{
			name: "rdma_port_pause_storm_events_total", typ: counter, labels: append(linkLabels[:3:3], "type"),
			help: "Pauses that lasted too long, by type.",
			emit: eachLink(func(b *exposition.Builder, l *model.Link, labels ...string) {
				for _, s := range l.Storms {
					b.Value(float64(s.Count), append(labels, s.Type)...)
				}
			}),
		},
		{
			name: "rdma_port_pcie_stalled_seconds_total", typ: counter, labels: append(linkLabels[:3:3], "direction"),
			help: "Seconds with PCIe stalled for more than 30 % of the second.",
			emit: eachLink(func(b *exposition.Builder, l *model.Link, labels ...string) {
				known(b, valueOf(l.Stalls.ReadSeconds), nil, append(labels, "read")...)
				known(b, valueOf(l.Stalls.WriteSeconds), nil, append(labels, "write")...)
			}),
		},
		{
			name: "rdma_port_link_discards_total", typ: counter, labels: append(linkLabels[:3:3], "reason"),
			help: "Received packets without room in the HCA, by place.",
			emit: eachLink(func(b *exposition.Builder, l *model.Link, labels ...string) {
				for _, d := range l.Discards {
					b.Value(float64(d.Count), append(labels, d.Reason)...)
				}
			}),
		},
		{
			name: "rdma_port_dcb_info", typ: gauge, labels: append(linkLabels[:3:3], "pfc", "trust", "traffic_classes", "bandwidth"),
			help: "Priority flow control and traffic classes of the port.",
			emit: eachLink(func(b *exposition.Builder, l *model.Link, labels ...string) {
				if l.DCB != nil {
					classes, bandwidth := etsLabels(l.DCB.ETS)
					b.Value(1, append(labels, pfcLabel(l.DCB), l.DCB.Trust, classes, bandwidth)...)
				}
			}),
		},
		fecCounter("rdma_port_fec_corrected_blocks_total", "Blocks with errors that FEC corrected.",
			func(f *model.FEC) *uint64 { return f.Corrected }),
		fecCounter("rdma_port_fec_uncorrectable_blocks_total", "Blocks with errors that FEC could not correct.",
			func(f *model.FEC) *uint64 { return f.Uncorrectable }),
		fecCounter("rdma_port_fec_corrected_bit_errors_total", "Bits that FEC corrected.",
			func(f *model.FEC) *uint64 { return f.CorrectedBits }),
		{
			name: "rdma_port_fec_info", typ: gauge, labels: append(linkLabels[:3:3], "mode"),
			help: "Active FEC mode.",
			emit: eachLink(func(b *exposition.Builder, l *model.Link, labels ...string) {
				if l.FEC != nil && l.FEC.Mode != "" {
					b.Value(1, append(labels, l.FEC.Mode)...)
				}
			}),
		},
		{
			name: "rdma_port_link_down_reason", typ: gauge, labels: append(linkLabels[:3:3], "reason", "detail"),
			help: "Driver's reason for a link that is down, always 1.",
			emit: eachLink(func(b *exposition.Builder, l *model.Link, labels ...string) {
				if l.Phy != nil && l.Phy.Reason != "" {
					b.Value(1, append(labels, l.Phy.Reason, l.Phy.Detail)...)
				}
			}),
		},
		linkValue("rdma_port_link_down_events_total", counter, "Losses of the physical link, counted by the driver.",
			func(l *model.Link) model.Optional {
				if l.Phy == nil {
					return model.Optional{}
				}
				return valueOf(l.Phy.Downs)
			}),
		{
			name: "rdma_port_bond_rate_bytes_per_second", typ: gauge, labels: devicePortLabels,
			help: "Sum of the rates of the bond's active legs.",
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
		carrierValue("rdma_port_link_up", gauge, "Whether the interface has a carrier.",
			func(c *model.Carrier) model.Optional { return model.Some(truth(c.Up)) }),
		carrierValue("rdma_port_link_admin_up", gauge,
			"Whether the interface and its bond are administratively up.",
			func(c *model.Carrier) model.Optional { return model.Some(truth(c.Admin)) }),
		carrierValue("rdma_port_carrier_changes_total", counter, "Carrier changes of the interface.",
			func(c *model.Carrier) model.Optional { return model.Some(float64(c.Changes)) }),
		carrierValue("rdma_port_carrier_down_total", counter, "Carrier losses of the interface.",
			func(c *model.Carrier) model.Optional { return model.Some(float64(c.Downs)) }),
		carrierValue("rdma_port_link_flaps_total", counter,
			"Carrier losses that ended while the interface was administratively up.",
			func(c *model.Carrier) model.Optional { return model.Some(float64(c.Flaps)) }),
		carrierValue("rdma_port_link_changed_timestamp_seconds", gauge,
			"Unix time of the last carrier change that the sensor noticed.",
			func(c *model.Carrier) model.Optional { return moment(c.Changed) }),
		linkValue("rdma_port_link_read_timestamp_seconds", gauge, "Unix time of the last reading of the interface's driver.",
			func(l *model.Link) model.Optional { return moment(l.Read) }),
	}
}

// eachLink returns an emit function for the series of links. add may append to its labels without allocating.
func eachLink(add func(b *exposition.Builder, l *model.Link, labels ...string)) func(*view, *exposition.Builder) {
	return each(linksOf, func(_ *view, b *exposition.Builder, l *model.Link) {
		port := ""
		if l.Port > 0 {
			port = strconv.Itoa(l.Port)
		}
		add(b, l, append(make([]string, 0, 4), l.Device, port, l.Netdev)...) // with room for another label
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

// etsLabels returns the traffic class of each priority, and the bandwidth of each traffic class.
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
