// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"slices"
	"time"

	"github.com/accelscope/accelscope/pkg/gpuuse"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// negligible is the ratio below which an engine did nothing.
const negligible = 0.005

// reportUse passes on the processes of the round and their activity.
func (r *roundReader) reportUse() {
	took := time.Duration(0) // unknown
	if !r.listedAt.IsZero() {
		took = r.valuesAt.Sub(r.listedAt)
	}
	r.listedAt = r.valuesAt
	if r.listed == nil {
		return
	}
	longest := gpuuse.BlindAfter * r.o.Interval
	l := wire.Listing{UUID: r.uuid, Active: r.active(), Split: r.mig.Load()}
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
