// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"slices"

	"github.com/accelscope/accelscope/pkg/model"
)

// maxLinks bounds the remembered links of a GPU. The largest GPU has 18.
const maxLinks = 64

// gpuLinks are the known links of a GPU: the numbers of the links that are up.
type gpuLinks struct {
	gpu *model.GPU
	up  []int
}

// modelKey identifies GPUs that should have equal links.
type modelKey struct {
	vendor model.Vendor
	name   string
	kind   model.LinkKind
}

// judgeLinks adds the problem link_down, active or not, to the GPUs that report states of links, and to their parts: a
// link that was up is down, or fewer links are up than on another GPU of the model.
func (i *Inventory) judgeLinks(facts *model.Snapshot) {
	known := map[string]gpuLinks{} // by UUID
	best := map[modelKey]gpuLinks{}
	for n := range facts.GPUs {
		g := &facts.GPUs[n]
		l, ok := linksOf(g)
		if !ok {
			continue
		}
		known[g.UUID] = l
		if k := l.model(); best[k].gpu == nil || len(l.up) > len(best[k].up) {
			best[k] = l
		}
		i.rememberLinks(l)
	}
	if len(known) == 0 {
		return
	}
	facts.GPUs = slices.Clone(facts.GPUs) // sources keep their list
	for n := range facts.GPUs {
		g := &facts.GPUs[n]
		uuid := g.UUID
		if g.Parent != "" {
			uuid = g.Parent
		}
		if l, ok := known[uuid]; ok && g.Problems != nil {
			down := i.hasFewer(l, l.gpu.Name != "" && fewer(l, best[l.model()], facts.GPUs)) || len(i.wereUp(l)) > 0
			g.Problems = append(slices.Clip(g.Problems), model.GPUCondition{Name: model.ProblemLinkDown, Active: down})
		}
	}
}

// linksOf returns the links of a GPU; known is false without a known state. A GPU in MIG mode is left out: MIG cannot
// use links, and the driver may disable them.
func linksOf(g *model.GPU) (l gpuLinks, known bool) {
	if g.Parent != "" || g.Modes["mig"] == "enabled" {
		return l, false
	}
	l = gpuLinks{gpu: g, up: []int{}}
	for _, link := range g.Links {
		known = known || link.Up.Known
		if link.Up == model.Some(1) && len(l.up) < maxLinks {
			l.up = append(l.up, link.Number)
		}
	}
	return l, known
}

func (l gpuLinks) model() modelKey {
	return modelKey{l.gpu.Vendor, l.gpu.Name, l.gpu.Links[0].Kind}
}

func (i *Inventory) rememberLinks(l gpuLinks) {
	d := i.devices[key{model.KindGPU, l.gpu.UUID}]
	if d == nil { // there was no room
		return
	}
	d.up = l.up
	for _, n := range l.up {
		if !slices.Contains(d.Links, n) && len(d.Links) < maxLinks {
			d.Links, i.changed = append(slices.Clip(d.Links), n), true
		}
	}
}

// down returns the links that were up and are not up, or nil if the present links are unknown.
func (d *device) down() (links []int) {
	for _, n := range d.Links {
		if d.up != nil && !slices.Contains(d.up, n) {
			links = append(links, n)
		}
	}
	return links
}

// wereUp returns the links that were up and are reported down.
func (i *Inventory) wereUp(l gpuLinks) []int {
	d := i.devices[key{model.KindGPU, l.gpu.UUID}]
	if d == nil {
		return nil
	}
	return slices.DeleteFunc(d.down(), func(n int) bool {
		return !slices.ContainsFunc(l.gpu.Links, func(link model.GPULink) bool { return link.Number == n && link.Up == model.Some(0) })
	})
}

// hasFewer notes whether fewer links are up than on other GPUs, and reports it unless an operator accepted this number.
func (i *Inventory) hasFewer(l gpuLinks, fewer bool) bool {
	d := i.devices[key{model.KindGPU, l.gpu.UUID}]
	if d == nil {
		return fewer
	}
	d.fewer = fewer && (d.Enough == 0 || len(l.up)+1 < d.Enough)
	return d.fewer
}

// fewer reports whether fewer links of a GPU are up than on another GPU of its model. A card without links may lack the
// bridge that joins two other cards.
func fewer(l, best gpuLinks, gpus []model.GPU) bool {
	return len(l.up) < len(best.up) && (len(l.up) > 0 || !bridged(best, gpus))
}

// bridged reports whether all links of a GPU that are up lead to one GPU.
func bridged(l gpuLinks, gpus []model.GPU) bool {
	remote := ""
	for _, link := range l.gpu.Links {
		switch {
		case link.Up != model.Some(1):
		case link.Remote == "" || remote != "" && link.Remote != remote:
			return false
		default:
			remote = link.Remote
		}
	}
	return slices.ContainsFunc(gpus, func(g model.GPU) bool { return g.PCIAddress == remote && remote != "" })
}
