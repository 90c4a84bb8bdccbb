// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/overview"
)

// TestCoverage: what is missing, and whether a rate of nothing is one: after earlier bytes were missed, it is.
func TestCoverage(t *testing.T) {
	limit := uint64(3 << 20)
	for _, tt := range []struct {
		row        overview.Row
		want, rate string
	}{
		{overview.Row{}, "", "-"},
		{overview.Row{Gaps: []model.Gap{}}, "", "-"}, // there is no rate yet
		{overview.Row{Gaps: []model.Gap{}, Receive: &overview.Rate{}}, "all bytes counted", "-"},
		{overview.Row{Gaps: []model.Gap{model.GapLate, model.GapSurvey}}, "missing: late, survey", "?"},
		{overview.Row{Gaps: []model.Gap{model.GapUnattributed}, Unattributed: &limit}, "missing: unattributed (at most 3.0 MiB)", "-"},
		{overview.Row{Gaps: []model.Gap{model.GapUnattributed}}, "missing: unattributed", "-"},
	} {
		if got := coverage(&tt.row); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.row.Gaps, got, tt.want)
		}
		if got := rate(nil, tt.row.Gaps); got != tt.rate {
			t.Errorf("%v: rate %q, want %q", tt.row.Gaps, got, tt.rate)
		}
	}
	for _, g := range model.Gaps {
		if gapTexts[g][0] == "" {
			t.Errorf("%s has no text", g)
		}
	}
}
