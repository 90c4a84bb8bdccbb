// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// pools are the memories in which processes allocate what KFD counts as memory of a GPU. On a card that is its VRAM. On an APU, since
// Linux 6.10, and on an accelerator with the CPU on it (MI300A) it is GTT, which is memory of the host: KFD's bank is larger than the
// VRAM then, or there is no VRAM at all. All maps are by UUID.
type pools struct {
	size map[string]float64 // of KFD's banks, in bytes
	gtt  map[string]bool    // KFD's memory is in GTT
}

// findPools compares the banks of KFD with the VRAM of the GPUs, of partitions with the VRAM of the whole GPU. A GPU without a bank keeps
// its earlier result.
func findPools(cards []model.GPU, nodes []kfdNode, at places, before pools) pools {
	p := pools{size: map[string]float64{}, gtt: map[string]bool{}}
	for _, n := range nodes {
		if uuid, ok := at.gpu(n.renderMinor, n.address); ok && n.memory > 0 {
			p.size[uuid] = float64(n.memory)
		}
	}
	for _, c := range cards {
		size, bank := p.size[c.UUID]
		whole := c.UUID
		if c.Parent != "" {
			whole = c.Parent
		}
		total, known := at.totals[whole]
		if c.UsesGTT || known && (total == 0 || size > total) || !bank && before.gtt[c.UUID] {
			p.gtt[c.UUID], p.gtt[whole] = true, true
		}
	}
	return p
}

// observe finds the GPUs with memory in GTT from the memory of their processes, where KFD reports no bank: KFD counts more than there is
// VRAM, or a process has more by KFD than fdinfo finds in its VRAM, and fdinfo finds it in GTT.
func (p pools) observe(usages map[drm.Use]*usage, totals map[string]float64) {
	sums := map[string]float64{}
	for k, u := range usages {
		total, known := totals[k.GPU]
		if _, bank := p.size[k.GPU]; bank || !known || u.compute == 0 {
			continue
		}
		sums[k.GPU] += float64(u.compute)
		if sums[k.GPU] > total || u.compute > u.client && u.gtt >= u.compute {
			p.gtt[k.GPU] = true
		}
	}
}

// apply sets the size of the memory of a partition, and makes the memory of a GPU whose processes allocate in GTT both.
func (p pools) apply(g *model.GPU) {
	if size := p.size[g.UUID]; g.Parent != "" && size > 0 {
		g.Memory.Total = model.Some(size)
	}
	if !p.gtt[g.UUID] || g.UsesGTT {
		return
	}
	g.UsesGTT = true
	if g.Parent == "" {
		g.Memory = model.VideoMemory{
			Total: sum(g.Memory.Total, g.GTT.Total), Used: sum(g.Memory.Used, g.GTT.Used), Free: sum(g.Memory.Free, g.GTT.Free),
		}
	}
}

func sum(a, b model.Optional) model.Optional {
	if !a.Known || !b.Known {
		return model.Optional{}
	}
	return model.Some(a.Value + b.Value)
}

// memory returns the memory of a process on a GPU, in bytes, and the part of it in GTT if the GPU has such memory. Of a process that
// computes it is KFD's number.
func (u *usage) memory(computes, inGTT bool) (all, gtt model.Optional) {
	switch {
	case computes && inGTT:
		all = model.Some(float64(u.compute))
		return all, all
	case computes:
		return model.Some(float64(u.compute)), gtt
	case inGTT:
		return model.Some(float64(u.client + u.gtt)), model.Some(float64(u.gtt))
	}
	return model.Some(float64(u.client)), gtt
}
