// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
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

const unattributed = 0 // the owner

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
	users := make([]Workload, len(a.Owners))
	for i := range a.GPUs {
		s := &a.GPUs[i]
		d, ok := gpus[cmp.Or(s.GPU.Parent, s.GPU.UUID)]
		if !ok || s.Owner == unattributed || s.Processes == 0 && s.Assigned == nil {
			continue
		}
		w := &users[s.Owner]
		w.GPUs = append(w.GPUs, d)
		w.Computes = w.Computes || s.Processes > 0
	}
	for i := range a.Objects {
		s := &a.Objects[i]
		if d, ok := hcas[s.Device]; ok && s.Owner != unattributed && s.Type == model.QP && s.Current > 0 {
			w := &users[s.Owner]
			w.HCAs = append(w.HCAs, d)
		}
	}
	direct(users, a)
	uses := users[:0]
	for owner, w := range users {
		if len(w.GPUs) > 0 || len(w.HCAs) > 0 {
			w.Owner, w.GPUs, w.HCAs = owner, sorted(w.GPUs), sorted(w.HCAs)
			uses = append(uses, w)
		}
	}
	return uses
}

func sorted(devices []int) []int {
	slices.Sort(devices)
	return slices.Compact(devices)
}

// direct sets GPUDirect from the kinds of registered memory. Another exporter's dma-buf may be GPU memory.
func direct(users []Workload, a *attribution.Attribution) {
	type memory struct{ gpu, host, unclear bool }
	registered := make([]memory, len(users))
	for i := range a.Registered {
		s := &a.Registered[i]
		if s.Owner == unattributed || s.Bytes == 0 {
			continue
		}
		m := &registered[s.Owner]
		switch s.Memory {
		case model.GPUMemory:
			m.gpu = true
		case model.HostMemory:
			m.host = true
		case model.DMABufMemory, model.UnknownMemory:
			m.unclear = true
		}
	}
	for owner, m := range registered {
		switch {
		case m.gpu:
			users[owner].GPUDirect = GPUDirectUsed
		case m.host && !m.unclear:
			users[owner].GPUDirect = GPUDirectUnused
		default:
			users[owner].GPUDirect = GPUDirectUnknown
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
