// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/verdict"
)

// TestDoctorVerdicts: the report shows verdicts of devices and workloads. Verdicts on sources are checks.
func TestDoctorVerdicts(t *testing.T) {
	r := &Report{Verdict: canRun}
	r.addVerdicts(verdict.Result{Verdicts: []verdict.Verdict{
		{
			Name: "GPULost", Severity: verdict.Critical, Subject: verdict.Subject{Kind: verdict.OfGPU, GPU: "0"}, Summary: "It fell off the bus.",
			Evidence: func() []string { return []string{"lost", "a\x1b[2J"} }, Runbook: "https://example.com/GPULost.md",
		},
		{Name: "AccelscopeSourceLost", Severity: verdict.Warning, Subject: verdict.Subject{Kind: verdict.OfSource, Source: "rdma"}},
		{Name: "NothingWrong", Severity: verdict.OK, Subject: verdict.Subject{Kind: verdict.OfNode}, Evidence: func() []string { return []string{"8 GPUs"} }},
	}})
	var out strings.Builder
	if err := r.print(&out); err != nil {
		t.Fatal(err)
	}
	_, got, _ := strings.Cut(out.String(), "the past):\n")
	want := `critical GPULost: GPU 0: lost; a?[2J
  → It fell off the bus. https://example.com/GPULost.md
ok NothingWrong: node: 8 GPUs
`
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	text, err := json.Marshal(r)
	if err != nil || !strings.Contains(string(text), `"verdicts":[{"name":"GPULost"`) {
		t.Errorf("%v: %s", err, text)
	}
}
