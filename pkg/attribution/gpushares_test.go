// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
)

// gpuRows formats the shares: GPU, owner, memory, processes, engines.
func gpuRows(a Attribution) []string {
	rows := []string{}
	for _, s := range a.GPUs {
		memory := "?"
		if s.Memory.Known {
			memory = fmt.Sprint(s.Memory.Value)
		}
		if s.MemoryOfGPU {
			memory += " of the GPU"
		}
		if s.GTT.Known {
			memory += fmt.Sprintf(" with %v in GTT", s.GTT.Value)
		}
		row := fmt.Sprintf("%s %s: memory %s, %d processes", s.GPU.UUID, a.Owners[s.Owner].Workload, memory, s.Processes)
		if !s.Listed {
			row = fmt.Sprintf("%s %s:", s.GPU.UUID, a.Owners[s.Owner].Workload)
		}
		for _, e := range s.Engines {
			row += fmt.Sprintf(", %s %v", e.Name, e.Value)
		}
		if s.Assigned != nil {
			row += ", allocated"
		}
		rows = append(rows, row)
	}
	return rows
}

func TestGPUShares(t *testing.T) {
	n := model.Some
	sm := func(v float64) []model.Figure { return []model.Figure{{Name: "sm", Value: v}} }
	gpu := model.GPU{
		Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0", Nodes: []string{"/dev/nvidia0"},
		Memory: model.VideoMemory{Used: n(100)}, Engines: sm(0.5),
	}
	part := func(uuid string) model.GPU {
		return model.GPU{Vendor: model.NVIDIA, UUID: uuid, Parent: "GPU-0", Memory: model.VideoMemory{Used: n(8)}}
	}
	compute := func(number string, used float64) model.GPU {
		g := part("MIG-" + number)
		g.Instance, g.ComputeInstance, g.Memory.Used, g.Listed = "3", number, model.Optional{Value: max(used, 0), Known: used >= 0}, time.Unix(1, 0)
		return g
	}
	entities := map[model.CgroupID]identitytest.Entity{1: {Workload: "docker:a"}, 2: {Workload: "slurm:7"}, 3: {Workload: "slurm:7"}}
	idle := []model.Container{{ID: "i", Runtime: "docker", Name: "idle", Devices: []string{"/dev/nvidia0"}}}

	for name, c := range map[string]struct {
		gpus       []model.GPU
		processes  []model.GPUProcess
		containers []model.Container
		want       []string
		totals     string // of the first GPU
	}{
		"unattributed": {
			gpus: []model.GPU{gpu}, processes: []model.GPUProcess{},
			want: []string{"GPU-0 : memory 100, 0 processes, sm 0.5"}, totals: "100 [{sm 0.5}] 0",
		},
		"owners of several cgroups, and the remainder": {
			gpus: []model.GPU{gpu}, processes: []model.GPUProcess{
				{GPU: "GPU-0", PID: 1, Cgroup: 1, Memory: n(10), Engines: sm(0.25)},
				{GPU: "GPU-0", PID: 2, Cgroup: 2, Memory: n(20), Engines: []model.Figure{}},
				{GPU: "GPU-0", PID: 3, Cgroup: 3, Memory: n(30), Engines: sm(0.125)},
			},
			want: []string{
				"GPU-0 docker:a: memory 10, 1 processes, sm 0.25", "GPU-0 slurm:7: memory 50, 2 processes, sm 0.125",
				"GPU-0 : memory 40, 0 processes, sm 0.125",
			},
			totals: "100 [{sm 0.5}] 3",
		},
		"processes report more than the GPU": {
			gpus: []model.GPU{gpu}, processes: []model.GPUProcess{
				{GPU: "GPU-0", PID: 1, Cgroup: 1, Memory: n(90), Engines: sm(0.5)},
				{GPU: "GPU-0", PID: 2, Cgroup: 2, Memory: n(30), Engines: sm(0.25)},
			},
			want: []string{
				"GPU-0 docker:a: memory 90, 1 processes, sm 0.5", "GPU-0 slurm:7: memory 30, 1 processes, sm 0.25",
				"GPU-0 : memory 0, 0 processes, sm 0",
			},
			totals: "120 [{sm 0.75}] 2",
		},
		"given and idle": {
			gpus: []model.GPU{gpu}, processes: []model.GPUProcess{}, containers: idle,
			want: []string{"GPU-0 docker:idle: memory 0, 0 processes, sm 0, allocated", "GPU-0 : memory 100, 0 processes, sm 0.5"},
		},
		"given, and its processes are in the cgroup of another workload": {
			gpus: []model.GPU{gpu}, processes: []model.GPUProcess{{GPU: "GPU-0", PID: 1, Cgroup: 1, Memory: n(10), Engines: sm(0.25)}},
			containers: []model.Container{{ID: "e", Runtime: "podman", Name: "else", Devices: []string{"/dev/nvidia0"}, NoCgroup: true}},
			want: []string{
				"GPU-0 docker:a: memory 10, 1 processes, sm 0.25", "GPU-0 podman:else:, allocated", "GPU-0 : memory 90, 0 processes, sm 0.25",
			},
		},
		"given and idle, and the driver reports no memory in use": {
			gpus: []model.GPU{{UUID: "GPU-0", Nodes: gpu.Nodes, Listed: time.Unix(1, 0)}}, processes: []model.GPUProcess{}, containers: idle,
			want: []string{"GPU-0 docker:idle: memory 0, 0 processes, allocated", "GPU-0 : memory ?, 0 processes"}, totals: "? [] 0",
		},
		"given, and no process list": {
			gpus: []model.GPU{gpu}, containers: idle, want: []string{"GPU-0 docker:idle:, allocated"}, totals: "100 [{sm 0.5}] 0",
		},
		"given, and the GPU cannot be read": {
			gpus:      []model.GPU{{UUID: "GPU-0", Nodes: gpu.Nodes, Problems: []model.GPUCondition{{Name: model.ProblemLost, Active: true}}}},
			processes: []model.GPUProcess{}, containers: idle, want: []string{"GPU-0 docker:idle:, allocated"},
		},
		"given, and the list of this GPU failed": {
			gpus:       []model.GPU{{UUID: "GPU-0", Nodes: gpu.Nodes, Memory: gpu.Memory, Engines: sm(0.5), Unlisted: true}},
			processes:  []model.GPUProcess{},
			containers: idle, want: []string{"GPU-0 docker:idle:, allocated"}, totals: "100 [{sm 0.5}] 0",
		},
		"values that processes do not report": {
			gpus: []model.GPU{gpu}, processes: []model.GPUProcess{
				{GPU: "GPU-0", PID: 1, Cgroup: 1},
				{GPU: "GPU-0", PID: 2, Cgroup: 2, Memory: n(30), Engines: sm(0.25)},
				{GPU: "GPU-0", PID: 3, Cgroup: 3},
			},
			want: []string{
				"GPU-0 docker:a: memory ?, 1 processes", "GPU-0 slurm:7: memory ?, 2 processes, sm 0.25",
				"GPU-0 : memory ?, 0 processes, sm 0.25",
			},
			totals: "100 [{sm 0.5}] 3",
		},
		"memory of one process of another workload is unknown": {
			gpus: []model.GPU{gpu}, processes: []model.GPUProcess{
				{GPU: "GPU-0", PID: 1, Cgroup: 1}, {GPU: "GPU-0", PID: 2, Cgroup: 2, Memory: n(30)},
			},
			want: []string{
				"GPU-0 docker:a: memory ?, 1 processes", "GPU-0 slurm:7: memory 30, 1 processes", "GPU-0 : memory ?, 0 processes, sm 0.5",
			},
			totals: "100 [{sm 0.5}] 2",
		},
		"memory of a process without an owner is unknown": {
			gpus: []model.GPU{gpu}, processes: []model.GPUProcess{{GPU: "GPU-0", PID: 1}, {GPU: "GPU-0", PID: 2, Cgroup: 2, Memory: n(30)}},
			want: []string{"GPU-0 : memory ?, 1 processes, sm 0.5", "GPU-0 slurm:7: memory 30, 1 processes"},
		},
		"memory of processes without an owner is unknown": {
			gpus: []model.GPU{gpu}, processes: []model.GPUProcess{{GPU: "GPU-0", PID: 1}},
			want: []string{"GPU-0 : memory ?, 1 processes, sm 0.5"},
		},
		"memory of the only workload is unknown": {
			gpus: []model.GPU{gpu}, containers: idle, processes: []model.GPUProcess{
				{GPU: "GPU-0", PID: 1, Cgroup: 2}, {GPU: "GPU-0", PID: 2, Cgroup: 3, Memory: n(30)},
			},
			want: []string{
				"GPU-0 slurm:7: memory 100 of the GPU, 2 processes", "GPU-0 docker:idle: memory 0, 0 processes, sm 0, allocated",
				"GPU-0 : memory ?, 0 processes, sm 0.5",
			},
			totals: "100 [{sm 0.5}] 2",
		},
		"compute instances of a GPU instance": {
			gpus: []model.GPU{gpu, compute("0", 100), compute("1", -1), compute("2", -1)}, processes: []model.GPUProcess{
				{GPU: "MIG-0", PID: 1, Cgroup: 1, Memory: n(30)}, {GPU: "MIG-1", PID: 2, Cgroup: 2, Memory: n(50)}, {GPU: "MIG-1", PID: 3, Memory: n(5)},
			},
			want: []string{
				"MIG-0 docker:a: memory 30, 1 processes", "MIG-0 : memory 15, 0 processes", "MIG-1 slurm:7: memory 50, 1 processes",
				"MIG-1 : memory 5, 1 processes", "MIG-2 : memory 0, 0 processes",
			},
		},
		"compute instances, and the memory of a process is unknown": {
			gpus: []model.GPU{gpu, compute("0", 100), compute("1", -1)}, processes: []model.GPUProcess{
				{GPU: "MIG-0", PID: 1, Cgroup: 1, Memory: n(30)}, {GPU: "MIG-1", PID: 2, Cgroup: 2},
			},
			want: []string{
				"MIG-0 docker:a: memory 30, 1 processes", "MIG-0 : memory ?, 0 processes", "MIG-1 slurm:7: memory ?, 1 processes",
				"MIG-1 : memory ?, 0 processes",
			},
		},
		"an APU": {
			gpus: []model.GPU{{
				Vendor: model.AMD, UUID: "aa", UsesGTT: true, Memory: model.VideoMemory{Used: n(40)}, GTT: model.VideoMemory{Used: n(32)},
			}},
			processes: []model.GPUProcess{
				{GPU: "aa", PID: 1, Cgroup: 1, Memory: n(12), GTT: n(10)}, {GPU: "aa", PID: 2, Cgroup: 2, Memory: n(20), GTT: n(20)},
			},
			want: []string{
				"aa docker:a: memory 12 with 10 in GTT, 1 processes", "aa slurm:7: memory 20 with 20 in GTT, 1 processes",
				"aa : memory 8 with 2 in GTT, 0 processes",
			},
			totals: "40 [] 2",
		},
		"values that the GPU does not report": {
			gpus: []model.GPU{{UUID: "GPU-0"}}, processes: []model.GPUProcess{
				{GPU: "GPU-0", PID: 1, Cgroup: 1, Memory: n(10), Engines: sm(0.25)},
			},
			want:   []string{"GPU-0 docker:a: memory 10, 1 processes, sm 0.25", "GPU-0 : memory ?, 0 processes"},
			totals: "? [] 1",
		},
		"no owner": {
			gpus: []model.GPU{gpu}, processes: []model.GPUProcess{
				{GPU: "GPU-0", PID: 1, Memory: n(10), Engines: sm(0.25)}, {GPU: "GPU-0", PID: 2, Cgroup: 99, Memory: n(5)},
			},
			want: []string{"GPU-0 : memory 100, 2 processes, sm 0.5"}, totals: "100 [{sm 0.5}] 2",
		},
		"listed twice, and of a GPU that is gone": {
			gpus: []model.GPU{gpu}, processes: []model.GPUProcess{
				{GPU: "GPU-0", PID: 1, Cgroup: 1, Memory: n(10)},
				{GPU: "GPU-0", PID: 1, Cgroup: 1, Memory: n(10)},
				{GPU: "GPU-9", PID: 2, Cgroup: 1, Memory: n(10)},
			},
			want: []string{"GPU-0 docker:a: memory 10, 1 processes", "GPU-0 : memory 90, 0 processes, sm 0.5"},
		},
		"in parts": {
			gpus: []model.GPU{gpu, part("MIG-1"), part("MIG-2")}, containers: idle, processes: []model.GPUProcess{
				{GPU: "GPU-0", PID: 1, Cgroup: 1, Memory: n(7)}, {GPU: "MIG-2", PID: 1, Cgroup: 1, Memory: n(7)},
			},
			want: []string{
				"MIG-1 : memory 8, 0 processes", "MIG-2 docker:a: memory 7, 1 processes", "MIG-2 : memory 1, 0 processes",
			},
			totals: "100 [{sm 0.5}] 0",
		},
		"AMD GPU with invisible compute queues": {
			gpus: []model.GPU{{
				Vendor: model.AMD, UUID: "aa", Memory: model.VideoMemory{Used: n(9)},
				Engines: []model.Figure{{Name: "gfx", Value: 0.5}, {Name: "memory", Value: 0.25}},
			}},
			processes: []model.GPUProcess{
				{GPU: "aa", PID: 1, Cgroup: 1, Memory: n(4), Engines: []model.Figure{{Name: "cu", Value: 0.5}}},
				{GPU: "aa", PID: 2, Cgroup: 2, Memory: n(4), Engines: []model.Figure{{Name: "gfx", Value: 0.125}}},
			},
			want: []string{
				"aa docker:a: memory 4, 1 processes, cu 0.5", "aa slurm:7: memory 4, 1 processes, gfx 0.125",
				"aa : memory 1, 0 processes, gfx 0.375",
			},
			totals: "9 [{gfx 0.5} {memory 0.25}] 2",
		},
		"no GPUs": {gpus: []model.GPU{}, processes: []model.GPUProcess{}, want: []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			a := attribute(facts{model.Snapshot{GPUs: c.gpus, GPUProcesses: c.processes, Containers: c.containers}, entities})
			if d := cmp.Diff(c.want, gpuRows(a)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if a.GPUs == nil || len(a.GPUFigures) != len(c.gpus) {
				t.Errorf("%d totals of %d GPUs", len(a.GPUFigures), len(c.gpus))
			}
			if c.totals == "" {
				return
			}
			f := a.GPUFigures[0]
			used := "?"
			if f.Memory.Known {
				used = fmt.Sprint(f.Memory.Value)
			}
			if got := fmt.Sprintf("%s %v %d", used, f.Engines, f.Processes); got != c.totals {
				t.Errorf("the totals are %s, want %s", got, c.totals)
			}
		})
	}
	if a := attribute(facts{Snapshot: model.Snapshot{GPUProcesses: []model.GPUProcess{{GPU: "GPU-0", PID: 1}}}}); a.GPUs != nil || a.GPUFigures != nil {
		t.Error("there are shares of GPUs that were not collected")
	}
}

// TestGPUSharesConserve checks on random nodes that the shares of each GPU add up to its totals, no total is below the
// driver's value, and no fact changes.
func TestGPUSharesConserve(t *testing.T) {
	for seed := range uint64(300) {
		s := randomGPUs(rand.New(rand.NewPCG(seed, 4)))
		before := fmt.Sprintf("%+v", s)
		a := attribute(s)
		if fmt.Sprintf("%+v", s) != before {
			t.Fatalf("seed %d: the facts were changed", seed)
		}
		parents := map[string]bool{}
		for _, g := range s.GPUs {
			parents[g.Parent] = true
		}
		for i := range a.GPUFigures {
			f := &a.GPUFigures[i]
			if f.GPU != &s.GPUs[i] {
				t.Fatalf("seed %d: totals of another GPU", seed)
			}
			checkGPU(t, seed, &s, &a, f, parents[f.GPU.UUID])
		}
		given := map[[2]any]bool{}
		for _, d := range a.Assigned {
			if d.GPU != nil && !parents[d.GPU.UUID] {
				given[[2]any{d.Owner, d.GPU}] = true
			}
		}
		for _, r := range a.GPUs {
			if (r.Assigned != nil) != given[[2]any{r.Owner, r.GPU}] {
				t.Errorf("seed %d: %s of %s", seed, r.GPU.UUID, a.Owners[r.Owner].Workload)
			}
			delete(given, [2]any{r.Owner, r.GPU})
		}
		if len(given) > 0 {
			t.Errorf("seed %d: no share for the owners that are assigned %v", seed, given)
		}
	}
}

func checkGPU(t *testing.T, seed uint64, s *facts, a *Attribution, f *GPUFigures, parent bool) {
	t.Helper()
	var memory float64
	var remainder model.Optional
	var processes uint64
	sole := false
	engines, owners := map[string]float64{}, map[int]bool{}
	for _, r := range a.GPUs {
		if r.GPU != f.GPU {
			continue
		}
		if owners[r.Owner] {
			t.Errorf("seed %d: two shares of one owner", seed)
		}
		owners[r.Owner] = true
		memory += r.Memory.Value
		if sole = sole || r.MemoryOfGPU; r.Owner == unattributed {
			remainder = r.Memory
		}
		processes += r.Processes
		for _, e := range r.Engines {
			engines[e.Name] += e.Value
		}
		if r.Listed != f.Listed || !r.Listed && (r.Memory.Known || r.Engines != nil || r.Processes > 0 || r.Assigned == nil) {
			t.Errorf("seed %d: a share of an unlisted GPU has values: %+v", seed, r)
		}
		if r.Memory.Value < 0 || slices.ContainsFunc(r.Engines, func(e model.Figure) bool { return e.Value < 0 }) {
			t.Errorf("seed %d: a negative share: %+v", seed, r)
		}
		if r.Listed && r.Processes == 0 && r.Owner != unattributed && (r.Memory != model.Some(0) || r.Assigned == nil) {
			t.Errorf("seed %d: an owner without processes has %+v", seed, r)
		}
	}
	if parent && len(owners) > 0 || f.Listed && !owners[unattributed] {
		t.Errorf("seed %d: %s has the owners %v", seed, f.GPU.UUID, owners)
	}
	seen, reported, unknown := map[int]bool{}, false, false
	for _, p := range s.GPUProcesses {
		if p.GPU == f.GPU.UUID && !parent && !seen[p.PID] {
			seen[p.PID] = true
			unknown = unknown || !p.Memory.Known
			reported = reported || slices.ContainsFunc(p.Engines, func(e model.Figure) bool { return e.Name == "gr_active" })
		}
	}
	if f.Listed && (int(processes) != len(seen) || f.Processes != processes) {
		t.Errorf("seed %d: %d processes, total %d, want %d", seed, processes, f.Processes, len(seen))
	}
	if f.Memory.Known != f.GPU.Memory.Used.Known || f.Memory.Value < f.GPU.Memory.Used.Value {
		t.Errorf("seed %d: %v of %v", seed, f.Memory, f.GPU.Memory.Used)
	}
	switch {
	case !f.Listed || !f.Memory.Known:
	case unknown && (remainder.Known || memory > f.Memory.Value):
		t.Errorf("seed %d: a remainder of %v, although the memory of a process is unknown", seed, remainder)
	case !unknown && memory != f.Memory.Value, sole && memory != f.Memory.Value:
		t.Errorf("seed %d: shares of %v bytes of %v", seed, memory, f.Memory.Value)
	}
	if len(f.Engines) != len(f.GPU.Engines) {
		t.Errorf("seed %d: %v of %v", seed, f.Engines, f.GPU.Engines)
	}
	for i, e := range f.Engines {
		if e.Name == "gr_active" && !reported { // processes do not report it
			if _, ok := engines[e.Name]; ok || e != f.GPU.Engines[i] {
				t.Errorf("seed %d: shares of %v", seed, e)
			}
			continue
		}
		if e.Name != f.GPU.Engines[i].Name || e.Value < f.GPU.Engines[i].Value ||
			f.Listed && math.Abs(engines[e.Name]-e.Value) > 1e-9 {
			t.Errorf("seed %d: shares of %v of %s %v of %v", seed, engines[e.Name], e.Name, e.Value, f.GPU.Engines[i].Value)
		}
	}
}

// randomGPUs returns GPUs, parts of some, processes of known and unknown owners, some listed twice or on an unknown
// GPU, and containers with any of the GPUs assigned.
func randomGPUs(r *rand.Rand) facts {
	chance := func(percent int) bool { return r.IntN(100) < percent }
	optional := func(v float64) model.Optional {
		if chance(80) {
			return model.Some(v)
		}
		return model.Optional{}
	}
	engines := func() []model.Figure {
		if chance(30) {
			return nil
		}
		list := []model.Figure{}
		for _, name := range []string{"sm", "memory", "encoder", "gr_active"} {
			if chance(60) {
				list = append(list, model.Figure{Name: name, Value: model.Round(r.Float64())})
			}
		}
		return list
	}
	s := facts{Snapshot: model.Snapshot{GPUs: []model.GPU{}, Containers: []model.Container{}}, Entities: map[model.CgroupID]identitytest.Entity{}}
	for i := range r.IntN(5) {
		g := model.GPU{
			Vendor: model.NVIDIA, ID: fmt.Sprint(i), UUID: fmt.Sprint("GPU-", i), PCIAddress: fmt.Sprintf("0000:%02d:00.0", i),
			Nodes: []string{fmt.Sprint("/dev/nvidia", i)}, Memory: model.VideoMemory{Used: optional(float64(r.IntN(1000)))},
			Engines: engines(), Unlisted: chance(10),
		}
		s.GPUs = append(s.GPUs, g)
		for part := range r.IntN(3) {
			if i%2 == 1 {
				s.GPUs = append(s.GPUs, model.GPU{
					Vendor: model.NVIDIA, ID: fmt.Sprint(i, ":", part), UUID: fmt.Sprint("MIG-", i, part), Parent: g.UUID,
					PCIAddress: g.PCIAddress, Memory: model.VideoMemory{Used: optional(float64(r.IntN(100)))}, Engines: engines(),
				})
			}
		}
	}
	anyGPU := func() string {
		if len(s.GPUs) == 0 || chance(10) {
			return "GPU-9"
		}
		return s.GPUs[r.IntN(len(s.GPUs))].UUID
	}
	for c := range uint64(6) {
		s.Entities[model.CgroupID(c+1)] = identitytest.Entity{Workload: fmt.Sprint("job:", c/2)} // two cgroups each
	}
	if chance(90) {
		s.GPUProcesses = []model.GPUProcess{}
	}
	for range r.IntN(30) {
		p := model.GPUProcess{
			GPU: anyGPU(), PID: 1 + r.IntN(40), Cgroup: model.CgroupID(uint64(r.IntN(9))), Memory: optional(float64(r.IntN(200))), Engines: engines(),
		}
		if s.GPUProcesses != nil {
			s.GPUProcesses = append(s.GPUProcesses, p)
		}
	}
	for c := range r.IntN(4) {
		s.Containers = append(s.Containers, model.Container{
			ID: fmt.Sprint("c", c), Runtime: "docker", Name: fmt.Sprint("c", c), AllDevices: chance(30),
			Devices: []string{fmt.Sprint("/dev/nvidia", r.IntN(5))}, GPURequests: []string{anyGPU()},
		})
	}
	return s
}

// TestNoRemainders: an engine's rest after its processes is 0, without a binary remainder.
func TestNoRemainders(t *testing.T) {
	s := facts{Snapshot: model.Snapshot{
		GPUs: []model.GPU{{Vendor: model.NVIDIA, ID: "0", UUID: "a", Engines: []model.Figure{{Name: "sm", Value: 0.6}}}},
		GPUProcesses: []model.GPUProcess{
			{GPU: "a", PID: 1, Cgroup: 1, Engines: []model.Figure{{Name: "sm", Value: 0.1}}},
			{GPU: "a", PID: 2, Cgroup: 1, Engines: []model.Figure{{Name: "sm", Value: 0.2}}},
			{GPU: "a", PID: 3, Cgroup: 2, Engines: []model.Figure{{Name: "sm", Value: 0.3}}},
		},
	}, Entities: map[model.CgroupID]identitytest.Entity{}}
	for _, share := range attribute(s).GPUs {
		for _, e := range share.Engines {
			if e.Value != 0 && e.Value != 0.3 && e.Value != 0.6 {
				t.Errorf("a share of %v", e.Value)
			}
		}
	}
}
