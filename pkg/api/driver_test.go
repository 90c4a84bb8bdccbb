// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// TestDriverTasks asks for the stuck tasks of the node, and of a source that cannot find them.
func TestDriverTasks(t *testing.T) {
	known := func(tasks []attribution.DriverTask, state model.State) Facts {
		owner := identity.Owner{Workload: "ml/train-0/worker", Namespace: "ml", Pod: "train-0", Container: "worker", ContainerID: "c1"}
		return func() Known {
			return Known{
				Shares: attribution.Attribution{Owners: []identity.Owner{{}, owner}, DriverTasks: tasks},
				States: []model.SourceState{{Source: "gpudriver", State: state, Reason: "permission denied"}},
			}
		}
	}
	tasks := []attribution.DriverTask{
		{Owner: 1, DriverTask: &model.DriverTask{
			Driver: "nvidia", Request: 0xc020462a, PID: 7, TID: 8, Process: `a"b`, Function: "nvidia_ioctl", Since: time.Unix(1700000000, 0),
			HolderPID: 70, HolderTID: 71, HolderProcess: "kworker/1:2",
		}},
		{DriverTask: &model.DriverTask{Driver: "nvidia_uvm", Request: 27}},
	}
	status, body := request(t, known(tasks, model.StateOK), nil, http.MethodGet, "/api/v1/gpu-driver-tasks")
	var answer struct{ Data []driverTask }
	if err := json.Unmarshal([]byte(body), &answer); err != nil || status != http.StatusOK {
		t.Fatalf("%d %v", status, err)
	}
	want := []driverTask{
		{
			Driver: "nvidia", Request: "0xc020462a", Type: "0x46", Number: "0x2a", PID: 7, TID: 8, Process: `a"b`, Function: "nvidia_ioctl",
			HolderPID: 70, HolderTID: 71, HolderProcess: "kworker/1:2",
			Since: time.Unix(1700000000, 0).UTC(),
			Owner: identity.Owner{Workload: "ml/train-0/worker", Namespace: "ml", Pod: "train-0", Container: "worker", ContainerID: "c1"},
		},
		{Driver: "nvidia_uvm", Request: "0x0000001b", Type: "0x00", Number: "0x1b"},
	}
	if d := cmp.Diff(want, answer.Data); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	for name, tt := range map[string]struct {
		facts  Facts
		status int
	}{
		"none":         {known([]attribution.DriverTask{}, model.StateOK), http.StatusOK},
		"refused":      {known(nil, model.StateUnsupported), http.StatusServiceUnavailable},
		"no driver":    {known(nil, model.StateAbsent), http.StatusOK},
		"switched off": {func() Known { return Known{} }, http.StatusServiceUnavailable},
	} {
		if status, body := request(t, tt.facts, nil, http.MethodGet, "/api/v1/gpu-driver-tasks"); status != tt.status {
			t.Errorf("%s: %d, want %d: %s", name, status, tt.status, body)
		}
	}
}
