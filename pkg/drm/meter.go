// SPDX-License-Identifier: Apache-2.0

package drm

import (
	"cmp"
	"time"

	"github.com/accelscope/accelscope/pkg/gpuuse"
	"github.com/accelscope/accelscope/pkg/model"
)

// Meter adds up who used GPUs, by listings. The zero Meter is ready to use.
type Meter struct {
	gpuuse.Table
	last  time.Time       // of the last listing
	awake map[string]bool // then, whole GPUs by UUID
}

// negligible is the ratio below which a GPU did nothing.
const negligible = 0.005

// Add adds a listing of the GPUs that are awake, which is made every interval. activity returns the ratio of a GPU, or of a partition of
// it, that a process used since the last listing. With an error of the listing, users may be missing.
func (m *Meter) Add(
	at time.Time, interval time.Duration, gpus []model.GPU, processes []model.GPUProcess, err error,
	activity func(*model.GPUProcess) model.Optional,
) {
	took := at.Sub(m.last)
	whole := took > 0 && took < gpuuse.BlindAfter*interval && err == nil
	rounds, awake := map[string]*gpuuse.Round{}, map[string]bool{}
	parts, whose := map[string]int{}, map[string]string{}
	for i := range gpus {
		g := &gpus[i]
		id := cmp.Or(g.Parent, g.UUID)
		whose[g.UUID] = id
		if g.UUID != id {
			parts[id]++
		}
		if rounds[id] == nil {
			rounds[id] = &gpuuse.Round{GPU: id, Whole: whole && m.awake[id]}
			awake[id] = true
		}
		if g.UUID == id {
			rounds[id].Active = !g.Utilization.Known || g.Utilization.Value >= negligible
		}
	}
	for i := range processes {
		p := &processes[i]
		r := rounds[whose[p.GPU]]
		if r == nil {
			continue
		}
		ratio := activity(p)
		r.Active = r.Active || !ratio.Known || ratio.Value > 0
		r.Uses = append(r.Uses, gpuuse.Use{
			Cgroup: p.Cgroup, Unknown: !ratio.Known,
			Busy: time.Duration(ratio.Value / float64(max(parts[r.GPU], 1)) * float64(took)),
		})
	}
	for _, r := range rounds {
		m.Table.Add(r)
	}
	m.last, m.awake = at, awake
}
