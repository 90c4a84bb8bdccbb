// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"github.com/accelscope/accelscope/pkg/model"
)

// memoryUse is the memory of an owner's processes on a GPU, in bytes.
type memoryUse struct {
	local, gtt model.Optional // gtt only for GPUs that use it, else local is all
	unknown    bool           // the driver does not report it for all processes
}

func (m *memoryUse) add(p *model.GPUProcess) {
	m.unknown = m.unknown || !p.Memory.Known
	local := p.Memory
	local.Value -= p.GTT.Value
	m.local, m.gtt = add(m.local, local), add(m.gtt, p.GTT)
}

type pool func(*memoryUse) *model.Optional

func localPool(m *memoryUse) *model.Optional { return &m.local }
func gttPool(m *memoryUse) *model.Optional   { return &m.gtt }

// settleMemory makes the owners' memory add up to the memory in use. siblings are the users of all compute instances of
// the GPU instance in order, including u, or nil. They share a memory, whose remainder belongs to the first.
func (u *gpuUsers) settleMemory(f *GPUFigures, siblings []*gpuUsers) {
	used, gtt := f.Memory, model.Optional{}
	if u.gpu.UsesGTT {
		gtt = u.gpu.GTT.Used
		used = model.Optional{Value: max(used.Value-gtt.Value, 0), Known: used.Known && gtt.Known}
	}
	unknown := u.unknownMemory()
	first := len(siblings) == 0 || siblings[0] == u
	if !first { // it has no memory of its own
		used = model.Optional{Value: u.sum(localPool), Known: !unknown}
	} else {
		for _, o := range siblings {
			if o != u {
				unknown = unknown || o.unknownMemory()
				used.Value -= o.sum(localPool)
			}
		}
	}
	if unknown {
		u.row(unattributed).memory.unknown = true
	}
	f.Memory = u.remainder(used, localPool)
	if u.gpu.UsesGTT {
		gtt = u.remainder(gtt, gttPool)
		f.Memory = model.Optional{Value: f.Memory.Value + gtt.Value, Known: f.Memory.Known && gtt.Known}
	}
	for i := range u.rows {
		u.rows[i].shareMemory(u.gpu)
	}
	if sole := u.sole(); unknown && sole != nil && len(siblings) < 2 {
		sole.Memory, sole.MemoryOfGPU = f.Memory, f.Memory.Known
	}
}

// unknownMemory reports whether the driver does not report the memory of a process.
func (u *gpuUsers) unknownMemory() bool {
	for i := range u.rows {
		if u.rows[i].memory.unknown {
			return true
		}
	}
	return false
}

func (u *gpuUsers) sum(of pool) (sum float64) {
	for i := range u.rows {
		sum += of(&u.rows[i].memory).Value
	}
	return sum
}

// remainder credits a memory's remainder to the unattributed share. It returns the total: the memory in use, raised to
// the sum.
func (u *gpuUsers) remainder(used model.Optional, of pool) model.Optional {
	if !used.Known {
		return used
	}
	sum := u.sum(of)
	used.Value = max(used.Value, sum)
	rest := of(&u.row(unattributed).memory)
	*rest = model.Some(rest.Value + used.Value - sum)
	return used
}

// shareMemory sets the memory of the share. It is unknown if the memory of any process is unknown.
func (r *gpuUser) shareMemory(g *model.GPU) {
	m := &r.memory
	switch {
	case m.unknown:
	case g.UsesGTT:
		r.share.Memory = model.Optional{Value: m.local.Value + m.gtt.Value, Known: m.local.Known && m.gtt.Known}
		r.share.GTT = m.gtt
	default:
		r.share.Memory = m.local
	}
}

// sole returns the share of the only workload with processes on the GPU, or nil.
func (u *gpuUsers) sole() *GPUShare {
	var sole *GPUShare
	for i := range u.rows {
		s := &u.rows[i].share
		switch {
		case s.Processes == 0:
		case sole != nil || s.Owner == unattributed:
			return nil
		default:
			sole = s
		}
	}
	return sole
}

// computeInstances returns the users of the compute instances of a GPU instance, by part; nil if it has one compute
// instance.
func computeInstances(gpus []model.GPU, users map[*model.GPU]*gpuUsers) map[*model.GPU][]*gpuUsers {
	type instance struct{ parent, number string }
	all := map[instance][]*gpuUsers{}
	of := func(g *model.GPU) instance { return instance{g.Parent, g.Instance} }
	for i := range gpus {
		if g := &gpus[i]; g.Parent != "" && g.Instance != "" {
			all[of(g)] = append(all[of(g)], users[g])
		}
	}
	found := map[*model.GPU][]*gpuUsers{}
	for i := range gpus {
		if list := all[of(&gpus[i])]; len(list) > 1 {
			found[&gpus[i]] = list
		}
	}
	return found
}
