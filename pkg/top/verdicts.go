// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/verdict"
)

// maxVerdicts is the number of verdicts above the tables.
const maxVerdicts = 10

// verdictLines renders the verdicts above the tables: severity, name, subject, evidence, and since when. The rest says where all of
// them are.
func verdictLines(v *api.VerdictList, rest string) []line {
	shown := v.Verdicts[:min(len(v.Verdicts), maxVerdicts)]
	var width [3]int
	cells := make([][3]string, len(shown))
	for i := range shown {
		cells[i] = [3]string{format.Escape(string(shown[i].Severity)), format.Escape(shown[i].Name), format.Escape(shown[i].Subject.Name)}
		for c, text := range cells[i] {
			width[c] = max(width[c], utf8.RuneCountInString(text))
		}
	}
	out := make([]line, 0, len(shown)+1)
	for i := range shown {
		text := fmt.Sprintf("%-*s  %-*s  %-*s  %s",
			width[0], cells[i][0], width[1], cells[i][1], width[2], cells[i][2], evidence(&shown[i], v.At))
		out = append(out, line{strings.TrimRight(text, " "), colors[shown[i].Severity]})
	}
	if more := len(v.Verdicts) - len(shown) + v.Omitted; more > 0 {
		out = append(out, line{fmt.Sprintf("… %d more: %s", more, rest), ""})
	}
	return out
}

// evidence renders the evidence and how long the condition has held.
func evidence(v *api.Verdict, now time.Time) string {
	parts := make([]string, len(v.Evidence))
	for i, e := range v.Evidence {
		parts[i] = format.Escape(e)
	}
	text := strings.Join(parts, "; ")
	if held := now.Sub(v.Since); held >= time.Second {
		text += fmt.Sprintf("  (for %s)", held.Round(time.Second))
	}
	return text
}

// colors are the escape sequences (SGR) of severities.
var colors = map[verdict.Severity]string{
	verdict.Critical: "1;31", verdict.Warning: "33", verdict.Info: "36", verdict.OK: "32",
}
