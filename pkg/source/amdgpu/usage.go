// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"cmp"
	"time"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// usage is the use of one GPU by one process.
type usage struct {
	compute     uint64 // memory by KFD
	client, gtt uint64 // memory by fdinfo, in VRAM and in GTT
	engines     drm.Engines
}

// usageScan computes the usage of all processes in one listing.
type usageScan struct {
	counters *drm.Counters
	now      time.Duration // since the first listing
	usages   map[drm.Use]*usage
	pools    pools
}

func (l *usageScan) usage(pid int, gpu string) *usage {
	u := l.usages[drm.Use{GPU: gpu, PID: pid}]
	if u == nil {
		u = &usage{}
		l.usages[drm.Use{GPU: gpu, PID: pid}] = u
	}
	return u
}

// activity returns how much of the GPU the process used since the last listing: for compute, the compute units that it occupied at the
// moment of the listing, else its busiest engine.
func (u *usage) activity() model.Optional {
	if _, occupied := u.engines.Ratios["cu"]; !u.engines.Known || u.compute > 0 && !occupied {
		return model.Optional{}
	}
	most := 0.0
	for name, ratio := range u.engines.Ratios {
		if name != "sdma" {
			most = max(most, ratio)
		}
	}
	return model.Some(most)
}

func (l *usageScan) memory(pid int, gpu string, bytes uint64) {
	if bytes > 0 {
		l.usage(pid, gpu).compute += bytes
	}
}

func (l *usageScan) compute(pid int, c computeUse) {
	k := drm.Key{GPU: c.gpu, ID: uint64(pid), Process: true}
	seen := l.counters.Record(k, uint64(l.now))
	if c.memory == 0 && c.copied == 0 && c.occupied == 0 {
		return // every process has the files of every GPU
	}
	l.memory(pid, c.gpu, c.memory)
	u := l.usage(pid, c.gpu)
	if c.copiedKnown {
		k.Engine = "sdma"
		if rate, ok := l.rate(k, c.copied); ok {
			u.engines.Add("sdma", rate/1e6/float64(max(c.sdma, 1)))
		}
	}
	if seen && c.occupiedKnown && c.units > 0 {
		u.engines.Add("cu", float64(c.occupied)/float64(c.units))
	}
}

func (l *usageScan) client(pid int, k drm.Key, c client) {
	used := c.memory > 0 || c.gtt > 0 && l.pools.gtt[k.GPU]
	for _, e := range c.engines {
		used = used || e.Busy > 0
	}
	seen := l.counters.Record(k, uint64(l.now))
	if !used {
		return
	}
	u := l.usage(pid, k.GPU)
	u.client += c.memory
	u.gtt += c.gtt
	u.engines.Known = u.engines.Known || seen && c.counts
	for name, e := range c.engines {
		k.Engine = name
		if rate, ok := l.rate(k, e.Busy); ok {
			u.engines.Add(cmp.Or(engineNames[name], name), rate/1e9/float64(max(e.Capacity, 1)))
		}
	}
}

// engineNames are the model's names of engines, where they differ from the kernel's.
var engineNames = map[string]string{"dec": "decoder", "enc": "encoder"}

// rate returns the growth of a counter per second since the last listing; false at the first.
func (l *usageScan) rate(k drm.Key, value uint64) (float64, bool) {
	grown, elapsed, ok := l.counters.GrowUnlisted(k, value, uint64(l.now))
	if !ok {
		return 0, false
	}
	return float64(grown) / time.Duration(elapsed).Seconds(), true
}
