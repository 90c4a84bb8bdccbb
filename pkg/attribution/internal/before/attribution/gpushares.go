// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"slices"

	"github.com/accelscope/accelscope/pkg/attribution/internal/before/model"
)

// GPUShare is what one owner has of one GPU, or of one part of a GPU. A GPU that
// has parts has no shares: it is used through them.
type GPUShare struct {
	Owner int
	GPU   *model.GPU
	// Allocated says that the owner was given it, which is known of those whose
	// processes are not listed, too.
	Allocated bool
	// Listed says that the processes of the GPU were listed: only then is what follows
	// known, and zero a measurement.
	Listed bool
	// Memory is what the processes of the owner have allocated on the GPU, in bytes. It
	// is not known where no process of the owner's tells.
	Memory    model.Optional
	Processes uint64
	// Engines are the parts of the time in which they used each engine of which they
	// tell. An engine of which no process can tell (see processEngines) has no shares.
	Engines []model.Figure
}

// processEngines are the engines of GPUs of which drivers tell by process what they
// tell of the GPU. NVIDIA's tells all of them for any process of which it tells one,
// and of one that used none nothing: that is zero. Of AMD's what is not told is not
// known: compute queues are not in gfx.
var processEngines = map[model.Vendor][]string{
	model.NVIDIA: {"sm", "memory", "encoder", "decoder"},
	model.AMD:    {"gfx"},
}

// GPUFigures is what the shares of a GPU add up to: the GPU's own figures, raised
// where those of its processes are more, as the two are not read at one instant.
// An engine that the GPU itself does not tell of is not among them.
type GPUFigures struct {
	GPU       *model.GPU
	Listed    bool
	Processes uint64
	Memory    model.Optional // used, in bytes
	Engines   []model.Figure
}

// gpuShares books the processes of GPUs on their owners. given are the GPUs that
// owners were given: who does not use his has a share of zero. Processes of a GPU
// that is not there, or has parts, are of nothing that could be shown.
func gpuShares(s model.Snapshot, o *owners, given []DeviceShare) ([]GPUShare, []GPUFigures) {
	if s.GPUs == nil {
		return nil, nil
	}
	index := newGPUs(s.GPUs)
	users := make(map[*model.GPU]*gpuUsers, len(s.GPUs))
	of := func(g *model.GPU) *gpuUsers {
		u := users[g]
		if u == nil {
			u = &gpuUsers{gpu: g, at: map[int]int{}}
			users[g] = u
		}
		return u
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
		of(g).add(o.ofProcess(p), p)
	}
	for i := range given {
		if g := given[i].GPU; g != nil && !index.parents[g.UUID] {
			of(g).row(given[i].Owner).share.Allocated = true
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
		u := of(g)
		f.Listed = s.GPUProcesses != nil && !g.Unlisted && (u.processes > 0 || g.Memory.Used.Known || g.Engines != nil)
		shares = append(shares, u.settle(f)...)
	}
	return shares, figures
}

type process struct {
	gpu *model.GPU
	pid int
}

// ofProcess is the owner of the cgroup that a process was in; without it nobody.
func (o *owners) ofProcess(p *model.GPUProcess) int {
	if p.Cgroup == 0 {
		return nobody
	}
	return o.ofCgroup(p.Cgroup)
}

// gpuUsers are the owners of the processes of one GPU.
type gpuUsers struct {
	gpu       *model.GPU
	rows      []gpuUser
	at        map[int]int // by owner
	engines   []string    // of which processes tell
	processes uint64
}

type gpuUser struct {
	share GPUShare
	used  map[string]float64 // by engine, those of which its processes tell
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
	if p.Engines != nil && u.gpu.Vendor == model.NVIDIA {
		for _, name := range processEngines[model.NVIDIA] {
			r.used[name] += 0
		}
	}
	for _, e := range p.Engines {
		r.used[e.Name] += e.Value
		if !slices.Contains(u.engines, e.Name) {
			u.engines = append(u.engines, e.Name)
		}
	}
}

// settle makes the shares add up to the figures, which it raises where they must
// be. What no process accounts for is nobody's, who always has a share.
func (u *gpuUsers) settle(f *GPUFigures) []GPUShare {
	out := make([]GPUShare, 0, len(u.rows)+1)
	if !f.Listed {
		for i := range u.rows {
			if r := &u.rows[i].share; r.Allocated {
				out = append(out, GPUShare{Owner: r.Owner, GPU: r.GPU, Allocated: true})
			}
		}
		return out
	}
	u.row(nobody)
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
		if idle := r.share.Processes == 0 && r.share.Owner != nobody; idle {
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

// shared says whether processes can tell of an engine.
func (u *gpuUsers) shared(engine string) bool {
	return slices.Contains(u.engines, engine) || slices.Contains(processEngines[u.gpu.Vendor], engine)
}

// names are the engines that have shares: of those that the GPU tells of, and others
// of which its processes do.
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

// settleMemory books on nobody what no process has, and returns what is used then.
func (u *gpuUsers) settleMemory(used model.Optional) model.Optional {
	if !used.Known {
		return used
	}
	var sum float64
	for i := range u.rows {
		sum += u.rows[i].share.Memory.Value
	}
	used.Value = max(used.Value, sum)
	r := u.row(nobody)
	r.share.Memory = model.Some(r.share.Memory.Value + used.Value - sum)
	return used
}

// settleEngine does the same for an engine of the GPU.
func (u *gpuUsers) settleEngine(e *model.Figure) {
	var sum float64
	for i := range u.rows {
		sum += u.rows[i].used[e.Name]
	}
	e.Value = max(e.Value, sum)
	u.row(nobody).used[e.Name] += e.Value - sum
}
