// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

func acs(control model.ACSControl) model.ACS {
	return model.ACS{State: model.ACSPresent, Control: control}
}

// TestPeerPaths: how a GPU and an HCA on one switch reach each other, and the deciding ports.
func TestPeerPaths(t *testing.T) {
	s := graceFacts()
	s.HCAs = append(s.HCAs, model.HCA{Name: "mlx5_3", VF: true, PF: "mlx5_0"}) // left out
	topology := New(s)
	type path struct {
		gpu, hca           string
		through, hcaPort   string
		gpuPort            string
		requests           Route
		completions        Route
		hcaGroup, gpuGroup string
		wrong              int
	}
	var got []path
	for _, p := range topology.PeerPaths() {
		got = append(got, path{
			topology.Devices[p.GPU].Name, topology.Devices[p.HCA].Name, p.DataDirect.Address, p.HCAPort.Address, p.GPUPort.Address,
			p.Requests, p.Completions, p.HCAGroup, p.GPUGroup, len(p.Differs) + len(p.NotCompared),
		})
	}
	if d := cmp.Diff([]path{
		{"0", "mlx5_0", "0009:03:00.0", "0009:02:00.0", "0009:02:01.0", RouteDirect, RouteDirect, "20", "20", 0},
		{"0", "mlx5_1", "0009:03:00.0", "0009:02:00.0", "0009:02:01.0", RouteDirect, RouteDirect, "20", "20", 0},
		{"1", "mlx5_2", "0019:03:00.0", "0019:02:00.0", "0019:02:01.0", RouteDirect, RouteDirect, "21", "21", 0},
	}, got, cmp.AllowUnexported(path{})); d != "" {
		t.Error(d)
	}
	paths := New(dgxA100.facts())
	if got := paths.PeerPaths(); len(got) != 16 || got[0].DataDirect != nil || got[0].HCAPort.Address != "0000:02:04.0" ||
		got[0].GPUPort.Address != "0000:02:00.0" || got[0].Requests != RouteUnknown || got[0].Differs != nil || len(got[0].NotCompared) != 1 {
		t.Errorf("DGX A100: %d paths, the first %+v", len(got), got[0])
	}
}

// TestRoutes: what each bit means for requests at the HCA's port, and for completions at the GPU's port.
func TestRoutes(t *testing.T) {
	for _, c := range []struct {
		acs                   model.ACS
		requests, completions Route
	}{
		{model.ACS{}, RouteUnknown, RouteUnknown},
		{model.ACS{State: model.ACSAbsent}, RouteDirect, RouteDirect},
		{acs(0), RouteDirect, RouteDirect},
		{acs(0x1d), RouteRedirected, RouteRedirected}, // the kernel's default
		{acs(0x5d), RouteTranslated, RouteRedirected},
		{acs(0x19), RouteDirect, RouteRedirected},
		{acs(0x15), RouteRedirected, RouteDirect},
		{acs(0x20), RouteUnknown, RouteDirect},
		{acs(0x40), RouteDirect, RouteDirect},
		{acs(0x5f), RouteRedirected, RouteRedirected}, // translated requests are blocked, others redirected
		{acs(0x02), RouteUnknown, RouteDirect},        // translated requests are blocked, others direct
		{acs(0x10), RouteDirect, RouteDirect},         // concerns only what a lower port redirected
	} {
		b := model.PCIBridge{ACS: c.acs}
		if r, d := requests(&b), completions(&b); r != c.requests || d != c.completions {
			t.Errorf("%+v: requests %q, completions %q; want %q and %q", c.acs, r, d, c.requests, c.completions)
		}
	}
}

// TestGrace: only rdma_topo's requirements, only on a platform that it knows, and only values that were read.
func TestGrace(t *testing.T) {
	const rootPort, hcaPort, gpuPort, lowest = "0009:00:00.0", "0009:02:00.0", "0009:02:01.0", "0009:05:00.0"
	platform := []string{"not compared: no values are known for these bridges and GPUs"}
	const defaults = " (SrcValid,ReqRedir,CmpltRedir,UpstreamFwd), not "
	for name, c := range map[string]struct {
		node func(*model.Snapshot)
		want []string // differences, or what is not compared
	}{
		"as required": {func(*model.Snapshot) {}, nil},
		"the kernel's default": {
			func(s *model.Snapshot) {
				for _, address := range []string{rootPort, hcaPort, gpuPort} {
					setACS(s, address, acs(0x1d))
				}
			},
			[]string{
				"ACS of " + rootPort + " is 0011101" + defaults + "xx111x0", "ACS of " + hcaPort + " is 0011101" + defaults + "xx110x1",
				"ACS of " + gpuPort + " is 0011101" + defaults + "xx101x1",
			},
		},
		"all switched off": {
			func(s *model.Snapshot) { setACS(s, lowest, acs(0)) }, []string{"ACS of " + lowest + " is 0000000 (none), not xx111x1"},
		},
		"reserved bits": {
			func(s *model.Snapshot) { setACS(s, lowest, acs(0xff80)) }, []string{"ACS of " + lowest + " is 0000000 (none), not xx111x1"},
		},
		"bits that do not matter": {func(s *model.Snapshot) { setACS(s, hcaPort, acs(0x19|0x62)) }, nil},
		"not read":                {func(s *model.Snapshot) { setACS(s, hcaPort, model.ACS{}) }, []string{"not compared: ACS of " + hcaPort + " is not known"}},
		"no capability":           {func(s *model.Snapshot) { setACS(s, hcaPort, model.ACS{State: model.ACSAbsent}) }, nil},
		"other IOMMU groups": {
			func(s *model.Snapshot) { s.PCI[0].IOMMUGroup = "7" },
			[]string{"the IOMMU groups of 0009:03:00.0 and the GPU are 20 and 7, not one group"},
		},
		"no IOMMU": {
			func(s *model.Snapshot) { s.PCI[0].IOMMUGroup, s.PCI[direct0].IOMMUGroup = "none", "none" },
			[]string{"the IOMMU groups of 0009:03:00.0 and the GPU are none and none, not one group"},
		},
		"an IOMMU group that is not known": {func(s *model.Snapshot) { s.PCI[0].IOMMUGroup = "" }, []string{"not compared: the IOMMU groups of 0009:03:00.0 and the GPU are not both known"}},
		"another root port": {
			func(s *model.Snapshot) {
				setACS(s, hcaPort, acs(0x1d))
				s.PCI[0].Bridges[0].ID, s.PCI[direct0].Bridges[0].ID = "8086:352a", "8086:352a"
			}, platform,
		},
		"another switch": {
			func(s *model.Snapshot) {
				setACS(s, hcaPort, acs(0x1d))
				s.PCI[0].Bridges[4].ID = "1000:c030"
			}, platform,
		},
		"a second GPU": {
			func(s *model.Snapshot) {
				setACS(s, hcaPort, acs(0x1d))
				s.PCI[1].Path = append(append([]string{}, s.PCI[0].Path[:5]...), "0009:05:01.0", s.PCI[1].Address)
			}, platform,
		},
		"a GPU of another vendor": {
			func(s *model.Snapshot) {
				setACS(s, hcaPort, acs(0x1d))
				s.GPUs[0].Vendor = model.AMD
			}, platform,
		},
		"a GPU on the first switch": {
			func(s *model.Snapshot) {
				setACS(s, hcaPort, acs(0x1d))
				s.PCI[0].Path = append(append([]string{}, s.PCI[0].Path[:4]...), s.PCI[0].Address)
			}, platform,
		},
	} {
		s := graceFacts()
		c.node(s)
		topology := New(s)
		p := topology.PeerPaths()[0]
		got := p.Differs
		for _, text := range p.NotCompared {
			got = append(got, "not compared: "+text)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// TestPeerPathsOfVF: virtual functions have no peer paths, on any node.
func TestPeerPathsOfVF(t *testing.T) {
	s := dgxA100.facts()
	before := New(s)
	s.HCAs = append(s.HCAs, model.HCA{Name: "mlx5_12", VF: true, PF: "mlx5_0"})
	after := New(s)
	if n, want := len(after.PeerPaths()), len(before.PeerPaths()); n != want || n == 0 {
		t.Errorf("%d paths, want %d", n, want)
	}
}
