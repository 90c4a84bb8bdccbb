// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/placement"
)

// topologyNode returns a node with a GPU and an HCA on one switch, and an HCA on another NUMA node. A workload uses the
// GPU with that second HCA.
func topologyNode(state model.State) Facts {
	port := []model.Port{{Number: 1, State: "ACTIVE", LinkLayer: "InfiniBand", RateBits: 400e9}}
	facts := model.Snapshot{
		GPUs: []model.GPU{{Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0", PCIAddress: "0000:14:00.0"}},
		HCAs: []model.HCA{
			{Name: "mlx5_0", PCIAddress: "0000:13:00.0", Ports: port}, {Name: "mlx5_1", PCIAddress: "0000:93:00.0", Ports: port},
		},
		PCI: []model.PCIFunction{
			{
				Address: "0000:13:00.0", NUMANode: "0", Path: []string{"pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:00.0", "0000:13:00.0"},
				PCIEnd:  model.PCIEnd{Link: model.PCILink{Speed: 16e9, MaxSpeed: 32e9, Width: 16, MaxWidth: 16}},
				Bridges: []model.PCIBridge{{Address: "0000:12:00.0", ACS: model.ACS{State: model.ACSPresent, Control: 0x105}}}, IOMMUGroup: "3",
			},
			{
				Address: "0000:14:00.0", NUMANode: "0", Path: []string{"pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:01.0", "0000:14:00.0"},
				Bridges: []model.PCIBridge{{Address: "0000:12:01.0", ACS: model.ACS{State: model.ACSAbsent}}}, IOMMUGroup: "none",
			},
			{Address: "0000:93:00.0", NUMANode: "1", Path: []string{"pci0000:90", "0000:90:01.0", "0000:93:00.0"}},
		},
	}
	known := Known{
		Facts: facts, States: topologySources(state),
		Shares: attribution.Attribution{
			Owners: []identity.Owner{{}, {Workload: "ml/train-0/main", Namespace: "ml", Pod: "train-0", Container: "main", ContainerID: "c1"}},
			GPUs:   []attribution.GPUShare{{Owner: 1, GPU: &facts.GPUs[0], Processes: 1}},
			Objects: []attribution.ObjectShare{
				{Owner: 1, Device: "mlx5_1", Type: model.QP, Current: 2}, {Device: "mlx5_0", Type: model.QP, Current: 1},
			},
		},
	}
	known.Placement = placement.NewRefresh(&known.Facts, &known.Shares)
	return func() Known { return known }
}

// topologySources are the states of the sources of the topology.
func topologySources(pci model.State) []model.SourceState {
	return []model.SourceState{
		{Source: "pci", State: pci, Reason: "permission denied"}, {Source: "rdma", State: model.StateOK}, {Source: "nvidia", State: model.StateOK},
	}
}

// TestTopology compares an answer with the facts, and with the answer for another workload.
func TestTopology(t *testing.T) {
	get := func(query string) Topology {
		t.Helper()
		status, body := request(t, topologyNode(model.StateOK), nil, http.MethodGet, "/api/v1/topology"+query)
		var answer struct{ Data Topology }
		if err := json.Unmarshal([]byte(body), &answer); err != nil || status != http.StatusOK {
			t.Fatalf("%d %v", status, err)
		}
		return answer.Data
	}
	got := get("")
	owner := identity.Owner{Workload: "ml/train-0/main", Namespace: "ml", Pod: "train-0", Container: "main", ContainerID: "c1"}
	want := Topology{
		Devices: []TopologyDevice{
			{
				Kind: "gpu", Name: "0", UUID: "GPU-0", Vendor: "nvidia", PCIAddress: "0000:14:00.0", NUMANode: "0", Owners: []identity.Owner{owner},
				Path: []string{"pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:01.0", "0000:14:00.0"},
			},
			{
				Kind: "hca", Name: "mlx5_0", PCIAddress: "0000:13:00.0", NUMANode: "0", Owners: []identity.Owner{},
				Path: []string{"pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:00.0", "0000:13:00.0"},
				Link: TopologyLink{Speed: 16e9, Width: 16, MaxSpeed: 32e9, MaxWidth: 16, Degraded: true},
			},
			{
				Kind: "hca", Name: "mlx5_1", PCIAddress: "0000:93:00.0", NUMANode: "1", Owners: []identity.Owner{owner},
				Path: []string{"pci0000:90", "0000:90:01.0", "0000:93:00.0"},
			},
		},
		Workloads: []TopologyWorkload{{
			Owner: owner, GPUDirect: "unknown", Pairs: []TopologyPair{{GPU: 0, HCA: 2, Relation: "SYS"}},
			Problems: []TopologyProblem{{
				Problem: "other_numa_node", GPUs: []int{0}, HCAs: []int{1},
				Text: "GPU 0: all HCAs that the workload uses are on another NUMA node; nearer are mlx5_0",
			}},
		}},
	}
	want.DataDirect = []TopologyDataDirect{}
	want.PeerPaths = []TopologyPeerPath{{
		GPU: 0, HCA: 1, HCAPort: TopologyPort{PCIAddress: "0000:12:00.0", ACS: "SrcValid,ReqRedir", Control: 0x105},
		GPUPort: TopologyPort{PCIAddress: "0000:12:01.0", ACS: "absent"}, Requests: placement.RouteRedirected, Completions: placement.RouteDirect,
		IOMMUGroups: TopologyIOMMUGroup{HCA: "3", GPU: "none"}, Differs: []string{},
		NotCompared: []string{"the HCA is not nearer through a Data Direct function"},
	}}
	relations, err := json.Marshal(got.Relations)
	if err != nil || string(relations) != `[["X","PIX","SYS"],["PIX","X","SYS"],["SYS","SYS","X"]]` {
		t.Errorf("relations: %s %v", relations, err)
	}
	got.Relations = nil
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	other := get("?workload=other")
	if len(other.Devices) != 3 || len(other.Devices[0].Owners)+len(other.Workloads) != 0 {
		t.Errorf("%+v", other)
	}
}

func TestTopologyStates(t *testing.T) {
	absent := topologySources(model.StateAbsent)
	absent[1].State, absent[2].State = model.StateAbsent, model.StateAbsent
	noHCAs := topologyNode(model.StateOK)()
	noHCAs.Facts.HCAs = nil
	noHCAs.Placement = placement.NewRefresh(&noHCAs.Facts, &noHCAs.Shares)
	noHCAs.States[1] = model.SourceState{Source: "rdma", State: model.StateStuck, Reason: "a file hangs"}
	for name, c := range map[string]struct {
		facts   Facts
		status  int
		message string
	}{
		"all is read":  {topologyNode(model.StateOK), http.StatusOK, "success"},
		"no places":    {topologyNode(model.StateFailed), http.StatusOK, "partial: pci is failed: permission denied"},
		"no HCAs":      {func() Known { return noHCAs }, http.StatusOK, "partial: rdma is stuck: a file hangs"},
		"no devices":   {func() Known { return Known{States: absent} }, http.StatusOK, "success"},
		"switched off": {func() Known { return Known{} }, http.StatusServiceUnavailable, "not read: pci is switched off"},
	} {
		status, body := request(t, c.facts, nil, http.MethodGet, "/api/v1/topology")
		var answer struct{ Message string }
		if err := json.Unmarshal([]byte(body), &answer); err != nil || status != c.status || answer.Message != c.message {
			t.Errorf("%s: %d %v %s", name, status, err, body)
		}
	}
}
