// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
)

// mixed returns GPUs of three vendors, with one partitioned NVIDIA GPU.
func mixed() []model.GPU {
	return []model.GPU{
		{Vendor: model.AMD, ID: "0", UUID: "aa", PCIAddress: "0000:c1:00.0", Nodes: []string{"/dev/dri/card2", "/dev/dri/renderD130"}},
		{Vendor: model.AMD, ID: "1", UUID: "bb", PCIAddress: "0000:c2:00.0", Nodes: []string{"/dev/dri/card3", "/dev/dri/renderD131"}},
		{Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0", PCIAddress: "0000:18:00.0", Nodes: []string{"/dev/nvidia0", "/dev/dri/card0"}},
		{Vendor: model.NVIDIA, ID: "1", UUID: "GPU-1", PCIAddress: "0000:2A:00.0", Nodes: []string{"/dev/nvidia1"}},
		{
			Vendor: model.NVIDIA, ID: "1:0", UUID: "MIG-1", Parent: "GPU-1", PCIAddress: "0000:2a:00.0",
			Nodes: []string{"/dev/nvidia-caps/nvidia-cap66"},
		},
		{
			Vendor: model.NVIDIA, ID: "1:1", UUID: "MIG-2", Parent: "GPU-1", PCIAddress: "0000:2a:00.0",
			Nodes: []string{"/dev/nvidia-caps/nvidia-cap75"},
		},
		{
			Vendor: model.Intel, ID: "0", UUID: "0000:9a:00.0", PCIAddress: "0000:9a:00.0",
			Nodes: []string{"/dev/dri/card5", "/dev/dri/renderD133"},
		},
	}
}

// TestAssignedGPUs checks that all sources of an assignment give one complete share.
func TestAssignedGPUs(t *testing.T) {
	nodes := func(paths ...string) func(*model.Container) { return func(c *model.Container) { c.Devices = paths } }
	requests := func(names ...string) func(*model.Container) {
		return func(c *model.Container) { c.GPURequests = names }
	}
	privileged := func(c *model.Container) { c.AllDevices = true }
	with := func(changes ...func(*model.Container)) []model.Container {
		return []model.Container{worker(changes...)}
	}
	kubelet := func(pairs ...string) (list []model.Allocation) {
		for i := 0; i < len(pairs); i += 2 {
			list = append(list, given(pairs[i], pairs[i+1]))
		}
		return list
	}
	for name, c := range map[string]struct {
		containers  []model.Container
		allocations []model.Allocation
		want        []string // UUID, device, resource, PCI address, node
	}{
		"by UUID": {with(), kubelet("nvidia.com/gpu", "GPU-0"), []string{"GPU-0 GPU-0|nvidia.com/gpu|0000:18:00.0|"}},
		"shares of one": {
			with(), kubelet("nvidia.com/gpu.shared", "GPU-0::3", "nvidia.com/gpu.shared", "GPU-0::4"),
			[]string{"GPU-0 GPU-0|nvidia.com/gpu.shared|0000:18:00.0|"},
		},
		"a MIG instance, and the nodes that it takes": {
			with(nodes("/dev/nvidiactl", "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap66")),
			kubelet("nvidia.com/mig-1g.10gb", "MIG-1"),
			[]string{"MIG-1 MIG-1|nvidia.com/mig-1g.10gb|0000:2a:00.0|/dev/nvidia-caps/nvidia-cap66"},
		},
		"AMD's by PCI address, in capitals, and its nodes": {
			with(nodes("/dev/kfd", "/dev/dri/card2", "/dev/dri/renderD130")), kubelet("amd.com/gpu", "0000:C1:00.0"),
			[]string{"aa aa|amd.com/gpu|0000:c1:00.0|/dev/dri/card2"},
		},
		"a slice of AMD's": {with(), kubelet("amd.com/gpu", "0000:c1:00.0-slice-2"), []string{"aa aa|amd.com/gpu|0000:c1:00.0|"}},
		"Google's, by the node": {
			with(), kubelet("nvidia.com/gpu", "nvidia0/vgpu1"), []string{"GPU-0 GPU-0|nvidia.com/gpu|0000:18:00.0|"},
		},
		"by an id of the plugin's own, and the node": {
			with(nodes("/dev/dri/card3", "/dev/dri/renderD131")), kubelet("amd.com/gpu", "amdgpu_xcp_31"),
			[]string{"bb bb|amd.com/gpu|0000:c2:00.0|/dev/dri/card3"},
		},
		"by a claim, and the node": {
			with(nodes("/dev/nvidia0")), kubelet("gpu.nvidia.com/node1", "gpu-0"),
			[]string{"GPU-0 GPU-0|gpu.nvidia.com/node1|0000:18:00.0|/dev/nvidia0"},
		},
		"Intel's, by the node and the number of the share": {
			with(nodes("/dev/dri/card5", "/dev/dri/renderD133")),
			kubelet("gpu.intel.com/xe", "card5-0", "gpu.intel.com/xe", "card5-1"),
			[]string{"0000:9a:00.0 0000:9a:00.0|gpu.intel.com/xe|0000:9a:00.0|/dev/dri/card5"},
		},
		"a share of Intel's": {
			with(), kubelet("gpu.intel.com/i915", "card5-1"), []string{"0000:9a:00.0 0000:9a:00.0|gpu.intel.com/i915|0000:9a:00.0|"},
		},
		"Intel's for monitoring": {with(), kubelet("gpu.intel.com/i915_monitoring", "all"), []string{" all|gpu.intel.com/i915_monitoring||"}},
		"asked for Intel's by CDI": {
			with(requests("intel.com/gpu=card5", "intel.com/gpu=card2")), nil, []string{"0000:9a:00.0 0000:9a:00.0||0000:9a:00.0|"},
		},
		"one that is not seen": {
			with(nodes("/dev/nvidia7")), kubelet("nvidia.com/gpu", "GPU-7"), []string{" GPU-7|nvidia.com/gpu||"},
		},
		"one that is seen, and one that is not": {
			with(nodes("/dev/nvidia0", "/dev/nvidia7")), kubelet("nvidia.com/gpu", "GPU-0", "nvidia.com/gpu", "GPU-7"),
			[]string{"GPU-0 GPU-0|nvidia.com/gpu|0000:18:00.0|/dev/nvidia0", " GPU-7|nvidia.com/gpu||"},
		},
		"a PCI function that is no GPU": {
			with(), kubelet("amd.com/gpu", "0000:99:00.0"), []string{" |amd.com/gpu|0000:99:00.0|"},
		},
		"only by the node": {
			with(nodes("/dev/dri/renderD130", "/dev/nvidia9")), nil,
			[]string{"aa aa||0000:c1:00.0|/dev/dri/renderD130", " nvidia9|||/dev/nvidia9"},
		},
		"the node of a GPU in parts": {with(nodes("/dev/nvidia1")), nil, []string{}},
		"all nodes":                  {with(nodes("/dev/nvidia0", "/dev/dri/card2"), privileged), nil, []string{}},
		"all nodes, and one by the kubelet": {
			with(nodes("/dev/nvidia0", "/dev/dri/card2"), privileged), kubelet("nvidia.com/gpu", "GPU-0"),
			[]string{"GPU-0 GPU-0|nvidia.com/gpu|0000:18:00.0|"},
		},
		"asked for by number": {with(requests("0", "1:1")), nil, []string{"GPU-0 GPU-0||0000:18:00.0|", "MIG-2 MIG-2||0000:2a:00.0|"}},
		"asked for by UUID, and the node": {
			with(requests("GPU-0"), nodes("/dev/nvidia0")), nil, []string{"GPU-0 GPU-0||0000:18:00.0|/dev/nvidia0"},
		},
		"asked for all": {
			with(requests("all")), nil,
			[]string{"GPU-0 GPU-0||0000:18:00.0|", "MIG-1 MIG-1||0000:2a:00.0|", "MIG-2 MIG-2||0000:2a:00.0|"},
		},
		"asked for one of AMD's": {with(requests("amd.com/gpu=1")), nil, []string{"bb bb||0000:c2:00.0|"}},
		"asked for nonsense":     {with(requests("", "7", "x=all", "\xff")), nil, []string{}},
		"over": {
			with(requests("all"), nodes("/dev/nvidia0"), func(c *model.Container) { c.Status = model.ContainerExited }), nil,
			[]string{},
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := attribute(facts{Snapshot: model.Snapshot{GPUs: mixed(), Containers: c.containers, Allocations: c.allocations}})
			got := []string{}
			for _, s := range a.Assigned {
				uuid := ""
				if s.GPU != nil {
					uuid = s.GPU.UUID
				}
				got = append(got, fmt.Sprintf("%s %s|%s|%s|%s", uuid, s.Device, s.Resource, s.PCIAddress, s.Node))
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// TestAllDevices checks that a container with access to all devices is assigned no HCA.
func TestAllDevices(t *testing.T) {
	all := worker(func(c *model.Container) {
		c.AllDevices, c.Devices = true, []string{"/dev/infiniband/uverbs0", "/dev/nvidia0", "/dev/dri/card1"}
	})
	gpus := []model.GPU{{UUID: "a", Nodes: []string{"/dev/nvidia0"}}}
	a := attribute(facts{Snapshot: model.Snapshot{HCAs: sriov(), GPUs: gpus, Containers: []model.Container{all}}})
	if len(a.Assigned) != 1 || a.Assigned[0].HCA == nil {
		t.Errorf("it was given %v", assignments(a))
	}
}

func TestAccessShares(t *testing.T) {
	card0, kfd := model.OpenKey{Device: "card0", Class: model.ClassDRI}, model.OpenKey{Device: "kfd", Class: model.ClassAMDGPU}
	a := attribute(facts{Entities: map[model.CgroupID]identitytest.Entity{
		1: {Workload: "docker:a"}, 2: {Workload: "docker:a"},
	}, Snapshot: model.Snapshot{
		DeviceOpens: []model.Series[model.OpenKey, model.Opens]{
			{Cgroup: 1, Key: card0, Value: model.Opens{Allowed: 1}},
			{Cgroup: 2, Key: card0, Value: model.Opens{Denied: 2}},
			{Cgroup: 9, Key: card0, Value: model.Opens{Allowed: 3}},
			{Cgroup: 1, Key: kfd, Value: model.Opens{Allowed: 4}},
		},
		DeviceHandles: []model.DeviceHandles{
			{Cgroup: 1, Device: "kfd", Class: model.ClassAMDGPU, Count: 2},
			{Cgroup: 2, Device: "kfd", Class: model.ClassAMDGPU, Count: 3},
		},
	}})
	var got []string
	for _, s := range a.DeviceOpens {
		got = append(got, fmt.Sprint(a.Owners[s.Owner].Workload, " ", s.Key.Device, " ", s.Key.Class, " ", s.Value.Allowed, " ", s.Value.Denied))
	}
	for _, s := range a.DeviceHandles {
		got = append(got, fmt.Sprint(a.Owners[s.Owner].Workload, " ", s.Device, " ", s.Class, " ", s.Count))
	}
	want := []string{"docker:a card0 dri 1 2", " card0 dri 3 0", "docker:a kfd amdgpu 4 0", "docker:a kfd amdgpu 5"}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if a := attribute(facts{}); a.DeviceOpens != nil || a.DeviceHandles != nil {
		t.Error("there are shares without counters")
	}
}
