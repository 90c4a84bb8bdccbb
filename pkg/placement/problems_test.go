// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
)

// job is a workload on GPUs and HCAs by number, with registered memory by kind.
type job struct {
	gpus, hcas []int
	assigned   bool // the GPUs are assigned, but unused
	memory     map[model.Memory]uint64
}

// attributed returns the shares of jobs, the owners 1, 2 and so on. The kernel has queue pairs on each HCA.
func attributed(s *model.Snapshot, jobs ...job) *attribution.Attribution {
	a := &attribution.Attribution{Owners: make([]identity.Owner, len(jobs)+1), Registered: []attribution.RegisteredShare{}}
	for _, h := range s.HCAs {
		a.Objects = append(a.Objects, attribution.ObjectShare{Device: h.Name, Type: model.QP, Current: 1})
	}
	for i, j := range jobs {
		owner := i + 1
		for _, g := range j.gpus {
			share := attribution.GPUShare{Owner: owner, GPU: &s.GPUs[g], Listed: true, Processes: 1}
			if j.assigned {
				share.Processes, share.Assigned = 0, &attribution.DeviceShare{}
			}
			a.GPUs = append(a.GPUs, share)
		}
		for _, h := range j.hcas {
			a.Objects = append(a.Objects,
				attribution.ObjectShare{Owner: owner, Device: s.HCAs[h].Name, Type: model.QP, Current: 2},
				attribution.ObjectShare{Owner: owner, Device: s.HCAs[(h+1)%len(s.HCAs)].Name, Type: model.PD, Current: 1})
		}
		for memory, bytes := range j.memory {
			a.Registered = append(a.Registered, attribution.RegisteredShare{Owner: owner, Device: "mlx5_0", Memory: memory, Bytes: bytes})
		}
	}
	return a
}

// problemsOf returns the names of the first job's problems, with the GPUs and HCAs concerned.
func problemsOf(s *model.Snapshot, jobs ...job) []string {
	p := of(s, attributed(s, jobs...))
	found := []string{}
	for _, w := range p.Workloads {
		if w.Owner != 1 {
			continue
		}
		for _, problem := range w.Problems {
			found = append(found, problem.Name+": "+p.names(problem.GPUs)+" | "+p.names(problem.HCAs))
		}
	}
	return found
}

// TestProblems checks jobs on a DGX A100 against its matrix.
func TestProblems(t *testing.T) {
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	rails := []int{0, 1, 2, 3, 6, 7, 8, 9} // without the storage HCAs 4, 5, 10, 11
	gpu := map[model.Memory]uint64{model.GPUMemory: 1, model.HostMemory: 1}
	host := map[model.Memory]uint64{model.HostMemory: 1}
	for name, c := range map[string]struct {
		job   job
		other []job
		node  func(*model.Snapshot)
		want  []string
	}{
		"all GPUs on all rails":            {job{gpus: all, hcas: rails, memory: gpu}, nil, nil, nil},
		"one GPU on one of two near rails": {job{gpus: []int{0}, hcas: []int{1}, memory: gpu}, nil, nil, nil},
		"a GPU with an HCA of another socket": {
			job{gpus: []int{0}, hcas: []int{6}, memory: gpu}, nil, nil, []string{"other_numa_node: 0 | mlx5_0, mlx5_1"},
		},
		"only assigned, and only storage": {
			job{gpus: []int{2, 3}, hcas: []int{4}, assigned: true}, nil, nil, []string{"other_numa_node: 2, 3 | mlx5_2, mlx5_3"},
		},
		"two GPUs, one near the HCA": {
			job{gpus: []int{0, 2}, hcas: []int{0}, memory: gpu},
			nil, nil,
			[]string{"other_numa_node: 2 | mlx5_2, mlx5_3", "idle_rails: 0, 2 | mlx5_1, mlx5_2, mlx5_3"},
		},
		"the near HCAs are down": {
			job{gpus: []int{0}, hcas: []int{6}, memory: gpu},
			nil,
			func(s *model.Snapshot) { s.HCAs[0].Ports[0].State, s.HCAs[1].Ports[0].State = "DOWN", "INIT" }, nil,
		},
		"the state of its HCA is not known": {
			job{gpus: []int{0}, hcas: []int{6}, memory: gpu},
			nil,
			func(s *model.Snapshot) { s.HCAs[6].Ports[0].State, s.HCAs[6].Ports[0].RateBits = "", 0 }, nil,
		},
		"the state of one of its HCAs is not known": {
			job{gpus: []int{0}, hcas: []int{6, 7}, memory: gpu},
			nil,
			func(s *model.Snapshot) { s.HCAs[6].Ports[0].State, s.HCAs[6].Ports[0].RateBits = "", 0 }, nil,
		},
		"the near HCAs are slower or of another fabric": {
			job{gpus: []int{0}, hcas: []int{6}, memory: gpu},
			nil,
			func(s *model.Snapshot) {
				s.HCAs[0].Ports[0].RateBits, s.HCAs[1].Ports[0].LinkLayer = 100e9, "Ethernet"
			}, nil,
		},
		"one NUMA node, another switch": {
			job{gpus: []int{0}, hcas: []int{2}, memory: gpu},
			nil,
			func(s *model.Snapshot) {
				for i := range s.PCI {
					s.PCI[i].NUMANode = "0"
				}
			},
			[]string{"other_pcie_switch: 0 | mlx5_0, mlx5_1"},
		},
		"no paths":                               {job{gpus: []int{0}, hcas: []int{6}}, nil, func(s *model.Snapshot) { s.PCI = nil }, nil},
		"GPUDirect unused":                       {job{gpus: []int{0}, hcas: []int{0}, memory: host}, nil, nil, []string{"gpudirect_unused: 0 | mlx5_0"}},
		"host memory, and no process on the GPU": {job{gpus: []int{0}, hcas: []int{0}, memory: host, assigned: true}, nil, nil, nil},
		"host memory, with an HCA elsewhere":     {job{gpus: []int{0, 6}, hcas: []int{4}, memory: host}, nil, func(s *model.Snapshot) { s.HCAs = s.HCAs[:6]; s.HCAs[4].Ports[0].RateBits = 400e9 }, nil},
		"memory of unknown kind": {
			job{gpus: []int{0}, hcas: []int{0}, memory: map[model.Memory]uint64{model.HostMemory: 1, model.UnknownMemory: 1}}, nil, nil, nil,
		},
		"two GPUs on one of two rails": {job{gpus: []int{0, 1}, hcas: []int{0}, memory: gpu}, nil, nil, []string{"idle_rails: 0, 1 | mlx5_1"}},
		"the other rail is another job's": {
			job{gpus: []int{0, 1}, hcas: []int{0}, memory: gpu}, []job{{hcas: []int{1}}}, nil, nil,
		},
		"a VF of the other rail is another job's": {
			job{gpus: []int{0, 1}, hcas: []int{0}, memory: gpu},
			[]job{{hcas: []int{12}}},
			func(s *model.Snapshot) {
				s.HCAs = append(s.HCAs, model.HCA{Name: "mlx5_12", VF: true, PF: "mlx5_1", Ports: s.HCAs[1].Ports})
			}, nil,
		},
		"a near VF is another tenant's": {
			job{gpus: []int{0}, hcas: []int{6}, memory: gpu},
			nil,
			func(s *model.Snapshot) {
				s.HCAs = append(s.HCAs, model.HCA{Name: "mlx5_12", VF: true, PF: "mlx5_1", Ports: s.HCAs[1].Ports})
				s.HCAs[0].Ports, s.HCAs[1].Ports = nil, nil
			}, nil,
		},
		"its VF is one of two rails": {
			job{gpus: []int{0, 1}, hcas: []int{12}, memory: gpu},
			nil,
			func(s *model.Snapshot) {
				s.HCAs = append(s.HCAs, model.HCA{Name: "mlx5_12", VF: true, PF: "mlx5_0", Ports: s.HCAs[0].Ports})
				s.HCAs[0].Ports = nil
			},
			[]string{"idle_rails: 0, 1 | mlx5_1"},
		},
		"seven of eight rails": {
			job{gpus: all, hcas: []int{0, 1, 2, 3, 6, 7, 8}, memory: gpu}, nil, nil, []string{"idle_rails: 6, 7 | mlx5_9"},
		},
		"a Data Direct function on the switch": {
			job{gpus: []int{0}, hcas: []int{6}, memory: gpu},
			nil,
			func(s *model.Snapshot) {
				path := append([]string{}, s.PCI[0].Path[:5]...)
				s.PCI = append(s.PCI, model.PCIFunction{Address: "0000:08:00.0", ID: "15b3:2100", Path: append(path, "0000:04:08.0", "0000:08:00.0")})
			}, nil,
		},
		"no GPU":         {job{hcas: rails, memory: host}, nil, nil, nil},
		"no queue pairs": {job{gpus: all, memory: host}, nil, nil, nil},
	} {
		s := dgxA100.facts()
		if c.node != nil {
			c.node(s)
		}
		want := append([]string{}, c.want...)
		if d := cmp.Diff(want, problemsOf(s, append([]job{c.job}, c.other...)...)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestUse(t *testing.T) {
	s := dgxA100.facts()
	a := attributed(s, job{gpus: []int{0, 2}, hcas: []int{0, 3}, memory: map[model.Memory]uint64{model.GPUMemory: 4096}}, job{hcas: []int{0}})
	p := NewRefresh(s, a).Placement()
	if len(p.Workloads) != 1 {
		t.Fatalf("%+v", p.Workloads)
	}
	w := p.Workloads[0]
	const mlx0, mlx3 = 8, 11
	if d := cmp.Diff([]Pair{{0, mlx0, PXB}, {0, mlx3, SYS}, {2, mlx0, SYS}, {2, mlx3, PXB}}, w.Pairs); d != "" {
		t.Error(d)
	}
	if w.GPUDirect != GPUDirectUsed || w.Owner != 1 || !w.Computes {
		t.Errorf("%+v", w)
	}
	for device, want := range map[int][]int{0: {1}, 1: nil, mlx0: {1, 2}, mlx3: {1}, mlx0 + 1: nil} {
		if d := cmp.Diff(want, p.Owners[device]); d != "" {
			t.Errorf("owners of %s: %s", p.Devices[device].Name, d)
		}
	}
}
