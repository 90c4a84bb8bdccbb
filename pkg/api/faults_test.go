// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// TestFaults asks for all faults, for the faults of a workload and of a device, and for the faults of a source that
// cannot read them.
func TestFaults(t *testing.T) {
	history := []attribution.FaultRecord{
		{
			Owner:       identity.Owner{Workload: "ml/train-0/worker", Namespace: "ml", Pod: "train-0", Container: "worker", ContainerID: "c1"},
			FaultDevice: attribution.FaultDevice{GPU: "0", UUID: "GPU-0"},
			Fault: &model.Fault{
				ID: 1, Time: time.Unix(1700000000, 0), Last: time.Unix(1700000060, 0), Repeated: 2, PID: 4711, Process: `a"b`, Text: "<script>",
				FaultKey: model.FaultKey{Driver: model.DriverNVIDIA, PCIAddress: "0000:c1:00.0", GPUInstance: "5", Code: "31"},
			},
		},
		{
			FaultDevice: attribution.FaultDevice{HCA: "mlx5_0"},
			Fault: &model.Fault{
				ID: 2, Earlier: true, Recovered: true,
				FaultKey: model.FaultKey{Driver: model.DriverMLX5, PCIAddress: "0000:18:00.0", Code: "health"},
			},
		},
	}
	known := func(history []attribution.FaultRecord, state model.State) Facts {
		return func() Known {
			return Known{
				Shares: attribution.Attribution{FaultHistory: history},
				States: []model.SourceState{{Source: "kernellog", State: state, Reason: "permission denied"}},
			}
		}
	}
	for query, want := range map[string][]uint64{
		"": {1, 2}, "?workload=ml/train-0/worker": {1}, "?workload=other": {}, "?device=GPU-0": {1}, "?device=0000:c1:00.0": {1},
		"?device=mlx5_0": {2}, "?device=0000:18:00.0&workload=ml/train-0/worker": {},
	} {
		status, body := request(t, known(history, model.StateOK), nil, http.MethodGet, "/api/v1/faults"+query)
		var answer struct{ Data []Fault }
		if err := json.Unmarshal([]byte(body), &answer); err != nil || status != http.StatusOK {
			t.Fatalf("%s: %d %v", query, status, err)
		}
		ids := []uint64{}
		for _, e := range answer.Data {
			ids = append(ids, e.ID)
		}
		if d := cmp.Diff(want, ids); d != "" {
			t.Errorf("%s: %s", query, d)
		}
		if query == "?device=GPU-0" {
			if d := cmp.Diff(Fault{
				ID: 1, Time: time.Unix(1700000000, 0).UTC(), Last: time.Unix(1700000060, 0).UTC(), Repeated: 2, Driver: "nvidia", Code: "31",
				PCIAddress: "0000:c1:00.0", GPU: "0", UUID: "GPU-0", GPUInstance: "5", PID: 4711, Process: `a"b`, Text: "<script>",
				Owner: identity.Owner{Workload: "ml/train-0/worker", Namespace: "ml", Pod: "train-0", Container: "worker", ContainerID: "c1"},
			}, answer.Data[0]); d != "" {
				t.Error(d)
			}
		}
	}
	for name, tt := range map[string]struct {
		facts  Facts
		status int
	}{
		"no faults":   {known([]attribution.FaultRecord{}, model.StateOK), http.StatusOK},
		"not read":    {known(nil, model.StateUnsupported), http.StatusServiceUnavailable},
		"no log":      {known(nil, model.StateAbsent), http.StatusOK},
		"no owners":   {known(history, model.StateUnsupported), http.StatusOK},
		"switchedoff": {func() Known { return Known{} }, http.StatusServiceUnavailable},
	} {
		if status, body := request(t, tt.facts, nil, http.MethodGet, "/api/v1/faults"); status != tt.status {
			t.Errorf("%s: %s", name, fmt.Sprint(status, body))
		}
	}
}
