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
	known   bool // engines
	engines map[string]float64
}

// scan computes the usage of all processes in one listing.
type scan struct {
	before, after map[counterKey]counter
	now           time.Duration // since the first listing
	usages        map[use]*usage
}

// counterKey identifies the counter of one engine of a client. A key without an engine records that the client was read.
type counterKey struct {
	gpu    string
	id     uint64
	engine string
}

// counter is the use of an engine, and the clock that its rate refers to: of the GPU in cycles, else in nanoseconds.
type counter struct {
	drm.Counter
	clock uint64
}

// engineNames are the exported names of engines, which are i915's: xe has those of the hardware.
var engineNames = map[string]string{"rcs": "render", "bcs": "copy", "vcs": "video", "vecs": "video-enhance", "ccs": "compute"}

// client adds a client to the usage of a process, unless it was added for another process, or was never used.
func (s *scan) client(by use, c drm.Client) {
	self := counterKey{gpu: by.gpu, id: c.ID}
	if _, again := s.after[self]; again {
		return
	}
	s.after[self] = counter{}
	memory, local := localMemory(c.Memory)
	used := memory > 0
	for name, e := range c.Engines {
		used = used || max(e.Busy, e.Cycles) > 0
		s.count(counterKey{by.gpu, c.ID, name}, e)
	}
	if !used {
		return
	}
	u := s.usages[by]
	if u == nil {
		u = &usage{engines: map[string]float64{}}
		s.usages[by] = u
	}
	if local {
		u.memory = model.Some(u.memory.Value + float64(memory))
	}
	_, seen := s.before[self]
	u.known = u.known || seen
	for name, e := range c.Engines {
		if rate, ok := s.rate(counterKey{by.gpu, c.ID, name}); ok && max(e.Busy, e.Cycles) > 0 {
			name = cmp.Or(engineNames[name], name)
			u.engines[name] = min(u.engines[name]+rate/float64(max(e.Capacity, 1)), 1)
		}
	}
}

// count records the reading of an engine.
func (s *scan) count(k counterKey, e drm.Engine) {
	value, clock := e.Busy, uint64(s.now)
	if e.Clock > 0 {
		value, clock = e.Cycles, e.Clock
	}
	old, known := s.before[k]
	if !known || clock < old.clock { // the clock of a GPU that was suspended may start again
		s.after[k] = counter{drm.Counter{Value: value}, clock}
		return
	}
	next, _ := old.Next(value)
	s.after[k] = counter{next, clock}
}

// rate returns the busy ratio of an engine since the last listing; false at the first, and after its clock started again.
func (s *scan) rate(k counterKey) (float64, bool) {
	old, known := s.before[k]
	now := s.after[k]
	if !known || now.clock <= old.clock {
		return 0, false
	}
	return float64(now.Value-min(old.Value, now.Value)) / float64(now.clock-old.clock), true
}

// localMemory returns the memory of the GPU's own that a client has resident; false for a GPU without its own memory,
// which uses that of the host. The regions are local0 (i915), vram0 (xe), and the part of them that firmware reserved.
func localMemory(regions map[string]uint64) (total uint64, local bool) {
	for name, size := range regions {
		if name = strings.TrimPrefix(name, "stolen-"); strings.HasPrefix(name, "local") || strings.HasPrefix(name, "vram") {
			total, local = total+size, true
		}
	}
	return total, local
}
