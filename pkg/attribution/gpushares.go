// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"slices"

	"github.com/accelscope/accelscope/pkg/model"
)

// GPUShare is an owner's share of a GPU, or of a part of a GPU. A partitioned GPU has no shares of its own.
type GPUShare struct {
	Owner int
	GPU   *model.GPU
	// Assigned is the assignment of the GPU to the owner, or nil. It does not depend on the process list.
	Assigned *DeviceShare
	// Listed reports that the GPU's processes were listed, and no process of the owner can be in another owner's
	// cgroup. Otherwise the following fields are unknown.
	Listed bool
	// Memory is the memory that the owner's processes allocated, in bytes. If the driver does not report it for all of
	// them, it is unknown, or, if no other workload has processes on the GPU, the GPU's memory in use; MemoryOfGPU is
	// then set. The unattributed share has the rest of the memory in use, which is unknown if any process's memory is
	// unknown.
	Memory      model.Optional
	MemoryOfGPU bool
	// GTT is the part of Memory in host memory, for GPUs that use it.
	GTT       model.Optional
	Processes uint64
	// Engines are the owner's busy ratios of engines that the driver reports per process (GPUVendor.ProcessEngines).
	// Other engines have no shares.
	Engines []model.Figure
}

// GPUFigures are the totals of a GPU, which its shares add up to: the GPU's values, raised to the sum of its processes,
// because both are not read at the same instant. Of the compute instances of a GPU instance, the first has the memory
// in use without the processes of the others, and the others have the memory of their processes. Engines that the GPU
// does not report are absent.
type GPUFigures struct {
	GPU       *model.GPU
	Listed    bool
	Processes uint64
	Memory    model.Optional // used, in bytes
	Engines   []model.Figure
}

// gpus credits the processes of GPUs to their owners. An owner that does not use its assigned GPU has a share of 0.
// Processes of an unlisted or partitioned GPU have no share.
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
	elsewhere := map[int]bool{} // owners whose processes are in cgroups of others
	for i := range s.Containers {
		if c := &s.Containers[i]; c.NoCgroup {
			elsewhere[o.ofContainer(c)] = true
		}
	}
	for i := range o.a.Assigned {
		if a := &o.a.Assigned[i]; a.GPU != nil && !index.parents[a.GPU.UUID] {
			r := users[a.GPU].row(a.Owner)
			r.share.Assigned, r.elsewhere = a, elsewhere[a.Owner]
		}
	}
	instances := computeInstances(s.GPUs, users)
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
		shares = append(shares, u.settle(f, instances[g])...)
	}
	return shares, figures
}

type process struct {
	gpu *model.GPU
	pid int
}

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
	// elsewhere: processes of the owner are in cgroups of others, so that 0 processes would be wrong.
	elsewhere bool
	memory    memoryUse
	used      map[string]float64 // by engine that processes report
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
	r.memory.add(p)
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

// settle makes the shares add up to the totals, and raises the totals if necessary. The unattributed share always
// exists and gets the remainder.
func (u *gpuUsers) settle(f *GPUFigures, siblings []*gpuUsers) []GPUShare {
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
	u.settleMemory(f, siblings)
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
		r.share.Listed = r.share.Processes > 0 || !r.elsewhere
		if idle := r.share.Listed && r.share.Processes == 0 && r.share.Owner != unattributed; idle {
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

// names returns the engines with shares, of the GPU and of its processes.
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

// settleEngine credits an engine's remainder to the unattributed share.
func (u *gpuUsers) settleEngine(e *model.Figure) {
	var sum float64
	for i := range u.rows {
		sum += u.rows[i].used[e.Name]
	}
	e.Value = model.Round(max(e.Value, sum))
	used := u.row(unattributed).used
	used[e.Name] = model.Round(used[e.Name] + e.Value - sum)
}
