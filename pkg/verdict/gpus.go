// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/model"
)

// gpuRules judge GPUs and their memory, by what drivers and the kernel log report.
type gpuRules struct{ *round }

func (r gpuRules) judge() {
	for i := range r.Facts.GPUs {
		g := &r.Facts.GPUs[i]
		s := subjectOf(g)
		r.judgeProblems(g, s)
		r.judgeXIDs(g, s)
	}
	r.judgeGPUFaults()
	users := map[*model.GPU]int{} // number of workloads with processes on a GPU
	for i := range r.Shares.GPUs {
		if s := &r.Shares.GPUs[i]; s.Owner != 0 && s.Processes > 0 {
			users[s.GPU]++
		}
	}
	for i := range r.Shares.GPUs {
		if s := &r.Shares.GPUs[i]; s.Owner == 0 && users[s.GPU] != 1 {
			r.judgeUnowned(s)
		}
	}
}

func subjectOf(g *model.GPU) Subject { return Subject{Kind: OfGPU, GPU: g.ID, UUID: g.UUID} }

// isOf reports whether a source's device is this GPU.
func isOf(d *model.DeviceState, g *model.GPU) bool {
	return g.Vendor.Row().Source == d.Source && (g.ID == d.Device || g.PCIAddress == d.Device)
}

// has returns the problems of a GPU that are in names.
func has(g *model.GPU, names []string) (found []string) {
	for _, p := range g.Problems {
		if p.Active && slices.Contains(names, p.Name) {
			found = append(found, p.Name)
		}
	}
	return found
}

// judgeProblems judges the problems of a GPU. If the GPU needs a reset, problems that the reset repairs are not shown.
func (r gpuRules) judgeProblems(g *model.GPU, s Subject) {
	asking, failing, pending := has(g, askingProblems), has(g, failingProblems), has(g, pendingProblems)
	find := func(c *Condition, problems []string, unless ...[]string) {
		if len(problems) > 0 && len(slices.Concat(unless...)) == 0 {
			r.find(c, s, time.Time{}, strings.Join(problems, ", "))
		}
	}
	lost := has(g, lostProblems)
	if lost != nil {
		evidence := []string{strings.Join(lost, ", ")}
		for i := range r.Facts.DeviceStates {
			if d := &r.Facts.DeviceStates[i]; d.Reason != "" && isOf(d, g) {
				evidence = append(evidence, d.Reason)
			}
		}
		r.find(gpuLost, s, time.Time{}, evidence...)
	}
	if a := g.RecoveryAction; a != "" && a != model.RecoveryNone {
		r.find(recoveryAction, s, time.Time{}, "the driver asks for "+a)
	}
	if has(g, notReadyProblems) != nil && len(asking) == 0 {
		c := fabricNotReady
		if m := r.Facts.FabricManager; m != nil && m.Running && g.Fabric == model.FabricInProgress {
			c = fabricInProgress
		}
		r.find(c, s, time.Time{}, r.fabricEvidence(g))
	}
	find(memoryFailing, failing)
	find(memoryRepairPending, pending, failing, asking)
	find(uncorrectedECC, has(g, eccProblems), failing, pending, asking)
	find(unhealthy, slices.DeleteFunc(g.ActiveProblems(), func(p string) bool { return slices.Contains(namedProblems, p) }), lost, asking)
	for _, c := range []struct {
		condition *Condition
		problems  []string
	}{{thermalSlowdown, thermalProblems}, {powerBrake, brakeProblems}} {
		if !slices.ContainsFunc(g.Problems, func(p model.GPUCondition) bool { return slices.Contains(c.problems, p.Name) }) {
			continue
		}
		held := r.held(counterKey{condition: c.condition, device: g.UUID}, has(g, c.problems) != nil)
		if part := held.Seconds() / c.condition.Window.Seconds(); part > c.condition.limit(0) {
			r.find(c.condition, s, time.Time{}, fmt.Sprintf("slowed down in %s of %s", format.Span(held), format.Span(c.condition.Window)))
		}
	}
}

// fabricEvidence describes for how long a GPU has not been registered.
func (r gpuRules) fabricEvidence(g *model.GPU) string {
	for i := range r.Facts.Lingering {
		if l := &r.Facts.Lingering[i]; l.State == stateFabric && l.UUID == g.UUID {
			return lingerEvidence(r.At, l)
		}
	}
	return g.Fabric
}

// judgeXIDs judges the XIDs of a GPU. If the driver reports a recovery action, it counts instead of a critical XID.
func (r gpuRules) judgeXIDs(g *model.GPU, s Subject) {
	var critical, others []string
	var lastCritical, lastOther time.Time
	for _, x := range g.XIDs {
		code := strconv.FormatUint(x.Code, 10)
		text := fmt.Sprintf("XID %s, %d times since the start, last %s ago", code, x.Count, format.Span(r.At.Sub(x.Last)))
		switch {
		case slices.Contains(criticalXIDs, code):
			if critical == nil || x.Last.After(lastCritical) {
				critical, lastCritical = []string{text}, x.Last
			}
		case code != recoveredXID && r.At.Sub(x.Last).Seconds() < xidNoncritical.limit(0):
			if others = append(others, text); x.Last.After(lastOther) {
				lastOther = x.Last
			}
		}
	}
	if len(has(g, []string{model.ProblemXID})) > 0 && g.RecoveryAction == "" {
		r.find(xidCritical, s, lastCritical, critical...)
	}
	if len(others) > 0 {
		r.find(xidNoncritical, s, lastOther, others[:min(len(others), maxPerOwner)]...)
	}
}

// judgeGPUFaults judges the faults of GPUs in the kernel log that NVML does not report.
func (r gpuRules) judgeGPUFaults() {
	if len(r.Shares.FaultTotals) == 0 {
		return
	}
	reported := map[string]bool{}   // UUIDs of GPUs with a problem that a source reports
	reset := map[string]time.Time{} // by UUID
	for i := range r.Facts.GPUs {
		g := &r.Facts.GPUs[i]
		reset[g.UUID] = g.Reset
		if g.RecoveryAction != "" || len(has(g, []string{model.ProblemXID, model.ProblemLost})) > 0 {
			reported[g.UUID] = true
		}
	}
	recovered := map[string]time.Time{} // by PCI address
	for i := range r.Shares.FaultTotals {
		if t := &r.Shares.FaultTotals[i]; t.Driver == model.DriverNVIDIA && t.Code == recoveredXID {
			recovered[t.PCIAddress] = t.Recovered
		}
	}
	for i := range r.Shares.FaultTotals {
		t := &r.Shares.FaultTotals[i]
		switch {
		case !GPUFaults(t.FaultKey) || t.Last.IsZero() || r.At.Sub(t.Last).Seconds() >= gpuFault.limit(0):
		case t.UUID != "" && (reported[t.UUID] || !t.Last.After(reset[t.UUID])):
		case !recovered[t.PCIAddress].IsZero() && !t.Last.After(recovered[t.PCIAddress]):
		default:
			s := Subject{Kind: OfGPU, GPU: t.GPU, UUID: t.UUID, Detail: t.Code}
			if t.Driver == model.DriverNVSwitch {
				s.Kind = OfSwitch
			}
			if t.GPU == "" {
				s.Device = t.PCIAddress
			}
			r.find(gpuFault, s, t.Last, faultEvidence(r.At, t.FaultTotal, r.Facts.FaultHistory)...)
		}
	}
}

// judgeUnowned judges the memory of a GPU that has no owner. It skips a GPU with a single workload, because the driver
// lists managed memory for no process, and a GPU whose memory is memory of the node.
func (r gpuRules) judgeUnowned(s *attribution.GPUShare) {
	total := s.GPU.Memory.Total
	if !s.Memory.Known || !total.Known || total.Value <= 0 || s.GPU.Modes["numa"] == "enabled" {
		return
	}
	if part := s.Memory.Value / total.Value; part > memoryUnowned.limit(0) {
		r.find(memoryUnowned, subjectOf(s.GPU), time.Time{}, fmt.Sprintf("%s of %s", format.Percent(part), format.Size(total.Value)))
	}
}
