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

func (p *Placement) problems(w *Workload) []Problem {
	var problems []Problem
	add := func(name string, gpus, hcas []int, text string) {
		if len(gpus) > 0 {
			gpus, hcas = sorted(gpus), sorted(hcas)
			problems = append(problems, Problem{name, gpus, hcas, fmt.Sprintf(text, p.names(gpus), p.names(hcas))})
		}
	}
	candidates := p.candidates(w)
	gpus, hcas := p.far(w, candidates, func(r Relation) bool { return distance[r] < distance[SYS] })
	add(ProblemNUMA, gpus, hcas, "GPU %s: all HCAs that the workload uses are on another NUMA node; nearer are %s")
	apart := gpus
	gpus, hcas = p.far(w, candidates, Relation.sharesSwitch)
	gpus = slices.DeleteFunc(gpus, func(g int) bool { return slices.Contains(apart, g) })
	if len(gpus) > 0 {
		hcas = p.near(gpus, candidates)
	}
	add(ProblemSwitch, gpus, hcas, "GPU %s: no HCA that the workload uses is on its PCIe switch; there are %s")
	gpus, hcas = p.withoutDirect(w)
	add(ProblemDirect, gpus, hcas, "GPU %s: the workload registered no memory of GPUs, and its HCAs on the same PCIe switch are %s")
	gpus, hcas = p.idle(w, candidates)
	add(ProblemRails, gpus, hcas, "GPU %s: no workload uses the HCAs on the same PCIe switches %s")
	gpus, hcas, ports := p.redirected(w)
	add(ProblemPath, gpus, hcas, "GPU %s: ACS redirects transfers with the Data Direct function of %s: "+
		strings.ReplaceAll(ports, "%", "%%"))
	return problems
}

// candidates returns the HCAs that could replace the workload's HCAs: with an active port of the same link layer and at
// least the same rate, and no virtual functions except the workload's. It returns nil while a state of the workload's
// HCAs is unknown.
func (p *Placement) candidates(w *Workload) []int {
	layers, rate := map[string]bool{}, 0.0
	for _, h := range w.HCAs {
		d := &p.Devices[h]
		if d.Unknown {
			return nil
		}
		if d.Active {
			layers[d.LinkLayer], rate = true, max(rate, d.Rate)
		}
	}
	var found []int
	for i := range p.Devices {
		d := &p.Devices[i]
		if d.Kind == HCA && d.Active && layers[d.LinkLayer] && d.Rate >= rate && (d.PF == "" || slices.Contains(w.HCAs, i)) {
			found = append(found, i)
		}
	}
	return found
}

// far returns the GPUs without a near HCA of the workload, and the candidates that would be near.
func (p *Placement) far(w *Workload, candidates []int, near func(Relation) bool) (gpus, hcas []int) {
	for _, g := range w.GPUs {
		if p.unclear(w, g) {
			continue
		}
		isNear := func(h int) bool {
			r := p.Relation(g, h)
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
func (p *Placement) unclear(w *Workload, gpu int) bool {
	path := p.Devices[gpu].Path
	if path == nil || slices.ContainsFunc(w.HCAs, func(h int) bool {
		return p.Devices[h].Path == nil || p.Relation(gpu, h) == Unknown
	}) {
		return true
	}
	return slices.ContainsFunc(p.DataDirect, func(d DataDirect) bool {
		return d.Unknown != "" && between(path, "", d.Path, "").sharesSwitch()
	})
}

func (p *Placement) near(gpus, list []int) []int {
	var found []int
	for _, h := range list {
		if slices.ContainsFunc(gpus, func(g int) bool { return p.Relation(g, h).sharesSwitch() }) {
			found = append(found, h)
		}
	}
	return found
}

// withoutDirect returns the GPUs and HCAs of a workload that share a switch, if its processes use GPUs and all its
// registered memory is host memory.
func (p *Placement) withoutDirect(w *Workload) (gpus, hcas []int) {
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
func (p *Placement) idle(w *Workload, candidates []int) (gpus, hcas []int) {
	if slices.ContainsFunc(w.GPUs, func(g int) bool { return p.unclear(w, g) }) {
		return nil, nil
	}
	near := p.near(w.GPUs, candidates)
	used := map[string]bool{} // rails of the workload
	for _, h := range p.near(w.GPUs, w.HCAs) {
		used[p.Devices[h].rail()] = true
	}
	busy := map[string]bool{} // rails of any workload
	for i := range p.Devices {
		if d := &p.Devices[i]; d.Kind == HCA && len(p.Owners[i]) > 0 {
			busy[d.rail()] = true
		}
	}
	rails := map[string]bool{}
	for _, h := range near {
		rails[p.Devices[h].rail()] = true
		if !busy[p.Devices[h].rail()] {
			hcas = append(hcas, h)
		}
	}
	if len(hcas) == 0 || len(used) == 0 || len(used) >= min(len(w.GPUs), len(rails)) {
		return nil, nil
	}
	for _, g := range w.GPUs {
		if len(p.near([]int{g}, hcas)) > 0 {
			gpus = append(gpus, g)
		}
	}
	return gpus, hcas
}
