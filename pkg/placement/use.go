// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// Workload is what one owner uses.
type Workload struct {
	Owner int // index into the owners of the Attribution
	// GPUs are the GPUs that its processes use or that are assigned to it, HCAs the HCAs with its queue pairs: sorted
	// indexes into Devices.
	GPUs, HCAs []int
	Computes   bool // its processes use a GPU
	GPUDirect  GPUDirect
	Pairs      []Pair
	Problems   []Problem
}

// GPUDirect is whether HCAs access a workload's GPU memory directly.
type GPUDirect string

// The values of GPUDirect. It is unknown if the kind of some registered memory is unknown.
const (
	GPUDirectUsed    GPUDirect = "used"
	GPUDirectUnused  GPUDirect = "unused"
	GPUDirectUnknown GPUDirect = "unknown"
)

// Pair is a GPU and an HCA that a workload uses.
type Pair struct {
	GPU, HCA int // indexes into Devices
	Relation Relation
}

// usesOf returns what each owner uses, by owner, without the unattributed share.
func usesOf(t *Topology, a *attribution.Attribution) []Workload {
	gpus, hcas := map[string]int{}, map[string]int{}
	for i := range t.Devices {
		switch d := &t.Devices[i]; d.Kind {
		case GPU:
			gpus[d.UUID] = i
		case HCA:
			hcas[d.Name] = i
		}
	}
	users := map[int]*Workload{}
	of := func(owner int) *Workload {
		if users[owner] == nil {
			users[owner] = &Workload{Owner: owner, GPUDirect: GPUDirectUnknown}
		}
		return users[owner]
	}
	const unattributed = 0
	for i := range a.GPUs {
		s := &a.GPUs[i]
		d, ok := gpus[cmp.Or(s.GPU.Parent, s.GPU.UUID)]
		if !ok || s.Owner == unattributed || s.Processes == 0 && s.Assigned == nil {
			continue
		}
		w := of(s.Owner)
		w.GPUs = append(w.GPUs, d)
		w.Computes = w.Computes || s.Processes > 0
	}
	for i := range a.Objects {
		s := &a.Objects[i]
		if d, ok := hcas[s.Device]; ok && s.Owner != unattributed && s.Type == model.QP && s.Current > 0 {
			w := of(s.Owner)
			w.HCAs = append(w.HCAs, d)
		}
	}
	direct(users, a)
	uses := make([]Workload, 0, len(users))
	for _, owner := range slices.Sorted(maps.Keys(users)) {
		w := users[owner]
		w.GPUs, w.HCAs = sorted(w.GPUs), sorted(w.HCAs)
		uses = append(uses, *w)
	}
	return uses
}

func sorted(devices []int) []int {
	slices.Sort(devices)
	return slices.Compact(devices)
}

// direct sets GPUDirect from the kinds of registered memory. Another exporter's dma-buf may be GPU memory.
func direct(users map[int]*Workload, a *attribution.Attribution) {
	bytes := map[int]map[model.Memory]uint64{}
	for _, r := range a.Registered {
		if users[r.Owner] == nil {
			continue
		}
		if bytes[r.Owner] == nil {
			bytes[r.Owner] = map[model.Memory]uint64{}
		}
		bytes[r.Owner][r.Memory] += r.Bytes
	}
	for owner, by := range bytes {
		switch {
		case by[model.GPUMemory] > 0:
			users[owner].GPUDirect = GPUDirectUsed
		case by[model.HostMemory] > 0 && by[model.DMABufMemory] == 0 && by[model.UnknownMemory] == 0:
			users[owner].GPUDirect = GPUDirectUnused
		}
	}
}

func (t *Topology) pairs(w *Workload) []Pair {
	pairs := make([]Pair, 0, len(w.GPUs)*len(w.HCAs))
	for _, g := range w.GPUs {
		for _, h := range w.HCAs {
			pairs = append(pairs, Pair{g, h, t.Relation(g, h)})
		}
	}
	return pairs
}

func (t *Topology) names(devices []int) string {
	names := make([]string, len(devices))
	for i, d := range devices {
		names[i] = t.Devices[d].Name
	}
	return strings.Join(names, ", ")
}
