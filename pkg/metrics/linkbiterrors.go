// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"

	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var bitErrorNotes = []string{
	"mlx5 only; see [Links](../docs/links.md#bit-errors-of-mlx5). An unreadable port has only a state in " +
		"`accelscope_device_state{source=\"link\"}`, with its PCI address as `device`.",
	"Ratios are since the errors were cleared, with one or two digits. 0 means that the firmware has seen no error.",
	"`rdma_port_symbol_error_ratio`, `rdma_port_symbol_errors_total`: InfiniBand, ConnectX-6 and later.",
	"`rdma_port_bit_errors_info` has the tool's words. It is absent while the link is down.",
}

func bitErrorMetrics() []metric {
	return []metric{
		bitErrorValue("rdma_port_raw_bit_error_ratio", gauge, "Bit error ratio before FEC.",
			func(e *model.BitErrors) model.Optional { return e.Raw }),
		bitErrorValue("rdma_port_effective_bit_error_ratio", gauge, "Bit error ratio after FEC.",
			func(e *model.BitErrors) model.Optional { return e.Effective }),
		bitErrorValue("rdma_port_symbol_error_ratio", gauge, "Bit error ratio of symbols, from the firmware.",
			func(e *model.BitErrors) model.Optional { return e.Symbol }),
		bitErrorValue("rdma_port_effective_errors_total", counter, "Errors after FEC.",
			func(e *model.BitErrors) model.Optional { return valueOf(e.EffectiveErrors) }),
		bitErrorValue("rdma_port_symbol_errors_total", counter, "Symbol errors, from the firmware.",
			func(e *model.BitErrors) model.Optional { return valueOf(e.SymbolErrors) }),
		bitErrorSeries("rdma_port_lane_raw_bit_errors_total", counter, "Bits with errors before FEC, by lane.",
			[]string{"lane"},
			func(e *model.BitErrors, add func(float64, ...string)) {
				for i, n := range e.LaneErrors {
					add(float64(n), strconv.Itoa(i+1))
				}
			}),
		bitErrorValue("rdma_port_bit_errors_age_seconds", gauge, "Time since the firmware's bit errors were cleared.",
			func(e *model.BitErrors) model.Optional { return e.Age }),
		bitErrorSeries("rdma_port_bit_errors_info", gauge, "Active FEC, speed and width of the port.",
			[]string{"fec", "speed", "width"},
			func(e *model.BitErrors, add func(float64, ...string)) {
				if e.FEC != "" || e.Speed != "" || e.Width != "" { // the link is up
					add(1, e.FEC, e.Speed, e.Width)
				}
			}),
		bitErrorValue("rdma_port_bit_errors_read_timestamp_seconds", gauge, "Unix time of the last query for bit errors.",
			func(e *model.BitErrors) model.Optional { return moment(e.Read) }),
	}
}

func bitErrorSeries(
	name string, typ dto.MetricType, help string, labels []string, emit func(*model.BitErrors, func(float64, ...string)),
) metric {
	list := func(v *view) []model.BitErrors { return v.facts.BitErrors }
	return metric{
		name: name, typ: typ, help: help, labels: append(linkLabels[:3:3], labels...),
		emit: each(list, func(_ *view, b *exposition.Builder, e *model.BitErrors) {
			port := ""
			if e.Port > 0 {
				port = strconv.Itoa(e.Port)
			}
			emit(e, func(value float64, more ...string) {
				b.Value(value, append([]string{e.Device, port, e.Netdev}, more...)...)
			})
		}),
	}
}

func bitErrorValue(name string, typ dto.MetricType, help string, of func(*model.BitErrors) model.Optional) metric {
	return bitErrorSeries(name, typ, help, nil, func(e *model.BitErrors, add func(float64, ...string)) {
		if v := of(e); v.Known {
			add(v.Value)
		}
	})
}
