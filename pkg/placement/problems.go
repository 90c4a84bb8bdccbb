// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"slices"
	"strings"
)

// Problem is a part of a workload's placement that costs bandwidth.
type Problem struct {
	Name string // a name below
	// GPUs and HCAs are the devices concerned, as indexes into Devices: GPUs without a near HCA and the HCAs that would
	// be near, GPUs without GPUDirect and the HCAs near them, or the workload's GPUs and the idle HCAs.
	GPUs, HCAs []int
	Text       string
}

// The names of problems. docs/placement.md defines them.
const (
	ProblemNUMA   = "other_numa_node"
	ProblemSwitch = "other_pcie_switch"
	ProblemDirect = "gpudirect_unused"
	ProblemRails  = "idle_rails"
	ProblemPath   = "data_direct_path"
)

// judge finds the problems of workloads. It keeps what does not depend on the workload.
type judge struct {
	*Placement
	physical []int           // active HCAs, without virtual functions
	busy     map[string]bool // rails that some workload uses
	paths    []PeerPath      // empty on a node without Data Direct
	buffer   []int           // of candidates
}

func newJudge(p *Placement) *judge {
	j := &judge{Placement: p, busy: map[string]bool{}}
	for i := range p.Devices {
		d := &p.Devices[i]
		if d.Kind != HCA {
			continue
		}
		if d.Active && d.PF == "" {
			j.physical = append(j.physical, i)
		}
		if len(p.Owners[i]) > 0 {
			j.busy[d.rail()] = true
		}
	}
	if len(p.DataDirect) > 0 {
		j.paths = p.PeerPaths()
	}
	return j
}

func (j *judge) problems(w *Workload) []Problem {
	var problems []Problem
	add := func(name string, gpus, hcas []int, text string) {
		if len(gpus) > 0 {
			gpus, hcas = sorted(gpus), sorted(hcas)
			problems = append(problems, Problem{name, gpus, hcas, fmt.Sprintf(text, j.names(gpus), j.names(hcas))})
		}
	}
	candidates := j.candidates(w)
	gpus, hcas := j.far(w, candidates, func(r Relation) bool { return distance[r] < distance[SYS] })
	add(ProblemNUMA, gpus, hcas, "GPU %s: all HCAs that the workload uses are on another NUMA node; nearer are %s")
	apart := gpus
	gpus, hcas = j.far(w, candidates, Relation.sharesSwitch)
	gpus = slices.DeleteFunc(gpus, func(g int) bool { return slices.Contains(apart, g) })
	if len(gpus) > 0 {
		hcas = j.near(gpus, candidates)
	}
	add(ProblemSwitch, gpus, hcas, "GPU %s: no HCA that the workload uses is on its PCIe switch; there are %s")
	gpus, hcas = j.withoutDirect(w)
	add(ProblemDirect, gpus, hcas, "GPU %s: the workload registered no memory of GPUs, and its HCAs on the same PCIe switch are %s")
	gpus, hcas = j.idle(w, candidates)
	add(ProblemRails, gpus, hcas, "GPU %s: no workload uses the HCAs on the same PCIe switches %s")
	gpus, hcas, ports := j.redirected(w)
	add(ProblemPath, gpus, hcas, "GPU %s: ACS redirects transfers with the Data Direct function of %s: "+
		strings.ReplaceAll(ports, "%", "%%"))
	return problems
}

// candidates returns the HCAs that could replace the workload's HCAs: with an active port of the same link layer and at
// least the same rate, and no virtual functions except the workload's. It returns nil while a state of the workload's
// HCAs is unknown. The list is valid until the next call.
func (j *judge) candidates(w *Workload) []int {
	rate := 0.0
	for _, h := range w.HCAs {
		d := &j.Devices[h]
		if d.Unknown {
			return nil
		}
		if d.Active {
			rate = max(rate, d.Rate)
		}
	}
	j.buffer = j.buffer[:0]
	add := func(h int) {
		d := &j.Devices[h]
		sameLayer := func(own int) bool { return j.Devices[own].Active && j.Devices[own].LinkLayer == d.LinkLayer }
		if d.Active && d.Rate >= rate && slices.ContainsFunc(w.HCAs, sameLayer) {
			j.buffer = append(j.buffer, h)
		}
	}
	for _, h := range j.physical {
		add(h)
	}
	for _, h := range w.HCAs {
		if j.Devices[h].PF != "" {
			add(h)
		}
	}
	return j.buffer
}

// far returns the GPUs without a near HCA of the workload, and the candidates that would be near.
func (j *judge) far(w *Workload, candidates []int, near func(Relation) bool) (gpus, hcas []int) {
	for _, g := range w.GPUs {
		if j.unclear(w, g) {
			continue
		}
		isNear := func(h int) bool {
			r := j.Relation(g, h)
			return r != Unknown && near(r)
		}
		if slices.ContainsFunc(w.HCAs, isNear) {
			continue
		}
		var better []int
		for _, h := range candidates {
			if isNear(h) {
				better = append(better, h)
			}
		}
		if len(better) > 0 {
			gpus, hcas = append(gpus, g), append(hcas, better...)
		}
	}
	return gpus, hcas
}

// unclear reports whether the distance of the workload's HCAs to a GPU is unknown: a place or relation is unknown, or a
// Data Direct function on the GPU's switch may belong to one of the HCAs.
func (j *judge) unclear(w *Workload, gpu int) bool {
	path := j.Devices[gpu].Path
	if path == nil || slices.ContainsFunc(w.HCAs, func(h int) bool {
		return j.Devices[h].Path == nil || j.Relation(gpu, h) == Unknown
	}) {
		return true
	}
	return slices.ContainsFunc(j.DataDirect, func(d DataDirect) bool {
		return d.Unknown != "" && between(path, "", d.Path, "").sharesSwitch()
	})
}

func (j *judge) near(gpus, list []int) []int {
	var found []int
	for _, h := range list {
		if slices.ContainsFunc(gpus, func(g int) bool { return j.Relation(g, h).sharesSwitch() }) {
			found = append(found, h)
		}
	}
	return found
}

// withoutDirect returns the GPUs and HCAs of a workload that share a switch, if its processes use GPUs and all its
// registered memory is host memory.
func (j *judge) withoutDirect(w *Workload) (gpus, hcas []int) {
	if !w.Computes || w.GPUDirect != GPUDirectUnused {
		return nil, nil
	}
	for _, pair := range w.Pairs {
		if pair.Relation.sharesSwitch() {
			gpus, hcas = append(gpus, pair.GPU), append(hcas, pair.HCA)
		}
	}
	return gpus, hcas
}

// idle returns the HCAs near the workload's GPUs that no workload uses, if the workload uses some HCA near them, but
// fewer than it has GPUs. Functions of an HCA are one rail.
func (j *judge) idle(w *Workload, candidates []int) (gpus, hcas []int) {
	used := j.rails(j.near(w.GPUs, w.HCAs))
	if used == 0 || used >= len(w.GPUs) || slices.ContainsFunc(w.GPUs, func(g int) bool { return j.unclear(w, g) }) {
		return nil, nil
	}
	near := j.near(w.GPUs, candidates)
	for _, h := range near {
		if !j.busy[j.Devices[h].rail()] {
			hcas = append(hcas, h)
		}
	}
	if len(hcas) == 0 || used >= j.rails(near) {
		return nil, nil
	}
	for _, g := range w.GPUs {
		if len(j.near([]int{g}, hcas)) > 0 {
			gpus = append(gpus, g)
		}
	}
	return gpus, hcas
}

// rails counts the rails of HCAs.
func (j *judge) rails(hcas []int) int {
	names := map[string]bool{}
	for _, h := range hcas {
		names[j.Devices[h].rail()] = true
	}
	return len(names)
}
