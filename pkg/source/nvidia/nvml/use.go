// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

const (
	// blindAfter is the number of intervals after which users may have come and gone between two rounds.
	blindAfter = 3
	// shortestIdle is the shortest time whose mean power counts.
	shortestIdle = time.Second
	// negligible is the ratio below which an engine did nothing.
	negligible = 0.005
)

// useMeter measures the time between rounds, and the power while nothing runs.
type useMeter struct {
	at     time.Time      // of the last round
	energy model.Optional // then, in joules
	idle   model.Optional // the lowest power, in watts
}

// round ends a round at a time with an energy counter. It returns the time since the round before; 0 if it is unknown.
// In a time over longest, the GPU may have been suspended.
func (m *useMeter) round(at time.Time, energy model.Optional, active bool, longest time.Duration) (took time.Duration) {
	if !m.at.IsZero() {
		took = at.Sub(m.at)
	}
	if !active && took >= shortestIdle && took < longest && energy.Known && m.energy.Known {
		watts := (energy.Value - m.energy.Value) / took.Seconds()
		if watts > 0 && (!m.idle.Known || watts < m.idle.Value) {
			m.idle = model.Some(watts)
		}
	}
	m.at, m.energy = at, energy
	return took
}

// reportUse passes on the processes of the round and their activity, and updates the idle power.
func (r *roundReader) reportUse() {
	g := &r.draft.facts
	longest := blindAfter * r.o.Interval
	took := r.use.round(r.valuesAt, g.Energy, r.active(), longest)
	g.IdlePower = r.use.idle
	if r.listed == nil {
		return
	}
	l := wire.Listing{UUID: r.uuid, Split: r.mig.Load()}
	l.Whole = took > 0 && took < longest && (r.draft.processes != nil || l.Split)
	for _, p := range r.draft.processes {
		u, ran := r.sampler.uses[p.PID]
		l.Processes = append(l.Processes, wire.Use{
			PID: p.PID, Listed: true, Unknown: !ran && p.Engines == nil && !p.MPS, Busy: busy(u[0], took),
		})
	}
	for pid, u := range r.sampler.uses {
		if !slices.ContainsFunc(r.draft.processes, func(p model.GPUProcess) bool { return p.PID == pid }) {
			l.Processes = append(l.Processes, wire.Use{PID: pid, Busy: busy(u[0], took)})
		}
	}
	for _, p := range slices.Concat(r.draft.bare, r.draft.parts) {
		if i := slices.IndexFunc(p.Engines, func(f model.Figure) bool { return f.Name == "sm_active" }); i >= 0 {
			l.Instances = append(l.Instances, wire.Use{Instance: p.Instance, Unknown: took == 0, Busy: busy(p.Engines[i].Value, took)})
		}
	}
	r.listed(l)
}

// active reports whether anything ran on the GPU since the round before, or whether this is unknown.
func (r *roundReader) active() bool {
	known := false
	for _, e := range r.draft.facts.Engines {
		switch e.Name {
		case "sm", "gr_active":
			known = true
		case "memory", "encoder", "decoder", "jpeg", "ofa":
		default:
			continue
		}
		if e.Value >= negligible {
			return true
		}
	}
	for _, u := range r.sampler.uses {
		if u != (use{}) {
			return true
		}
	}
	return !known
}

func busy(ratio float64, took time.Duration) time.Duration {
	return time.Duration(ratio * float64(took))
}
