// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"math"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// twoVendors returns a node with a GPU in parts, a lost GPU, a suspended GPU, an accelerator
// in partitions, and a DRI device that is not a GPU.
var twoVendors = model.Snapshot{
	GPUs: []model.GPU{
		{
			Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0", Name: "H100", Serial: "165", PCIAddress: "0000:18:00.0", PCIDevice: "0x2330",
			Nodes: []string{"/dev/nvidia0"}, Memory: model.VideoMemory{Used: model.Some(1), Total: model.Some(3)},
			Problems: []model.GPUCondition{{Name: model.ProblemXID, Active: true}, {Name: model.ProblemECC}},
		},
		{
			Vendor: model.NVIDIA, ID: "0:1", UUID: "MIG-1", Parent: "GPU-0", Name: "H100 MIG 1g.10gb", PCIAddress: "0000:18:00.0",
			Profile: "1g.10gb", Nodes: []string{"/dev/nvidia-caps/nvidia-cap21"}, Problems: []model.GPUCondition{},
		},
		{
			Vendor: model.NVIDIA, ID: "1", UUID: "GPU-1",
			Problems: []model.GPUCondition{{Name: model.ProblemLost, Active: true}},
		},
		{
			Vendor: model.AMD, ID: "0", UUID: "c1d2", PCIAddress: "0000:C1:00.0", Suspended: true,
			Utilization: model.Some(math.NaN()), Memory: model.VideoMemory{Used: model.Some(0), Total: model.Some(0)},
		},
		{
			Vendor: model.AMD, ID: "0:1", UUID: "c1d2-1", Parent: "c1d2", PCIAddress: "0000:c1:00.0", Profile: "CPX/NPS4",
			Nodes: []string{"/dev/dri/renderD129", "/dev/dri/card2"}, Utilization: model.Some(0.07),
			Memory: model.VideoMemory{Used: model.Some(5), Total: model.Some(4)},
		},
		{Vendor: model.AMD, ID: "x", UUID: "odd", Blocked: true},
	},
	DRI: []model.DRIDevice{
		{Card: "/dev/dri/card0", Driver: "ast"},
		{Card: "/dev/dri/card1", CardID: 1, Render: "/dev/dri/renderD128", PCIAddress: "0000:c1:00.0", Driver: "amdgpu"},
		{Card: "/dev/dri/card3", CardID: 3, PCIAddress: "0000:18:00.0", Driver: "nvidia"},
		{Render: "/dev/dri/renderD130"},
	},
	GPUDrivers: []model.GPUDriver{{Vendor: model.NVIDIA, Version: "570.1"}, {Vendor: model.AMD}, {Vendor: model.AMD, Version: "6.1.0-42-amd64"}},
}

func TestGPUs(t *testing.T) {
	facts := knows(twoVendors, model.StateOK)
	for path, want := range map[string][]string{
		"/gpus": {
			`{"gpu":0,"asic":{"market_name":"H100","device_id":"0x2330","asic_serial":"165"},"bus":{"bdf":"0000:18:00.0"},` +
				`"dri_device":{"card":"/dev/dri/card3","render":"","pci_addr":"0000:18:00.0"},"id":"0","uuid":"GPU-0","vendor":"nvidia",` +
				`"parent_uuid":"","profile":"","nodes":["/dev/nvidia0"],"suspended":false,"blocked":false,"problems":["xid"]}`,
			`{"gpu":0,"asic":{"market_name":"H100 MIG 1g.10gb","device_id":"","asic_serial":""},"bus":{"bdf":"0000:18:00.0"},` +
				`"dri_device":{"card":"","render":"","pci_addr":"0000:18:00.0"},"id":"0:1","uuid":"MIG-1","vendor":"nvidia",` +
				`"parent_uuid":"GPU-0","profile":"1g.10gb","nodes":["/dev/nvidia-caps/nvidia-cap21"],"suspended":false,"blocked":false,"problems":[]}`,
			`{"gpu":1,"asic":{"market_name":"","device_id":"","asic_serial":""},"bus":{"bdf":""},` +
				`"dri_device":{"card":"","render":"","pci_addr":""},"id":"1","uuid":"GPU-1","vendor":"nvidia",` +
				`"parent_uuid":"","profile":"","nodes":[],"suspended":false,"blocked":false,"problems":["lost"]}`,
			`{"gpu":0,"asic":{"market_name":"","device_id":"","asic_serial":""},"bus":{"bdf":"0000:C1:00.0"},` +
				`"dri_device":{"card":"/dev/dri/card1","render":"/dev/dri/renderD128","pci_addr":"0000:C1:00.0"},"id":"0","uuid":"c1d2",` +
				`"vendor":"amd","parent_uuid":"","profile":"","nodes":[],"suspended":true,"blocked":false,"problems":null}`,
			`{"gpu":0,"asic":{"market_name":"","device_id":"","asic_serial":""},"bus":{"bdf":"0000:c1:00.0"},` +
				`"dri_device":{"card":"/dev/dri/card2","render":"/dev/dri/renderD129","pci_addr":"0000:c1:00.0"},"id":"0:1",` +
				`"uuid":"c1d2-1","vendor":"amd","parent_uuid":"c1d2","profile":"CPX/NPS4",` +
				`"nodes":["/dev/dri/renderD129","/dev/dri/card2"],"suspended":false,"blocked":false,"problems":null}`,
			`{"gpu":null,"asic":{"market_name":"","device_id":"","asic_serial":""},"bus":{"bdf":""},` +
				`"dri_device":{"card":"","render":"","pci_addr":""},"id":"x","uuid":"odd","vendor":"amd",` +
				`"parent_uuid":"","profile":"","nodes":[],"suspended":false,"blocked":true,"problems":null}`,
		},
		"/cardMetrics": {
			`{"gpu":0,"gpu_use_percent":null,"memory_use_percent":33.3333,"id":"0","uuid":"GPU-0","vendor":"nvidia","parent_uuid":""}`,
			`{"gpu":0,"gpu_use_percent":null,"memory_use_percent":null,"id":"0:1","uuid":"MIG-1","vendor":"nvidia","parent_uuid":"GPU-0"}`,
			`{"gpu":1,"gpu_use_percent":null,"memory_use_percent":null,"id":"1","uuid":"GPU-1","vendor":"nvidia","parent_uuid":""}`,
			`{"gpu":0,"gpu_use_percent":null,"memory_use_percent":null,"id":"0","uuid":"c1d2","vendor":"amd","parent_uuid":""}`,
			`{"gpu":0,"gpu_use_percent":7,"memory_use_percent":100,"id":"0:1","uuid":"c1d2-1","vendor":"amd","parent_uuid":"c1d2"}`,
			`{"gpu":null,"gpu_use_percent":null,"memory_use_percent":null,"id":"x","uuid":"odd","vendor":"amd","parent_uuid":""}`,
		},
	} {
		status, body := request(t, facts, nil, http.MethodGet, path)
		var got struct{ Data []json.RawMessage }
		if err := json.Unmarshal([]byte(body), &got); err != nil || status != http.StatusOK {
			t.Fatalf("%s: %d %s", path, status, body)
		}
		entries := make([]string, 0, len(got.Data))
		for _, e := range got.Data {
			entries = append(entries, string(e))
		}
		if d := cmp.Diff(want, entries); d != "" {
			t.Errorf("%s (-want +got):\n%s", path, d)
		}
	}
	for path, want := range map[string]string{
		"/driMapping": `{"/dev/dri/card0":{"card":"/dev/dri/card0","render":"","pci_addr":"","card_id":0,"driver":"ast"},` +
			`"/dev/dri/card1":{"card":"/dev/dri/card1","render":"/dev/dri/renderD128","pci_addr":"0000:c1:00.0","card_id":1,"driver":"amdgpu"},` +
			`"/dev/dri/card3":{"card":"/dev/dri/card3","render":"","pci_addr":"0000:18:00.0","card_id":3,"driver":"nvidia"}}`,
		"/gpuDriverVersion":               `"6.1.0-42-amd64"`,
		"/gpuDriverVersion?vendor=amd":    `"6.1.0-42-amd64"`,
		"/gpuDriverVersion?vendor=nvidia": `"570.1"`,
	} {
		if status, body := request(t, facts, nil, http.MethodGet, path); status != 200 || body != `{"code":0,"data":`+want+`,"message":"success"}` {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

// TestNVIDIADriver: on a node with NVIDIA GPUs only, the answer is the version of NVIDIA's driver.
func TestNVIDIADriver(t *testing.T) {
	k := Known{Facts: twoVendors, States: []model.SourceState{
		{Source: "nvidia", State: model.StateOK}, {Source: "amdgpu", State: model.StateAbsent},
	}}
	k.Facts.GPUDrivers = k.Facts.GPUDrivers[:1]
	facts := func() Known { return k }
	for query, want := range map[string]string{"": `"data":"570.1"`, "?vendor=amd": `"code":404`} {
		if _, body := request(t, facts, nil, http.MethodGet, "/gpuDriverVersion"+query); !strings.Contains(body, want) {
			t.Errorf("%s: %s", query, body)
		}
	}
}

func TestRDMA(t *testing.T) {
	s := model.Snapshot{HCAs: []model.HCA{
		{Name: "mlx4_0", Index: 2, NodeGUID: "0x0002c90300001000", Ports: []model.Port{
			{
				Number: 1, PortGUID: "0x0002c90300001001", LinkLayer: "InfiniBand", LID: "0x1f",
				GIDs:  []model.GID{{Type: model.GIDInfiniBand, Address: netip.MustParseAddr("fe80::2:c903:0:1001")}},
				PKeys: []model.PKey{{Partition: 0x7fff}, {Index: 2, Partition: 0x12, Full: true}},
			},
			{Number: 2, LinkLayer: "Ethernet", LID: "0x1", GIDs: []model.GID{
				{Index: 3, Type: model.GIDRoCEv2, Address: netip.MustParseAddr("::ffff:10.0.0.1"), Netdev: "eth1"},
			}},
		}},
		{Name: "siw0", Index: 5, SysImageGUID: "odd"},
	}}
	want := `{"code":0,"data":[{"if_index":2,"if_name":"mlx4_0","node_guid":"00:02:c9:03:00:00:10:00","sys_image_guid":"",` +
		`"port_guid":"00:02:c9:03:00:00:10:01","link_layer":"InfiniBand","gids":[` +
		`{"port":1,"index":0,"type":"ib","address":"fe80::2:c903:0:1001","interface":""},` +
		`{"port":2,"index":3,"type":"roce_v2","address":"::ffff:10.0.0.1","interface":"eth1"}],"pkeys":[` +
		`{"port":1,"index":0,"partition":"0x7fff","membership":"limited"},` +
		`{"port":1,"index":2,"partition":"0x0012","membership":"full"}],"lids":[{"port":1,"lid":31}]},{"if_index":5,"if_name":"siw0","node_guid":"",` +
		`"sys_image_guid":"odd","port_guid":"","link_layer":""}],"message":"success"}`
	if _, body := request(t, knows(s, model.StateOK), nil, http.MethodGet, "/rdma"); body != want {
		t.Error(cmp.Diff(want, body))
	}
}
