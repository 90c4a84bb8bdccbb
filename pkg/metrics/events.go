// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

// eventMetrics are what became of the events that were to be sent.
func eventMetrics() []metric {
	figure := func(name string, typ dto.MetricType, help string, of func(*model.EventStats) float64) metric {
		return metric{name: name, typ: typ, help: help, emit: func(v *view, b *exposition.Builder) {
			if e := v.facts.Events; e != nil {
				b.Value(of(e))
			}
		}}
	}
	return []metric{
		figure("accelscope_events_sent_total", counter,
			"Event records that the OpenTelemetry Collector took, those of snapshots included.",
			func(e *model.EventStats) float64 { return float64(e.Sent) }),
		figure("accelscope_events_resent_total", counter,
			"Event records among those sent that the OpenTelemetry Collector may have got before.",
			func(e *model.EventStats) float64 { return float64(e.Resent) }),
		{
			name: "accelscope_events_dropped_total", typ: counter, labels: []string{"reason"},
			help: "Events that did not arrive: the queue was full (overflow), the collector refused their batch " +
				"(refused) or a part of it (rejected), or the sensor ended (closed).",
			emit: func(v *view, b *exposition.Builder) {
				if e := v.facts.Events; e != nil {
					for _, l := range e.Dropped {
						b.Value(float64(l.Count), l.Reason)
					}
				}
			},
		},
		figure("accelscope_events_queued", gauge, "Events that wait for the OpenTelemetry Collector.",
			func(e *model.EventStats) float64 { return float64(e.Queued) }),
		figure("accelscope_events_queue_capacity", gauge,
			"Events that there is room for; the last quarter of it is kept for exits and OOM kills.",
			func(e *model.EventStats) float64 { return float64(e.Capacity) }),
		figure("accelscope_events_connected", gauge, "Whether there is a connection to the OpenTelemetry Collector.",
			func(e *model.EventStats) float64 { return asNumber(e.Connected) }),
	}
}
