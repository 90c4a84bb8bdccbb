// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var moduleNotes = []string{
	"The transceiver or cable: [Links](../docs/links.md#modules). Passive copper has only `rdma_port_module_info`.",
	"`rdma_port_module_info`: `length_meters` is empty for transceivers with a connector.",
	"`rdma_port_module_alarm`: `value` is `temperature`, `voltage`, or of the worst lane `bias`, `receive_power`, " +
		"`transmit_power`.",
	"`rdma_port_module_margin_ratio`: relative to the range between the alarm thresholds; 0 is the threshold, -1 far outside. " +
		"Powers are compared in decibels.",
	"Bias and power by lane need `--link.module-lanes`. In dBm: `10 * log10(1000 * rdma_port_module_receive_power_watts)`.",
	"`rdma_port_module_*_threshold_*` needs `--link.module-thresholds`. `threshold` is `high_alarm`, `low_alarm`, " +
		"`high_warning` or `low_warning`.",
	"`rdma_port_module_problem`: `permission` (no `CAP_NET_ADMIN`), `unreadable` (no module, or the driver cannot read it) or " +
		"`incomplete`.",
}

func moduleMetrics() []metric {
	threshold := func(name, help, value string) metric {
		return moduleSeries(name, help, []string{"threshold"}, func(m *model.LinkModule, add func(float64, ...string)) {
			for _, l := range m.Thresholds {
				if l.Value == value {
					add(l.At, l.Threshold)
				}
			}
		})
	}
	lane := func(name, help string, of func(model.LinkLane) *float64) metric {
		return moduleSeries(name, help, []string{"lane"}, func(m *model.LinkModule, add func(float64, ...string)) {
			for i, l := range m.Lanes {
				if v := of(l); v != nil {
					add(*v, strconv.Itoa(i+1))
				}
			}
		})
	}
	return []metric{
		moduleSeries("rdma_port_module_info", "Type, manufacturer and cable length of the module.",
			[]string{"type", "vendor", "part_number", "revision", "serial", "technology", "length_meters"},
			func(m *model.LinkModule, add func(float64, ...string)) {
				if m.Type == "" {
					return
				}
				length := ""
				if m.Length != nil {
					length = strconv.FormatFloat(*m.Length, 'g', 4, 64)
				}
				add(1, m.Type, m.Vendor, m.PartNumber, m.Revision, m.Serial, m.Technology, length)
			}),
		moduleValue("rdma_port_module_temperature_celsius", "Temperature of the module.",
			func(m *model.LinkModule) *float64 { return m.Temperature }),
		moduleValue("rdma_port_module_supply_volts", "Supply voltage of the module.",
			func(m *model.LinkModule) *float64 { return m.Voltage }),
		moduleSeries("rdma_port_module_alarm",
			"Whether a value is above (1 warning, 2 alarm) or below (-1, -2) its thresholds.",
			[]string{"value"},
			func(m *model.LinkModule, add func(float64, ...string)) {
				for _, c := range m.Checks {
					add(float64(c.Alarm), c.Value)
				}
			}),
		moduleSeries("rdma_port_module_margin_ratio", "Distance of a value to the nearer alarm threshold, 0.5 in the middle.",
			[]string{"value"},
			func(m *model.LinkModule, add func(float64, ...string)) {
				for _, c := range m.Checks {
					if c.Margin != nil {
						add(*c.Margin, c.Value)
					}
				}
			}),
		moduleSeries("rdma_port_module_fault", "Whether a CMIS module reports its failure.", nil,
			func(m *model.LinkModule, add func(float64, ...string)) {
				if m.Fault != nil {
					add(truth(*m.Fault))
				}
			}),
		moduleSeries("rdma_port_module_problem", "Reason why the module could not be read, always 1.", []string{"problem"},
			func(m *model.LinkModule, add func(float64, ...string)) {
				if m.Problem != "" {
					add(1, m.Problem)
				}
			}),
		moduleSeries("rdma_port_module_read_timestamp_seconds", "Unix time of the module's last reading.", nil,
			func(m *model.LinkModule, add func(float64, ...string)) {
				if at := moment(m.Read); at.Known && m.Type != "" {
					add(at.Value)
				}
			}),
		lane("rdma_port_module_bias_amperes", "Laser bias current of a lane.", func(l model.LinkLane) *float64 { return l.Bias }),
		lane("rdma_port_module_receive_power_watts", "Received optical power of a lane.",
			func(l model.LinkLane) *float64 { return l.ReceivePower }),
		lane("rdma_port_module_transmit_power_watts", "Transmitted optical power of a lane.",
			func(l model.LinkLane) *float64 { return l.TransmitPower }),
		threshold("rdma_port_module_temperature_threshold_celsius", "Temperature thresholds of the module.",
			model.ModuleTemperature),
		threshold("rdma_port_module_supply_threshold_volts", "Supply voltage thresholds of the module.", model.ModuleVoltage),
		threshold("rdma_port_module_bias_threshold_amperes", "Laser bias thresholds of the module.", model.ModuleBias),
		threshold("rdma_port_module_receive_power_threshold_watts", "Received power thresholds of the module.",
			model.ModuleReceivePower),
		threshold("rdma_port_module_transmit_power_threshold_watts", "Transmitted power thresholds of the module.",
			model.ModuleTransmitPower),
	}
}

// moduleSeries returns a gauge of modules. emit's add function takes the values of the labels after the link's labels.
func moduleSeries(name, help string, labels []string, emit func(m *model.LinkModule, add func(v float64, labels ...string))) metric {
	return metric{
		name: name, typ: gauge, help: help, labels: append(linkLabels[:3:3], labels...),
		emit: eachLink(func(b *exposition.Builder, l *model.Link, port ...string) {
			if l.Module != nil {
				emit(l.Module, func(v float64, more ...string) { b.Value(v, append(port, more...)...) })
			}
		}),
	}
}

func moduleValue(name, help string, of func(*model.LinkModule) *float64) metric {
	return moduleSeries(name, help, nil, func(m *model.LinkModule, add func(float64, ...string)) {
		if v := of(m); v != nil {
			add(*v)
		}
	})
}
