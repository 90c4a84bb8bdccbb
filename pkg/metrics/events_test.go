// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"testing"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
)

func TestEventMetrics(t *testing.T) {
	stats := &model.EventStats{
		Sent: 7, Resent: 3, Queued: 2, Capacity: 100, Connected: true, Dropped: []model.Loss{{Reason: "overflow", Count: 5}},
	}
	families := gather(t, []engine.Registration{{Source: &fake{name: "events", facts: model.Snapshot{Events: stats}}}})
	for name, want := range map[string]float64{
		"accelscope_events_sent_total": 7, "accelscope_events_resent_total": 3, "accelscope_events_dropped_total": 5,
		"accelscope_events_queued": 2, "accelscope_events_queue_capacity": 100, "accelscope_events_connected": 1,
	} {
		if got, ok := value(families, name); !ok || got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if _, ok := value(gather(t, nil), "accelscope_events_connected"); ok {
		t.Error("a sensor that sends no events has metrics of events")
	}
}
