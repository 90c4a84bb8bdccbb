// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var eventNotes = []string{
	"`accelscope_events_dropped_total`: queue full (`overflow`), batch (`refused`) or part of it (`rejected`) refused, sensor " +
		"ended (`closed`).",
	"`accelscope_events_queue_capacity`: the last quarter is reserved for exits and OOM kills.",
}

// eventMetrics returns the counters of the event exporter.
func eventMetrics() []metric {
	events := func(v *view) *model.EventStats { return v.facts.Events }
	return []metric{
		single("accelscope_events_sent_total", counter,
			"Event records that the collector accepted, including snapshots.", events,
			func(e *model.EventStats) model.Optional { return model.Some(float64(e.Sent)) }),
		single("accelscope_events_resent_total", counter,
			"Sent records that the collector may have received before.", events,
			func(e *model.EventStats) model.Optional { return model.Some(float64(e.Resent)) }),
		{
			name: "accelscope_events_dropped_total", typ: counter, labels: []string{"reason"},
			help: "Events not delivered, by reason.",
			emit: func(v *view, b *exposition.Builder) {
				if e := v.facts.Events; e != nil {
					for _, l := range e.Dropped {
						b.Value(float64(l.Count), l.Reason)
					}
				}
			},
		},
		single("accelscope_events_queued", gauge, "Events waiting to be sent.", events,
			func(e *model.EventStats) model.Optional { return model.Some(float64(e.Queued)) }),
		single("accelscope_events_queue_capacity", gauge, "Capacity of the queue.", events,
			func(e *model.EventStats) model.Optional { return model.Some(float64(e.Capacity)) }),
		single("accelscope_events_connected", gauge,
			"Whether the sensor is connected to the collector.", events,
			func(e *model.EventStats) model.Optional { return model.Some(truth(e.Connected)) }),
	}
}
