// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"net/http"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/verdict"
)

// errUnjudged is the error of a refresh without verdicts: before the first judged refresh, or after a defect of a rule.
var errUnjudged = errors.New("nothing was judged")

// VerdictList is the verdicts of a refresh, the worst first.
type VerdictList struct {
	At       time.Time `json:"at"`
	Verdicts []Verdict `json:"verdicts"`
	Omitted  int       `json:"omitted"` // verdicts and counters without room
	// Judged is what was judged: no verdict on a GPU says nothing where no GPU was read. Nil: unknown.
	Judged *verdict.Judged `json:"judged,omitempty"`
}

// Verdict is a condition that holds.
type Verdict struct {
	Name     string           `json:"name"`
	Severity verdict.Severity `json:"severity"`
	Subject  VerdictSubject   `json:"subject"`
	Summary  string           `json:"summary"`
	Evidence []string         `json:"evidence"`
	Since    time.Time        `json:"since"`
	Runbook  string           `json:"runbook"`
}

// AtLeast reports whether the verdict has a severity or a worse one.
func (v *Verdict) AtLeast(severity string) bool {
	least := slices.Index(verdict.Severities, verdict.Severity(severity))
	own := slices.Index(verdict.Severities, v.Severity)
	return own >= 0 && own <= least
}

// VerdictSubject is what has the condition. Fields that do not apply are empty or 0.
type VerdictSubject struct {
	Kind verdict.Kind `json:"kind"`
	Name string       `json:"name"` // the whole subject: mlx5_0/1, ns/pod/container on mlx5_0
	identity.Owner
	Device string `json:"device"`
	Port   int    `json:"port"`
	GPU    string `json:"gpu_id"`
	UUID   string `json:"uuid"`
	Source string `json:"source"`
	Detail string `json:"detail"`
}

// verdicts answers /api/v1/verdicts.
func verdicts(k *Known, _ *http.Request) (any, error) {
	if len(k.Verdicts.Verdicts) == 0 {
		return nil, errUnjudged
	}
	return VerdictList{
		At: k.At.UTC(), Verdicts: Verdicts(k.Verdicts.Verdicts), Omitted: k.Verdicts.Omitted, Judged: &k.Verdicts.Judged,
	}, nil
}

// Verdicts returns verdicts in the form of REST, in the same order.
func Verdicts(found []verdict.Verdict) []Verdict {
	out := make([]Verdict, 0, len(found))
	for i := range found {
		v := &found[i]
		s := &v.Subject
		out = append(out, Verdict{
			Name: v.Name, Severity: v.Severity, Summary: v.Summary, Since: v.Since.UTC(),
			Evidence: append([]string{}, v.Evidence.Texts()...),
			Runbook:  v.Runbook,
			Subject: VerdictSubject{
				Kind: s.Kind, Name: s.String(), Owner: s.Owner,
				Device: s.Device, Port: s.Port, GPU: s.GPU, UUID: s.UUID, Source: s.Source, Detail: s.Detail,
			},
		})
	}
	return out
}
