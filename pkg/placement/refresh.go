// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"sync"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// Refresh is the placement of a refresh. The first reader computes it; verdicts, metrics, answers and pages share it. A
// nil Refresh has no devices.
type Refresh struct {
	facts  *model.Snapshot
	shares *attribution.Attribution

	once      sync.Once
	placement Placement
}

// NewRefresh returns the placement of facts and shares, which do not change any more.
func NewRefresh(s *model.Snapshot, a *attribution.Attribution) *Refresh {
	return &Refresh{facts: s, shares: a}
}

// Placement returns the topology and its use. Callers must not change it.
func (r *Refresh) Placement() *Placement {
	if r == nil {
		return &Placement{}
	}
	r.once.Do(func() { r.placement = of(r.facts, r.shares) })
	return &r.placement
}

// Workloads returns the workloads of the placement. On a node without GPUs or HCAs it computes nothing.
func (r *Refresh) Workloads() []Workload {
	if r == nil || len(r.facts.GPUs) == 0 || len(r.facts.HCAs) == 0 {
		return nil
	}
	return r.Placement().Workloads
}
