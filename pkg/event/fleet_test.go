// SPDX-License-Identifier: Apache-2.0

package event

import (
	"fmt"
	"testing"
	"time"

	collogs "go.opentelemetry.io/proto/otlp/collector/logs/v1"

	"github.com/accelscope/accelscope/tests/machines/otel"
)

// TestFleet restarts the collector of 200 sensors. Their snapshots arrive over the whole spread: at each tenth of the
// spread at most this part, plus a fifth for chance. A slow machine only delays them.
func TestFleet(t *testing.T) {
	t.Parallel()
	const sensors, tenths = 200, 10
	timing := quick
	timing.spread = 5 * time.Second
	r := newReceiver(t)
	var back time.Time
	arrived := map[string]time.Duration{} // by sensor, since the collector's return
	r.answer = func(_ int, records []otel.Record) (bool, *collogs.ExportLogsServiceResponse, error) {
		for _, record := range records {
			if record.Event == "container.snapshot.begin" && record.Attributes[attrReason] == reasonReconnect {
				arrived[record.Resource["service.instance.id"]] = time.Since(back)
			}
		}
		return false, ok, nil
	}
	r.up(t)
	fleet := make([]*Exporter, sensors)
	for i := range fleet {
		fleet[i] = open(t, newWorld(3), timing, Options{Endpoint: r.endpoint, Insecure: true})
	}
	for _, e := range fleet {
		within(t, waitLimit, allTaken(e))
	}
	r.down()
	for _, e := range fleet {
		within(t, waitLimit, func() string { return map[bool]string{true: "connected"}[e.Stats().Connected] })
	}
	r.mu.Lock()
	back = time.Now()
	r.mu.Unlock()
	r.up(t)
	within(t, waitLimit, func() string {
		r.mu.Lock()
		defer r.mu.Unlock()
		return map[bool]string{false: fmt.Sprintf("%d of %d snapshots", len(arrived), sensors)}[len(arrived) == sensors]
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	for tenth := 1; tenth <= tenths; tenth++ {
		n := 0
		for _, after := range arrived {
			if after <= timing.spread*time.Duration(tenth)/tenths {
				n++
			}
		}
		t.Logf("%d snapshots within %d/%d of the spread", n, tenth, tenths)
		if most := sensors*tenth/tenths + sensors/5; n > most {
			t.Errorf("more than %d", most)
		}
	}
}
