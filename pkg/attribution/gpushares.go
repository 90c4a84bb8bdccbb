// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"slices"

	"github.com/accelscope/accelscope/pkg/model"
)

// GPUShare is one owner's share of one GPU, or of one part of a GPU. A partitioned GPU has no
// shares of its own.
type GPUShare struct {
	Owner int
	GPU   *model.GPU
	// Assigned is the assignment of the GPU to the owner, nil without one. It does not depend on
	// the process list.
	Assigned *DeviceShare
	// Listed reports that the processes of the GPU were listed. Otherwise the following fields
	// are unknown.
	Listed bool
	// Memory is the GPU memory that the owner's processes have allocated, in bytes. It is
	// unknown if the driver reports it for none of them.
	Memory    model.Optional
	Processes uint64
	// Engines are the owner's busy ratios of each engine that the driver reports per process.
	// Other engines (see GPUVendor.ProcessEngines) have no shares.
	Engines []model.Figure
}

// GPUFigures are the totals of a GPU, which are the sums of its shares: the GPU's own values,
// raised to the sum of its processes where that is higher, because the two are not read at the
// same instant. It has no engines that the GPU itself does not report.
type GPUFigures struct {
	GPU       *model.GPU
	Listed    bool
	Processes uint64
	Memory    model.Optional // used, in bytes
	Engines   []model.Figure
}

// gpus credits the processes of GPUs to their owners. An owner that does not use its assigned
// GPU has a share of zero. Processes of an unlisted or partitioned GPU have no share.
func (o *users) gpus(s *model.Snapshot) ([]GPUShare, []GPUFigures) {
	if s.GPUs == nil {
		return nil, nil
	}
	index := newGPUs(s.GPUs)
	users := make(map[*model.GPU]*gpuUsers, len(s.GPUs))
	for i := range s.GPUs {
		g := &s.GPUs[i]
		users[g] = &gpuUsers{gpu: g, vendor: g.Vendor.Row(), at: map[int]int{}}
	}
	seen := make(map[process]bool, len(s.GPUProcesses))
	for i := range s.GPUProcesses {
		p := &s.GPUProcesses[i]
		g := index.byUUID[p.GPU]
		k := process{g, p.PID}
		if g == nil || index.parents[g.UUID] || seen[k] {
			continue
		}
		seen[k] = p.PID > 0
		users[g].add(o.ofCgroup(p.Cgroup), p)
	}
	for i := range o.a.Assigned {
		if a := &o.a.Assigned[i]; a.GPU != nil && !index.parents[a.GPU.UUID] {
			users[a.GPU].row(a.Owner).share.Assigned = a
		}
	}
	shares := make([]GPUShare, 0, len(s.GPUProcesses)+len(s.GPUs))
	figures := make([]GPUFigures, len(s.GPUs))
	for i := range s.GPUs {
		g := &s.GPUs[i]
		f := &figures[i]
		*f = GPUFigures{GPU: g, Memory: g.Memory.Used, Engines: g.Engines}
		if g != index.byUUID[g.UUID] || index.parents[g.UUID] {
			continue
		}
		u := users[g]
		f.Listed = s.GPUProcesses != nil && !g.Unlisted &&
			(u.processes > 0 || g.Memory.Used.Known || g.Engines != nil || !g.Listed.IsZero())
		shares = append(shares, u.settle(f)...)
	}
	return shares, figures
}

type process struct {
	gpu *model.GPU
	pid int
}

// gpuUsers are the owners of the processes of one GPU.
type gpuUsers struct {
	gpu       *model.GPU
	vendor    *model.GPUVendor
	rows      []gpuUser
	at        map[int]int // by owner
	engines   []string    // that processes report
	processes uint64
}

type gpuUser struct {
	share GPUShare
	used  map[string]float64 // by engine that processes report
}

func (u *gpuUsers) row(owner int) *gpuUser {
	i, ok := u.at[owner]
	if !ok {
		i = len(u.rows)
		u.at[owner] = i
		u.rows = append(u.rows, gpuUser{share: GPUShare{Owner: owner, GPU: u.gpu}, used: map[string]float64{}})
	}
	return &u.rows[i]
}

func (u *gpuUsers) add(owner int, p *model.GPUProcess) {
	r := u.row(owner)
	r.share.Processes++
	u.processes++
	r.share.Memory = add(r.share.Memory, p.Memory)
	if p.Engines != nil && u.vendor.IdleIsZero {
		for _, name := range u.vendor.ProcessEngines {
			r.used[name] += 0
		}
	}
	for _, e := range p.Engines {
		r.used[e.Name] = model.Round(r.used[e.Name] + model.Round(e.Value))
		if !slices.Contains(u.engines, e.Name) {
			u.engines = append(u.engines, e.Name)
		}
	}
}

// settle makes the shares add up to the totals and raises the totals where necessary. The
// unattributed share, which always exists, gets the remainder.
func (u *gpuUsers) settle(f *GPUFigures) []GPUShare {
	out := make([]GPUShare, 0, len(u.rows)+1)
	if !f.Listed {
		for i := range u.rows {
			if r := &u.rows[i].share; r.Assigned != nil {
				out = append(out, GPUShare{Owner: r.Owner, GPU: r.GPU, Assigned: r.Assigned})
			}
		}
		return out
	}
	u.row(unattributed)
	f.Processes = u.processes
	f.Memory = u.settleMemory(f.Memory)
	if f.Engines != nil {
		f.Engines = slices.Clone(f.Engines)
	}
	for i := range f.Engines {
		if e := &f.Engines[i]; u.shared(e.Name) {
			u.settleEngine(e)
		}
	}
	names := u.names(f.Engines)
	for i := range u.rows {
		r := &u.rows[i]
		r.share.Listed = true
		if idle := r.share.Processes == 0 && r.share.Owner != unattributed; idle {
			r.share.Memory = model.Some(0)
			for _, name := range names {
				r.used[name] = 0
			}
		}
		for _, name := range names {
			if v, ok := r.used[name]; ok {
				r.share.Engines = append(r.share.Engines, model.Figure{Name: name, Value: v})
			}
		}
		out = append(out, r.share)
	}
	return out
}

// shared reports whether the driver reports an engine per process.
func (u *gpuUsers) shared(engine string) bool {
	return slices.Contains(u.engines, engine) || slices.Contains(u.vendor.ProcessEngines, engine)
}

// names returns the engines that have shares: those of the GPU and those of its processes.
func (u *gpuUsers) names(engines []model.Figure) (names []string) {
	for _, e := range engines {
		if u.shared(e.Name) {
			names = append(names, e.Name)
		}
	}
	for _, name := range u.engines {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// settleMemory credits the remainder of the used memory to the unattributed share and returns
// the total.
func (u *gpuUsers) settleMemory(used model.Optional) model.Optional {
	if !used.Known {
		return used
	}
	var sum float64
	for i := range u.rows {
		sum += u.rows[i].share.Memory.Value
	}
	used.Value = max(used.Value, sum)
	r := u.row(unattributed)
	r.share.Memory = model.Some(r.share.Memory.Value + used.Value - sum)
	return used
}

// settleEngine credits the remainder of an engine to the unattributed share.
func (u *gpuUsers) settleEngine(e *model.Figure) {
	var sum float64
	for i := range u.rows {
		sum += u.rows[i].used[e.Name]
	}
	e.Value = model.Round(max(e.Value, sum))
	used := u.row(unattributed).used
	used[e.Name] = model.Round(used[e.Name] + e.Value - sum)
}
