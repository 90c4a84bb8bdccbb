// SPDX-License-Identifier: Apache-2.0

package intel

import (
	"cmp"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// usage is the use of one GPU by one process.
type usage struct {
	memory  model.Optional
	engines drm.Engines
}

// scan computes the usage of all processes in one listing.
type scan struct {
	counters *drm.Counters
	now      time.Duration // since the first listing
	usages   map[drm.Use]*usage
}

// engineNames are the exported names of engines, which are i915's: xe uses the names of the hardware.
var engineNames = map[string]string{"rcs": "render", "bcs": "copy", "vcs": "video", "vecs": "video-enhance", "ccs": "compute"}

// busiest returns the ratio of the busiest engine of a process; unknown if its engines are.
func busiest(p *model.GPUProcess) model.Optional {
	if p.Engines == nil {
		return model.Optional{}
	}
	most := 0.0
	for _, e := range p.Engines {
		most = max(most, e.Value)
	}
	return model.Some(most)
}

// client adds a client to the usage of a process, unless it was added for another process, or was never used.
func (s *scan) client(by drm.Use, c drm.Client) {
	self := drm.Key{GPU: by.GPU, ID: c.ID}
	if s.counters.Has(self) {
		return
	}
	seen := s.counters.Record(self, 0)
	memory, local := localMemory(c.Memory)
	used := memory > 0
	rates := map[string]float64{}
	for name, e := range c.Engines {
		used = used || max(e.Busy, e.Cycles) > 0
		if rate, ok := s.rate(drm.Key{GPU: by.GPU, ID: c.ID, Engine: name}, e); ok && max(e.Busy, e.Cycles) > 0 {
			rates[name] = rate / float64(max(e.Capacity, 1))
		}
	}
	if !used {
		return
	}
	u := s.usages[by]
	if u == nil {
		u = &usage{}
		s.usages[by] = u
	}
	if local {
		u.memory = model.Some(u.memory.Value + float64(memory))
	}
	u.engines.Known = u.engines.Known || seen
	for name, rate := range rates {
		u.engines.Add(cmp.Or(engineNames[name], name), rate)
	}
}

// rate records the reading of an engine, and returns the busy ratio since the last listing; false if it is not known.
func (s *scan) rate(k drm.Key, e drm.Engine) (float64, bool) {
	value, clock := e.Busy, uint64(s.now) // in nanoseconds
	if e.Clock > 0 {
		value, clock = e.Cycles, e.Clock
	}
	grown, elapsed, ok := s.counters.Grow(k, value, clock)
	if !ok {
		return 0, false
	}
	return float64(grown) / float64(elapsed), true
}

// localMemory returns the memory of the GPU's own that a client has resident; false for a GPU without its own memory,
// which uses the host's memory. The regions are local0 (i915), vram0 (xe), and the part of them that firmware reserved.
func localMemory(regions map[string]uint64) (total uint64, local bool) {
	for name, size := range regions {
		if name = strings.TrimPrefix(name, "stolen-"); strings.HasPrefix(name, "local") || strings.HasPrefix(name, "vram") {
			total, local = total+size, true
		}
	}
	return total, local
}
