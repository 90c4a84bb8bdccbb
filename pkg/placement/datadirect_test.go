// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// grace is a part of a node with Data Direct, constructed after the description in rdma-core's rdma_topo, with invented
// addresses. HCAs have their own root ports. GPUs are below switches that hold, besides, only the Data Direct
// functions.
const grace tree = `
gpu 0 0 pci0009:00/0009:00:00.0/0009:01:00.0/0009:02:01.0/0009:04:00.0/0009:05:00.0/0009:06:00.0
gpu 1 0 pci0019:00/0019:00:00.0/0019:01:00.0/0019:02:01.0/0019:04:00.0/0019:05:00.0/0019:06:00.0
hca mlx5_0 0 pci0000:00/0000:00:00.0/0000:03:00.0
hca mlx5_1 0 pci0000:00/0000:00:00.0/0000:03:00.1
hca mlx5_2 0 pci0010:00/0010:00:00.0/0010:03:00.0`

// The bridges of a GPU of grace from the root port on, with the ACS Control values that rdma_topo requires.
var graceBridges = []model.PCIBridge{
	{Address: "00:00.0", ID: "10de:22b1", ACS: model.ACS{State: model.ACSPresent, Control: 0x1c}},
	{Address: "01:00.0", ID: "15b3:197c", ACS: model.ACS{State: model.ACSAbsent}},
	{Address: "02:01.0", ID: "15b3:197c", ACS: model.ACS{State: model.ACSPresent, Control: 0x15}},
	{Address: "04:00.0", ID: "15b3:197c", ACS: model.ACS{State: model.ACSAbsent}},
	{Address: "05:00.0", ID: "15b3:197c", ACS: model.ACS{State: model.ACSPresent, Control: 0x1d}},
}

// graceFacts returns the facts of grace: mlx5_0 and mlx5_1, of one card, belong to the Data Direct function of GPU 0,
// mlx5_2 to GPU 1's.
func graceFacts() *model.Snapshot {
	s := grace.facts()
	for i, domain := range []string{"0009:", "0019:"} {
		for _, b := range graceBridges {
			b.Address = domain + b.Address
			s.PCI[i].Bridges = append(s.PCI[i].Bridges, b)
		}
		port := model.PCIBridge{Address: domain + "02:00.0", ID: "15b3:197c", ACS: model.ACS{State: model.ACSPresent, Control: 0x19}}
		path := append(slices.Clone(s.PCI[i].Path[:3]), port.Address, domain+"03:00.0")
		s.PCI[i].IOMMUGroup = fmt.Sprint(20 + i)
		s.PCI = append(s.PCI, model.PCIFunction{
			Address: domain + "03:00.0", ID: "15b3:2100", Driver: "mlx5_ib", Path: path, NUMANode: "0", IOMMUGroup: s.PCI[i].IOMMUGroup,
			Bridges: append(slices.Clone(s.PCI[i].Bridges[:2]), port), VPD: model.VPD{UUID: "card-" + domain},
		})
	}
	s.PCI[2].VPD.UUID, s.PCI[3].VPD.UUID, s.PCI[4].VPD.UUID = "card-0009:", "card-0009:", "card-0019:"
	return s
}

const direct0, direct1 = 5, 6 // the Data Direct functions in PCI

// setACS sets ACS of a bridge. Each function below the bridge has a copy.
func setACS(s *model.Snapshot, address string, acs model.ACS) {
	for i := range s.PCI {
		for j := range s.PCI[i].Bridges {
			if b := &s.PCI[i].Bridges[j]; b.Address == address {
				b.ACS = acs
			}
		}
	}
}

// TestPair: the HCA of a Data Direct function, and why it is unknown.
func TestPair(t *testing.T) {
	for name, c := range map[string]struct {
		node func(*model.Snapshot)
		want string // of the first Data Direct function
	}{
		"paired": {func(*model.Snapshot) {}, "0000:03:00.0 0000:03:00.1 | "},
		"only one port has a readable VPD": {
			func(s *model.Snapshot) { s.PCI[2].VPD = model.VPD{Missing: "x"} },
			" | 0000:03:00.1 has its UUID; the UUID of 0000:03:00.0 on the same bus is not known: x",
		},
		"another HCA has no readable VPD": {
			func(s *model.Snapshot) { s.PCI[4].VPD = model.VPD{Missing: "x"} }, "0000:03:00.0 0000:03:00.1 | ",
		},
		"its VPD is not readable":   {func(s *model.Snapshot) { s.PCI[direct0].VPD = model.VPD{Missing: "an error"} }, " | an error"},
		"its VPD was not read":      {func(s *model.Snapshot) { s.PCI[direct0].VPD = model.VPD{} }, " | its VPD was not read"},
		"no driver is bound to it":  {func(s *model.Snapshot) { s.PCI[direct0].Driver = "" }, " | no driver is bound to it"},
		"it is passed to a VM":      {func(s *model.Snapshot) { s.PCI[direct0].Driver = "vfio-pci" }, " | its driver is vfio-pci, not mlx5_ib"},
		"two Data Direct functions": {func(s *model.Snapshot) { s.PCI[direct1].VPD = s.PCI[direct0].VPD }, " | 0019:03:00.0 has the same UUID"},
		"two HCAs": {
			func(s *model.Snapshot) { s.PCI[4].VPD = s.PCI[2].VPD }, " | several HCAs have its UUID: 0000:03:00.0, 0000:03:00.1, 0010:03:00.0",
		},
		"no HCA": {func(s *model.Snapshot) { s.PCI[direct0].VPD.UUID = "other" }, " | no HCA whose UUID is known has its UUID"},
		"no HCA, and one of a VM and one without a driver": {func(s *model.Snapshot) {
			s.PCI[direct0].VPD.UUID, s.PCI[0].ID, s.PCI[0].Class = "other", "10de:31c2", "0x030200"
			for _, i := range []int{2, 3} {
				s.PCI[i].ID, s.PCI[i].Class, s.PCI[i].VPD = "15b3:1023", "0x020700", model.VPD{}
			}
			s.PCI[2].Driver = "vfio-pci"
		}, " | no HCA whose UUID is known has its UUID; 0000:03:00.0: not read, its driver is vfio-pci; 0000:03:00.1: not read, it has no driver"},
		"no HCA, and one that is not known": {func(s *model.Snapshot) {
			s.PCI[direct0].VPD.UUID, s.PCI[3].VPD = "other", model.VPD{Missing: "it has no VPD"}
		}, " | no HCA whose UUID is known has its UUID; 0000:03:00.1: it has no VPD"},
	} {
		s := graceFacts()
		c.node(s)
		d := New(s).DataDirect[0]
		if got := strings.Join(d.HCAs, " ") + " | " + d.Unknown; got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestDataDirectRelation: a GPU and an HCA are as near as the HCA's Data Direct function, if it is known.
func TestDataDirectRelation(t *testing.T) {
	s := graceFacts()
	s.HCAs = append(s.HCAs, model.HCA{Name: "mlx5_3", VF: true, PF: "mlx5_0"})
	const gpu0, gpu1, mlx0, mlx1, mlx2, vf = 0, 1, 2, 3, 4, 5
	check := func(want map[[2]int]Relation) {
		t.Helper()
		topology := New(s)
		for pair, want := range want {
			if got, back := topology.Relation(pair[0], pair[1]), topology.Relation(pair[1], pair[0]); got != want || back != want {
				t.Errorf("%v: %s and %s, want %s", pair, got, back, want)
			}
		}
	}
	check(map[[2]int]Relation{
		{gpu0, mlx0}: PXB, {gpu0, mlx1}: PXB, {gpu0, vf}: Unknown, {gpu1, vf}: NODE, {gpu0, mlx2}: NODE, {gpu1, mlx2}: PXB, {gpu1, mlx0}: NODE,
		{gpu0, gpu1}: NODE, {mlx0, mlx1}: PIX, {mlx0, mlx2}: NODE, {mlx0, mlx0}: Self,
	})
	s.PCI[direct0].VPD = model.VPD{Missing: "it has no VPD"}
	check(map[[2]int]Relation{{gpu0, mlx0}: NODE, {gpu0, vf}: NODE, {gpu1, mlx2}: PXB})
	s.PCI[2].Path = nil // only the place of its Data Direct function is known
	s.PCI[direct0].VPD.UUID = "card-0009:"
	check(map[[2]int]Relation{{gpu0, mlx0}: PXB, {gpu1, mlx0}: NODE, {mlx0, mlx2}: Unknown})
}

// TestDataDirectProblems: known pairs decide about the problems of workloads.
func TestDataDirectProblems(t *testing.T) {
	host, gpu := map[model.Memory]uint64{model.HostMemory: 1}, map[model.Memory]uint64{model.GPUMemory: 1}
	redirected := model.ACS{State: model.ACSPresent, Control: 0x1d}
	virtual := func(s *model.Snapshot) {
		s.HCAs = append(s.HCAs, model.HCA{Name: "mlx5_3", VF: true, PF: "mlx5_0", Ports: s.HCAs[0].Ports})
	}
	for name, c := range map[string]struct {
		job  job
		node func(*model.Snapshot)
		want []string
	}{
		"its own HCA":        {job{gpus: []int{0}, hcas: []int{0}, memory: gpu}, nil, nil},
		"the HCA of another": {job{gpus: []int{0}, hcas: []int{2}, memory: gpu}, nil, []string{"other_pcie_switch: 0 | mlx5_0, mlx5_1"}},
		"GPUDirect unused":   {job{gpus: []int{0}, hcas: []int{0}, memory: host}, nil, []string{"gpudirect_unused: 0 | mlx5_0"}},
		"not known which HCA": {
			job{gpus: []int{0}, hcas: []int{2}, memory: host}, func(s *model.Snapshot) { s.PCI[direct0].VPD = model.VPD{Missing: "x"} }, nil,
		},
		"the UUID of the port that it uses is not known": {
			job{gpus: []int{0}, hcas: []int{0}, memory: gpu}, func(s *model.Snapshot) { s.PCI[2].VPD = model.VPD{Missing: "x"} }, nil,
		},
		"redirected": {
			job{gpus: []int{0}, hcas: []int{0, 1}, memory: gpu},
			func(s *model.Snapshot) { setACS(s, "0009:02:00.0", redirected) },
			[]string{"data_direct_path: 0 | mlx5_0, mlx5_1"},
		},
		"completions redirected": {
			job{gpus: []int{0}, hcas: []int{0}, memory: gpu},
			func(s *model.Snapshot) { setACS(s, "0009:02:01.0", redirected) },
			[]string{"data_direct_path: 0 | mlx5_0"},
		},
		"redirected unless ATS translated": {
			job{gpus: []int{0}, hcas: []int{0}, memory: gpu}, func(s *model.Snapshot) { setACS(s, "0009:02:00.0", acs(0x5d)) }, nil,
		},
		"all switched off, one IOMMU group": {
			job{gpus: []int{0}, hcas: []int{0}, memory: gpu},
			func(s *model.Snapshot) {
				for _, b := range s.PCI[0].Bridges {
					setACS(s, b.Address, acs(0))
				}
				setACS(s, "0009:02:00.0", acs(0))
			}, nil,
		},
		"other IOMMU groups": { // which NVreg_GrdmaPciTopoCheckOverride=1 allows
			job{gpus: []int{0}, hcas: []int{0}, memory: gpu}, func(s *model.Snapshot) { s.PCI[0].IOMMUGroup = "7" }, nil,
		},
		"redirected, and memory of the host only": {
			job{gpus: []int{0}, hcas: []int{0}, memory: host},
			func(s *model.Snapshot) { setACS(s, "0009:02:00.0", redirected) },
			[]string{"gpudirect_unused: 0 | mlx5_0"},
		},
		"redirected, and memory of unknown kind": {
			job{gpus: []int{0}, hcas: []int{0}}, func(s *model.Snapshot) { setACS(s, "0009:02:00.0", redirected) }, nil,
		},
		"redirected, and no process on the GPU": {
			job{gpus: []int{0}, hcas: []int{0}, memory: gpu, assigned: true}, func(s *model.Snapshot) { setACS(s, "0009:02:00.0", redirected) }, nil,
		},
		"redirected on another platform": {
			job{gpus: []int{0}, hcas: []int{0}, memory: gpu},
			func(s *model.Snapshot) {
				setACS(s, "0009:02:00.0", redirected)
				s.PCI[0].Bridges[0].ID, s.PCI[direct0].Bridges[0].ID = "8086:352a", "8086:352a"
			}, nil,
		},
		"a VF":                        {job{gpus: []int{0}, hcas: []int{3}, memory: host}, virtual, nil},
		"a VF and the HCA of another": {job{gpus: []int{0}, hcas: []int{2, 3}, memory: gpu}, virtual, nil},
		"a VF, and the other rail idle": {
			job{gpus: []int{0, 1}, hcas: []int{2, 3}, memory: gpu},
			func(s *model.Snapshot) {
				virtual(s)
				s.PCI[3].VPD.UUID = "card-0019:"
				s.PCI[3].Address, s.HCAs[1].PCIAddress = "0010:03:00.1", "0010:03:00.1"
			}, nil,
		},
		"redirected elsewhere": {
			job{gpus: []int{0}, hcas: []int{0}, memory: gpu}, func(s *model.Snapshot) { setACS(s, "0019:02:00.0", redirected) }, nil,
		},
	} {
		s := graceFacts()
		if c.node != nil {
			c.node(s)
		}
		if d := cmp.Diff(append([]string{}, c.want...), problemsOf(s, c.job)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	s := graceFacts()
	setACS(s, "0009:02:00.0", redirected)
	setACS(s, "0009:02:01.0", redirected)
	p := of(s, attributed(s, job{gpus: []int{0}, hcas: []int{0, 1}, memory: gpu}))
	const want = "GPU 0: ACS redirects transfers with the Data Direct function of mlx5_0, mlx5_1: " +
		"completions at 0009:02:01.0, requests at 0009:02:00.0"
	if got := p.Workloads[0].Problems[0].Text; got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
