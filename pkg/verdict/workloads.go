// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/model"
)

// workloadRules judge the work of workloads.
type workloadRules struct{ *round }

func (r workloadRules) judge() {
	r.judgeStalls()
	r.judgeCompletions()
	r.judgeVerbs()
	r.judgeAllocations()
	r.judgeDriverCalls()
	r.judgeBudgets()
	r.judgePlacement()
	r.judgeCoverage()
}

func (r workloadRules) judgeStalls() {
	for i := range r.Shares.Outstanding {
		o := &r.Shares.Outstanding[i]
		if float64(o.Stalled) <= queuePairsStalled.limit(0) {
			continue
		}
		s, _ := r.owned(o.Owner)
		s.Device = o.Device
		r.find(queuePairsStalled, s, r.At.Add(-o.Oldest),
			fmt.Sprintf("%d queue pairs", o.Stalled), "oldest work request "+format.Span(o.Oldest))
	}
}

func (r workloadRules) judgeCompletions() {
	var all sums
	for i := range r.Shares.CompletionErrors {
		if s := &r.Shares.CompletionErrors[i]; !slices.Contains(harmlessStatus, s.Key.Status) {
			all.add(s.Owner, s.Key.Status, uint64(s.Value))
		}
	}
	r.judgeSums(completionErrors, all, "completions with an error")
}

func (r workloadRules) judgeVerbs() {
	var all sums
	for i := range r.Shares.VerbErrors {
		s := &r.Shares.VerbErrors[i]
		if v := s.Key.Verb; strings.HasPrefix(v, "query_") || v == "async_event" || v == "poll_cq" ||
			slices.Contains(harmlessErrnos, s.Key.Errno) {
			continue
		}
		all.add(s.Owner, s.Key.Errno, uint64(s.Value))
	}
	r.judgeSums(verbsErrors, all, "failed verbs")
}

func (r workloadRules) judgeAllocations() {
	var all sums
	for i := range r.Shares.FailedAllocations {
		if s := &r.Shares.FailedAllocations[i]; s.Owner != 0 {
			all.add(s.Owner, string(s.Key.Vendor), s.Value.Count)
		}
	}
	r.judgeSums(allocationFailures, all, "failed allocations")
}

func (r workloadRules) judgeDriverCalls() {
	for i := range r.Shares.DriverShares {
		d := &r.Shares.DriverShares[i]
		if d.Oldest.Seconds() <= driverStuck.limit(0) {
			continue
		}
		s, _ := r.owned(d.Owner)
		s.Detail = d.Driver
		r.find(driverStuck, s, r.At.Add(-d.Oldest), "oldest ioctl "+format.Span(d.Oldest), fmt.Sprintf("%d tasks are stuck", d.Stuck))
	}
}

func (r workloadRules) judgeBudgets() {
	if r.Facts.DataPath == nil {
		return
	}
	limit := r.Facts.DataPath.LimitRatio
	for i := range r.Shares.Budgets {
		b := &r.Shares.Budgets[i]
		if b.SpentRatio <= budgetExceeded.limit(0)*limit {
			continue
		}
		s, _ := r.owned(b.Owner)
		r.find(budgetExceeded, s, time.Time{}, format.Percent(b.SpentRatio)+" of the CPU time", "the budget is "+format.Percent(limit))
	}
}

// judgePlacement judges where the GPUs and HCAs of workloads are.
func (r workloadRules) judgePlacement() {
	workloads := r.Placement.Workloads()
	for _, c := range []*Condition{placedBadly, withoutGPUDirect, dataDirectPath} {
		for i := range workloads {
			var texts []string
			for _, problem := range workloads[i].Problems {
				if slices.Contains(c.Words["problem"], problem.Name) {
					texts = append(texts, problem.Text)
				}
			}
			if len(texts) > 0 {
				s, _ := r.owned(workloads[i].Owner)
				r.find(c, s, time.Time{}, texts...)
			}
		}
	}
}

// judgeCoverage judges which bytes of workloads are not counted: one verdict for all gaps of a workload on an HCA.
func (r workloadRules) judgeCoverage() {
	type place struct {
		owner  int
		device string
	}
	gaps, order := map[place][]string{}, []place{}
	for i := range r.Shares.Coverage {
		c := &r.Shares.Coverage[i]
		if !slices.Contains(shownGaps, c.Gap) {
			continue
		}
		p := place{c.Owner, c.Device}
		if gaps[p] == nil {
			order = append(order, p)
		}
		gaps[p] = append(gaps[p], string(c.Gap))
	}
	for _, p := range order {
		s, _ := r.owned(p.owner)
		s.Device = p.device
		r.find(coverageGap, s, time.Time{}, strings.Join(gaps[p], ", "))
	}
}

// gpuUsed reports whether a share used its GPU: an engine, or a process if the driver reports no engines of the workload.
func gpuUsed(engines []model.Figure, processes uint64) bool {
	for _, e := range engines {
		if e.Value > gpuIdle.limit(0) {
			return true
		}
	}
	return len(engines) == 0 && float64(processes) > gpuIdle.limit(1)
}
