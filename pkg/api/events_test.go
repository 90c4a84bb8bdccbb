// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestEvents asks for all events, for the events of a workload and of a device, while the collector takes no events,
// and without events.
func TestEvents(t *testing.T) {
	stats := &model.EventStats{Recent: []model.RecentEvent{
		{Time: time.Unix(1700000000, 0), Name: "container.exit", Text: `a"b<script>`, Workload: "ml/train-0/worker", ContainerID: "c1"},
		{Time: time.Unix(1700000060, 0), Name: "container.device_open", Workload: "ml/train-1/worker", ContainerID: "c2", Device: "mlx5_0"},
		{Time: time.Unix(1700000120, 0), Name: "device.link_flap", Device: "mlx5_0"},
	}}
	facts := func(stats *model.EventStats, states ...model.SourceState) Facts {
		return func() Known { return Known{Facts: model.Snapshot{Events: stats}, States: states} }
	}
	failed := model.SourceState{Source: "events", State: model.StateFailed, Reason: "refused"}
	for query, want := range map[string][]string{
		"": {"container.exit", "container.device_open", "device.link_flap"}, "?workload=ml/train-0/worker": {"container.exit"},
		"?device=mlx5_0": {"container.device_open", "device.link_flap"}, "?device=mlx5_0&workload=ml/train-1/worker": {"container.device_open"},
		"?workload=other": {},
	} {
		status, body := request(t, facts(stats, failed), nil, http.MethodGet, "/api/v1/events"+query)
		var answer struct{ Data []eventEntry }
		if err := json.Unmarshal([]byte(body), &answer); err != nil || status != http.StatusOK {
			t.Fatalf("%s: %d %v %s", query, status, err, body)
		}
		names := []string{}
		for _, e := range answer.Data {
			names = append(names, e.Name)
		}
		if d := cmp.Diff(want, names); d != "" {
			t.Errorf("%s: %s", query, d)
		}
	}
	if status, body := request(t, facts(nil), nil, http.MethodGet, "/api/v1/events"); status != http.StatusServiceUnavailable || !strings.Contains(body, "events") {
		t.Errorf("without events: %d %s", status, body)
	}
	if status, body := request(t, facts(&model.EventStats{Recent: []model.RecentEvent{}}), nil, http.MethodGet, "/api/v1/events"); status != http.StatusOK || !strings.Contains(body, `"data":[]`) {
		t.Errorf("no event yet: %d %s", status, body)
	}
}
