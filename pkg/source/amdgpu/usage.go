// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"cmp"
	"time"

	"github.com/accelscope/accelscope/pkg/drm"
)

// use identifies one process on one GPU.
type use struct {
	gpu string // UUID
	pid int
}

type usage struct {
	compute     uint64 // memory by KFD
	client, gtt uint64 // memory by fdinfo, in VRAM and in GTT
	known       bool   // engines
	engines     map[string]float64
}

func (u *usage) engine(name string, ratio float64) {
	if u.engines == nil {
		u.engines = map[string]float64{}
	}
	u.known = true
	u.engines[name] = min(u.engines[name]+ratio, 1)
}

// usageScan computes the usage of all processes in one listing.
type usageScan struct {
	before, after map[counterKey]counter
	now           time.Time
	usages        map[use]*usage
	pools         pools
}

func (l *usageScan) usage(pid int, gpu string) *usage {
	u := l.usages[use{gpu, pid}]
	if u == nil {
		u = &usage{}
		l.usages[use{gpu, pid}] = u
	}
	return u
}

func (l *usageScan) memory(pid int, gpu string, bytes uint64) {
	if bytes > 0 {
		l.usage(pid, gpu).compute += bytes
	}
}

func (l *usageScan) compute(pid int, c computeUse) {
	k := counterKey{gpu: c.gpu, id: uint64(pid), kfd: true}
	seen := l.seen(k)
	if c.memory == 0 && c.copied == 0 && c.occupied == 0 {
		return // every process has the files of every GPU
	}
	l.memory(pid, c.gpu, c.memory)
	u := l.usage(pid, c.gpu)
	if c.copiedKnown {
		k.engine = "sdma"
		if rate, ok := l.rate(k, c.copied); ok {
			u.engine("sdma", rate/1e6/float64(max(c.sdma, 1)))
		}
	}
	if seen && c.occupiedKnown && c.units > 0 {
		u.engine("cu", float64(c.occupied)/float64(c.units))
	}
}

func (l *usageScan) client(pid int, k counterKey, c client) {
	used := c.memory > 0 || c.gtt > 0 && l.pools.gtt[k.gpu]
	for _, e := range c.engines {
		used = used || e.Busy > 0
	}
	seen := l.seen(k)
	if !used {
		return
	}
	u := l.usage(pid, k.gpu)
	u.client += c.memory
	u.gtt += c.gtt
	u.known = u.known || seen && c.counts
	for name, e := range c.engines {
		k.engine = name
		if rate, ok := l.rate(k, e.Busy); ok {
			u.engine(cmp.Or(engineNames[name], name), rate/1e9/float64(max(e.Capacity, 1)))
		}
	}
}

// engineNames are the model's names of engines, where they differ from the kernel's.
var engineNames = map[string]string{"dec": "decoder", "enc": "encoder"}

// counterKey identifies a counter of a client or of a KFD process. A key without an engine
// records that the client was read: the kernel does not list an engine that was never used.
type counterKey struct {
	gpu    string
	id     uint64
	kfd    bool
	engine string
}

type counter struct {
	drm.Counter
	at time.Time
}

func (l *usageScan) seen(k counterKey) bool {
	_, seen := l.before[k]
	l.after[k] = counter{at: l.now}
	return seen
}

// rate returns the growth of a counter per second since the last listing; false at the first.
func (l *usageScan) rate(k counterKey, value uint64) (float64, bool) {
	old, known := l.before[k]
	if !known {
		first := k
		first.engine = ""
		old, known = l.before[first]
	}
	if !known {
		l.after[k] = counter{drm.Counter{Value: value}, l.now}
		return 0, false
	}
	next, grown := old.Next(value)
	l.after[k] = counter{next, l.now}
	elapsed := l.now.Sub(old.at).Seconds()
	if elapsed <= 0 {
		return 0, false
	}
	return float64(grown) / elapsed, true
}
