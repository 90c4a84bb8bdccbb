// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"io"
	"strings"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/verdict"
)

// addVerdicts adds the verdicts of the only refresh that doctor makes. What needs an earlier refresh, such as the growth of a counter or
// the state that a port had, only a running sensor can judge.
func (r *Report) addVerdicts(found verdict.Result) {
	r.Verdicts = []api.Verdict{}
	for _, v := range api.Verdicts(found.Verdicts) {
		if v.Subject.Kind != verdict.OfSource {
			r.Verdicts = append(r.Verdicts, v)
		}
	}
}

func (r *Report) printVerdicts(out io.Writer) {
	if len(r.Verdicts) == 0 {
		return
	}
	fmt.Fprintln(out, "\nVerdicts at this moment (accelscope top shows those of a running sensor, which also compares with the past):")
	for _, v := range r.Verdicts {
		fmt.Fprintf(out, "%s %s: %s: %s\n", v.Severity, v.Name, format.Line(v.Subject.Name), format.Line(strings.Join(v.Evidence, "; ")))
		if v.Severity != verdict.OK {
			fmt.Fprintf(out, "  → %s %s\n", v.Summary, v.Runbook)
		}
	}
}
