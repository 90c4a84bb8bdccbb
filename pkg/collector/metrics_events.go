// SPDX-License-Identifier: Apache-2.0

package collector

// eventMetrics are what became of the events that were to be sent.
func eventMetrics() []metric {
	return []metric{
		{
			name: "accelscope_events_sent_total", typ: counter,
			help: "Event records that the OpenTelemetry Collector took, those of snapshots included.",
			emit: func(v *view, b *builder) {
				if e := v.facts.Events; e != nil {
					b.value(float64(e.Sent))
				}
			},
		},
		{
			name: "accelscope_events_resent_total", typ: counter,
			help: "Event records among those sent that the OpenTelemetry Collector may have got before.",
			emit: func(v *view, b *builder) {
				if e := v.facts.Events; e != nil {
					b.value(float64(e.Resent))
				}
			},
		},
		{
			name: "accelscope_events_dropped_total", typ: counter, labels: []string{"reason"},
			help: "Events that did not arrive: the queue was full (overflow), the collector refused their batch " +
				"(refused) or a part of it (rejected), or the sensor ended (closed).",
			emit: func(v *view, b *builder) {
				if e := v.facts.Events; e != nil {
					for _, l := range e.Dropped {
						b.value(float64(l.Count), l.Reason)
					}
				}
			},
		},
		{
			name: "accelscope_events_queued", typ: gauge,
			help: "Events that wait for the OpenTelemetry Collector.",
			emit: func(v *view, b *builder) {
				if e := v.facts.Events; e != nil {
					b.value(float64(e.Queued))
				}
			},
		},
		{
			name: "accelscope_events_queue_capacity", typ: gauge,
			help: "Events that there is room for; the last quarter of it is kept for exits and OOM kills.",
			emit: func(v *view, b *builder) {
				if e := v.facts.Events; e != nil {
					b.value(float64(e.Capacity))
				}
			},
		},
		{
			name: "accelscope_events_connected", typ: gauge,
			help: "Whether there is a connection to the OpenTelemetry Collector.",
			emit: func(v *view, b *builder) {
				if e := v.facts.Events; e != nil {
					connected := 0.0
					if e.Connected {
						connected = 1
					}
					b.value(connected)
				}
			},
		},
	}
}
