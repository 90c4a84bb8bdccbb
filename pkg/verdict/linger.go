// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/model"
)

const (
	// unseen is how long a device may be missing in refreshes, for example while a call for it is late, and still be
	// the same device. Of the time between two refreshes, no more than this counts.
	unseen = time.Minute
	// A device that has entered an intermediate state this often does not end it by leaving it.
	flaps        = 3
	maxLingering = 4096
)

// lingerKey is a device in one of the states.
type lingerKey struct {
	state, device, netdev, uuid string
	port                        int
}

// stay is the time of a device in a state.
type stay struct {
	began, seen time.Time
	held        time.Duration // time in the state since began
	times       int
	value       string    // the last value; empty outside the state
	left        time.Time // when it left the state
	reset       time.Time // model.GPU.Reset
}

// Linger measures how long devices are in the states of IntermediateStates, over the refreshes of a sensor. The zero
// Linger is ready to use. It is not safe for concurrent use.
type Linger struct {
	stays map[lingerKey]*stay
}

// Update sets Lingering in the facts of a refresh, and adds the resulting problems of GPUs. A device that enters a
// state again and again, without being outside for as long as the state may last, counts like a device that stays in
// it.
func (l *Linger) Update(now time.Time, facts *model.Snapshot) {
	if l.stays == nil {
		l.stays = map[lingerKey]*stay{}
	}
	resets := map[string]time.Time{}
	for i := range facts.GPUs {
		resets[facts.GPUs[i].UUID] = facts.GPUs[i].Reset
	}
	facts.Lingering = nil
	var row *IntermediateState
	follow := func(k lingerKey, value string) {
		k.state = row.Name
		if s := l.next(k, value, resets[k.uuid], now); s != nil {
			l.judge(row, k, s, now, facts)
		}
	}
	for i := range IntermediateStates {
		if row = &IntermediateStates[i]; row.present != nil {
			row.present(facts, follow)
		}
	}
	for k, s := range l.stays {
		if now.Sub(s.seen) > unseen {
			delete(l.stays, k)
		}
	}
	slices.SortFunc(facts.Lingering, func(a, b model.Lingering) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.UUID, b.UUID))
	})
	addProblems(facts)
}

// next returns the stay of a device after another refresh, or nil if the device is and was in no intermediate state.
func (l *Linger) next(k lingerKey, value string, reset, now time.Time) *stay {
	s := l.stays[k]
	if s != nil && !s.reset.Equal(reset) || value == works { // after a reset the time begins anew
		delete(l.stays, k)
		s = nil
	}
	if value == works {
		return nil
	}
	if s == nil {
		if value == "" || len(l.stays) >= maxLingering {
			return nil
		}
		s = &stay{began: now, seen: now, reset: reset}
		l.stays[k] = s
	}
	switch {
	case value == "" && s.value != "":
		s.left = now
	case value != "" && s.value == "":
		s.times++
	}
	if value != "" && s.value != "" {
		s.held += min(now.Sub(s.seen), unseen)
	}
	s.value, s.seen = value, now
	return s
}

// judge adds a device that is in a state for too long, and forgets a device that has left the state for as long.
func (l *Linger) judge(row *IntermediateState, k lingerKey, s *stay, now time.Time, facts *model.Snapshot) {
	switch {
	case s.value == "" && now.Sub(s.left) >= row.Normal:
		delete(l.stays, k)
	case s.held >= row.Normal && (s.value != "" || s.times >= flaps):
		facts.Lingering = append(facts.Lingering, model.Lingering{
			State: row.Name, Value: s.value, Device: k.device, Port: k.port, Netdev: k.netdev, UUID: k.uuid,
			Since: s.began, Held: s.held, Times: s.times,
		})
	}
}

// addProblems adds the problems of GPUs that stay in a state for too long.
func addProblems(facts *model.Snapshot) {
	late := func(state, uuid string) bool {
		return slices.ContainsFunc(facts.Lingering, func(l model.Lingering) bool { return l.State == state && l.UUID == uuid })
	}
	if len(facts.Lingering) == 0 && !slices.ContainsFunc(facts.GPUs, func(g model.GPU) bool { return g.Fabric != "" }) {
		return
	}
	facts.GPUs = slices.Clone(facts.GPUs) // the source keeps its list unchanged
	for i := range facts.GPUs {
		g := &facts.GPUs[i]
		add := func(name string, active bool) {
			g.Problems = append(slices.Clip(g.Problems), model.GPUCondition{Name: name, Active: active})
		}
		if g.Fabric != "" && g.Problems != nil {
			add(model.ProblemFabricNotReady, late(stateFabric, g.UUID))
		}
		if late(statePower, g.UUID) { // meanwhile nothing else is known about the GPU
			add(model.ProblemPowerChange, true)
		}
	}
}

// lingerRules judge devices that stay in an intermediate state. For GPUs this gives problems, which gpuRules find.
type lingerRules struct {
	*round
	*hcaRoles
}

func (r lingerRules) judge() {
	for i := range r.Facts.Lingering {
		l := &r.Facts.Lingering[i]
		row := rowOf(l.State)
		switch {
		case row == nil || l.UUID != "":
		case l.Device == "" && l.Netdev == "":
			r.find(row.Found, Subject{Kind: OfNode}, l.Since, lingerEvidence(r.At, l))
		default:
			r.judgeTraining(row.Found, l)
		}
	}
	if m := r.Facts.FabricManager; m != nil {
		starts := r.counted(counterKey{condition: fabricManagerLost}, m.Starts, nil)
		if s := (Subject{Kind: OfNode}); float64(starts) > fabricManagerLost.limit(0) && !r.has(fabricManagerLost, s) {
			r.find(fabricManagerLost, s, time.Time{}, grewIn("starts of nv-fabricmanager", starts, fabricManagerLost.Window))
		}
	}
}

// judgeTraining judges a port, a leg, or a physical function without an HCA, if its link does not come up. A port has
// each condition once, and not together with conditions that follow from it.
func (r lingerRules) judgeTraining(c *Condition, l *model.Lingering) {
	port := Subject{Kind: OfPort, Device: l.Device, Port: l.Port}
	s := port
	if all := r.links.of(portKey{l.Device, l.Port}); l.Device == "" {
		s = Subject{Kind: OfPort, Device: l.Netdev}
	} else if len(all) > 1 {
		s.Detail = l.Netdev
	}
	if r.management[l.Device] || r.linkOfAnother(l) || r.has(portDown, port) || r.has(bondDegraded, s) || r.has(c, port) || r.has(c, s) {
		return
	}
	evidence := []string{lingerEvidence(r.At, l)}
	if s.Detail != "" {
		evidence = append(evidence, "interface "+s.Detail)
	}
	r.find(c, s, l.Since, evidence...)
}

// rowOf returns the row of a state, or nil.
func rowOf(state string) *IntermediateState {
	for i := range IntermediateStates {
		if IntermediateStates[i].Name == state {
			return &IntermediateStates[i]
		}
	}
	return nil
}

// lingerEvidence describes how long a device is in a state.
func lingerEvidence(now time.Time, l *model.Lingering) string {
	switch {
	case l.Value == "":
		return fmt.Sprintf("%d times for %s since %s ago", l.Times, format.Span(l.Held), format.Span(now.Sub(l.Since)))
	case l.Times > 1:
		return fmt.Sprintf("%s, %d times for %s since %s ago", l.Value, l.Times, format.Span(l.Held), format.Span(now.Sub(l.Since)))
	}
	return l.Value + " for " + format.Span(l.Held)
}
