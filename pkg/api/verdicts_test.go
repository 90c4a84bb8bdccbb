// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/verdict"
)

// TestVerdicts asks for the verdicts of a refresh, and of a refresh that was not judged. Names of containers are
// hostile.
func TestVerdicts(t *testing.T) {
	at := time.Unix(1700000000, 0)
	judged := verdict.Judged{Ports: 6, Active: 5, GPUs: 4, Workloads: 3, Sources: 2, Working: 1}
	found := verdict.Result{Omitted: 3, Judged: judged, Verdicts: []verdict.Verdict{
		{
			Name: "RDMAPortDown", Severity: verdict.Critical, Subject: verdict.Subject{Kind: verdict.OfPort, Device: "mlx5_0", Port: 1},
			Summary: "down", Since: at, Runbook: "https://example.com/RDMAPortDown.md",
			Evidence: func() []string { return []string{"state DOWN, physical state Polling"} },
		},
		{
			Name: "GPUAllocatedIdle", Severity: verdict.Info, Runbook: "https://example.com/GPUAllocatedIdle.md",
			Subject: verdict.Subject{
				Kind: verdict.OfWorkload, GPU: "3", UUID: "GPU-3",
				Owner: identity.Owner{Workload: "ns/<b>\"/c", Namespace: "ns", Pod: "<b>\"", Container: "c", ContainerID: "c1"},
			},
		},
	}}
	status, body := request(t, func() Known { return Known{At: at, Verdicts: found} }, nil, http.MethodGet, "/api/v1/verdicts")
	var answer struct{ Data VerdictList }
	if err := json.Unmarshal([]byte(body), &answer); err != nil || status != http.StatusOK {
		t.Fatalf("%d %v", status, err)
	}
	want := VerdictList{At: at.UTC(), Omitted: 3, Judged: &judged, Verdicts: []Verdict{
		{
			Name: "RDMAPortDown", Severity: "critical", Subject: VerdictSubject{Kind: "port", Name: "mlx5_0/1", Device: "mlx5_0", Port: 1},
			Summary: "down", Evidence: []string{"state DOWN, physical state Polling"}, Since: at.UTC(), Runbook: "https://example.com/RDMAPortDown.md",
		},
		{
			Name: "GPUAllocatedIdle", Severity: "info", Evidence: []string{}, Runbook: "https://example.com/GPUAllocatedIdle.md",
			Subject: VerdictSubject{
				Kind: "workload", Name: "ns/<b>\"/c on GPU 3", GPU: "3", UUID: "GPU-3",
				Owner: identity.Owner{Workload: "ns/<b>\"/c", Namespace: "ns", Pod: "<b>\"", Container: "c", ContainerID: "c1"},
			},
		},
	}}
	if d := cmp.Diff(want, answer.Data); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	unjudged := func() Known {
		return Known{At: at, States: []model.SourceState{{Source: "rdma", State: model.StateOK}}}
	}
	if status, body := request(t, unjudged, nil, http.MethodGet, "/api/v1/verdicts"); status != http.StatusServiceUnavailable {
		t.Errorf("without verdicts: %d %s", status, body)
	}
}
