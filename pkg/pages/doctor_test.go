// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"strings"
	"testing"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/overview"
)

// TestGapTexts: each reason for missing bytes has a text, and the text of surveys names the option that ends surveys.
func TestGapTexts(t *testing.T) {
	for _, g := range model.Gaps {
		if gapTexts[g][0] == "" {
			t.Errorf("%s has no text", g)
		}
	}
	d := doctorOf(&api.Known{}, []overview.Row{{
		Kind: overview.HCA, Owner: identity.Owner{Workload: "w"}, Gaps: []model.Gap{model.GapSurvey}, Errors: new(uint64),
		Transmit: &overview.Rate{PerSecond: 1, Estimate: true},
	}})
	if len(d.Absent) != 2 || d.Absent[0].Figure != "bytes: survey" || !strings.Contains(d.Absent[0].Cure, "--rdma.datapath-budget") ||
		d.Absent[1].Figure != "bytes with ~" || !strings.Contains(d.Absent[1].Cure, "--rdma.survey-interval") {
		t.Errorf("%+v", d.Absent)
	}
}
