// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	dto "github.com/prometheus/client_model/go"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var eventNotes = []string{
	"`accelscope_events_resent_total` is part of `accelscope_events_sent_total`.",
	"`accelscope_events_dropped_total`: the queue was full (`overflow`), the collector refused the batch (`refused`) or a part " +
		"of it (`rejected`), or the sensor ended (`closed`).",
	"`accelscope_events_queue_capacity`: the last quarter of the queue is reserved for exits and OOM kills.",
}

// eventMetrics returns the counters of the export of events.
func eventMetrics() []metric {
	eventValue := func(name string, typ dto.MetricType, help string, of func(*model.EventStats) float64) metric {
		return metric{name: name, typ: typ, help: help, emit: func(v *view, b *exposition.Builder) {
			if e := v.facts.Events; e != nil {
				b.Value(of(e))
			}
		}}
	}
	return []metric{
		eventValue("accelscope_events_sent_total", counter,
			"Event records that the OpenTelemetry Collector accepted, including snapshots.",
			func(e *model.EventStats) float64 { return float64(e.Sent) }),
		eventValue("accelscope_events_resent_total", counter,
			"Sent event records that the OpenTelemetry Collector may have received before.",
			func(e *model.EventStats) float64 { return float64(e.Resent) }),
		{
			name: "accelscope_events_dropped_total", typ: counter, labels: []string{"reason"},
			help: "Events that were not delivered, by reason.",
			emit: func(v *view, b *exposition.Builder) {
				if e := v.facts.Events; e != nil {
					for _, l := range e.Dropped {
						b.Value(float64(l.Count), l.Reason)
					}
				}
			},
		},
		eventValue("accelscope_events_queued", gauge, "Events that wait to be sent to the OpenTelemetry Collector.",
			func(e *model.EventStats) float64 { return float64(e.Queued) }),
		eventValue("accelscope_events_queue_capacity", gauge,
			"Events that fit into the queue.",
			func(e *model.EventStats) float64 { return float64(e.Capacity) }),
		eventValue("accelscope_events_connected", gauge, "Whether the sensor is connected to the OpenTelemetry Collector (1) or not (0).",
			func(e *model.EventStats) float64 { return asNumber(e.Connected) }),
	}
}
