// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/overview"
)

// TestOverview asks for the tables of the pages. The answers have the shape that openapi.yaml describes.
func TestOverview(t *testing.T) {
	k := knows(seedNode, model.StateOK)()
	k.At = time.Unix(1700000000, 0)
	k.Checks = func() []Check {
		return []Check{{Area: "source", Name: "rdma", State: model.StateFailed, Reason: "a reason", Cure: "a cure"}}
	}
	facts := func() Known { return k }
	if status, body := request(t, facts, nil, http.MethodGet, "/api/v1/history"); status != http.StatusNotFound {
		t.Errorf("a history without a recorder: %d %s", status, body)
	}
	k.Recorder = overview.NewRecorder(true)
	for second := range 3 {
		k.Recorder.Observe(k.At.Add(time.Duration(20*second)*time.Second), &k.Facts, &k.Shares)
	}
	for path, want := range map[string]string{
		"/api/v1/workloads": `"device":"mlx5_0"`, "/api/v1/devices": `"device":"0x74a1"`, "/api/v1/doctor": `"cure":"a cure"`,
		"/api/v1/history": `"figure":"memory_used_bytes","values":[null,`,
	} {
		status, body := request(t, facts, nil, http.MethodGet, path)
		if status != http.StatusOK || !strings.Contains(body, want) || !json.Valid([]byte(body)) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	gone := knows(model.Snapshot{}, model.StateFailed)
	for _, path := range []string{"/api/v1/workloads", "/api/v1/devices"} {
		if status, body := request(t, gone, nil, http.MethodGet, path); status != http.StatusServiceUnavailable {
			t.Errorf("%s without devices: %d %s", path, status, body)
		}
	}
}
