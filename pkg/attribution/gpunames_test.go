// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"fmt"
	"slices"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestSharedNodes checks that the node of a GPU instance belongs to all its compute instances and does not assign any
// of them.
func TestSharedNodes(t *testing.T) {
	part := func(uuid, own string) model.GPU {
		return model.GPU{
			Vendor: model.NVIDIA, UUID: uuid, Parent: "GPU-0", Nodes: []string{"/dev/nvidia-caps/nvidia-cap21", own},
		}
	}
	a := attribute(facts{Snapshot: model.Snapshot{
		GPUs: []model.GPU{
			{Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0", Nodes: []string{"/dev/nvidia0"}},
			part("MIG-a", "/dev/nvidia-caps/nvidia-cap22"), part("MIG-b", "/dev/nvidia-caps/nvidia-cap23"),
		},
		Containers: []model.Container{{
			ID: "c", Runtime: "docker", Name: "second",
			Devices: []string{"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap23"},
		}},
	}})
	if got := fmt.Sprint(gpuRows(a)); got != "[MIG-b docker:second:, allocated]" {
		t.Error(got)
	}
}

// TestPartitions checks the names of AMD's plugin: the first partition's PCI address, and partition modes in the
// resource.
func TestPartitions(t *testing.T) {
	part := func(n int) model.GPU {
		return model.GPU{
			Vendor: model.AMD, UUID: fmt.Sprint("aa:", n), Parent: "aa", PCIAddress: "0000:c1:00.0",
			Nodes: []string{fmt.Sprint("/dev/dri/renderD", 128+n)},
		}
	}
	for _, resource := range []string{"amd.com/gpu", "amd.com/cpx_nps4"} {
		a := attribute(facts{Snapshot: model.Snapshot{
			GPUs:        []model.GPU{{Vendor: model.AMD, ID: "0", UUID: "aa", PCIAddress: "0000:c1:00.0"}, part(0), part(1)},
			Allocations: []model.Allocation{{Namespace: "n", Pod: "p", Container: "c", Resource: resource, ID: "0000:c1:00.0"}},
			Containers: []model.Container{{
				ID: "c", Runtime: "containerd", Namespace: "n", Pod: "p", Name: "c", PodUID: "u",
				Devices: []string{"/dev/kfd", "/dev/dri/renderD128"},
			}},
		}})
		if len(a.Assigned) != 1 || a.Assigned[0].GPU == nil || a.Assigned[0].GPU.UUID != "aa:0" || a.Assigned[0].Resource != resource {
			t.Errorf("%s: %+v", resource, a.Assigned)
		}
	}
	if IsGPU("amd.com/cpx") || IsGPU("example.com/cpx_nps4") {
		t.Error("not a GPU")
	}
}

// TestRequestedByAddress checks that a PCI address is a requested name, as in nvidia-container-cli.
func TestRequestedByAddress(t *testing.T) {
	g := newGPUs([]model.GPU{{Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0", PCIAddress: "0000:1a:00.0"}})
	if found := g.named("0000:1A:00.0"); !slices.Equal(found, []*model.GPU{&g.list[0]}) {
		t.Error(found)
	}
}

// TestPluginIDs: IDs that device plugins and DRA drivers give the kubelet. An uncertain ID is not joined with a GPU.
func TestPluginIDs(t *testing.T) {
	const a, b = "GPU-11111111-1111-4111-8111-111111111111", "GPU-22222222-2222-4222-8222-222222222222"
	list := []model.GPU{
		{Vendor: model.NVIDIA, ID: "0", UUID: a, PCIAddress: "0000:1a:00.0", Nodes: []string{"/dev/nvidia3"}},
		{Vendor: model.NVIDIA, ID: "1", UUID: b, PCIAddress: "0000:2a:00.0", Nodes: []string{"/dev/nvidia0"}},
		{Vendor: model.NVIDIA, ID: "1:0", UUID: "MIG-1", Parent: b, Instance: "1"},
		{Vendor: model.NVIDIA, ID: "1:1", UUID: "MIG-2", Parent: b, Instance: "2"},
		{Vendor: model.NVIDIA, ID: "1:2", UUID: "MIG-3", Parent: b, Instance: "2"},
		{Vendor: model.NVIDIA, ID: "2", UUID: "GPU-c", PCIAddress: "0000:3a:00.0", Nodes: []string{"/dev/nvidia2"}},
		{Vendor: model.NVIDIA, ID: "4", UUID: "GPU-d", PCIAddress: "0000:4a:00.0", Nodes: []string{"/dev/nvidia4"}},
		{Vendor: model.NVIDIA, ID: "4:1", UUID: "MIG-5", Parent: "GPU-d", Instance: "1"},
		{Vendor: model.AMD, ID: "0", UUID: "aa", PCIAddress: "0000:c1:00.0", Nodes: []string{"/dev/dri/card1", "/dev/dri/renderD128"}},
		{Vendor: model.Intel, ID: "0", UUID: "0000:d1:00.0", PCIAddress: "0000:d1:00.0", Nodes: []string{"/dev/dri/card0", "/dev/dri/renderD129"}},
	}
	for _, c := range []struct{ from, resource, id, want string }{
		{"NVIDIA/k8s-device-plugin: UUID", "nvidia.com/gpu", a, a},
		{"NVIDIA/k8s-device-plugin: MIG", "nvidia.com/mig-1g.10gb", "MIG-1", "MIG-1"},
		{"NVIDIA/k8s-device-plugin: replicas", "nvidia.com/gpu.shared", b + "::7", b},
		{"NVIDIA/k8s-device-plugin: replicas of MIG", "nvidia.com/mig-1g.10gb.shared", "MIG-1::1", "MIG-1"},
		{"index and minor of two GPUs", "nvidia.com/gpu", "0", ""},
		{"index and minor of two GPUs, replicas", "nvidia.com/gpu", "1::3", ""},
		{"index and minor of two GPUs, MIG", "nvidia.com/gpu", "1:0", ""},
		{"index and minor agree", "nvidia.com/gpu", "2", "GPU-c"},
		{"index and minor agree, replicas", "nvidia.com/gpu", "2::3", "GPU-c"},
		{"index and minor agree, MIG", "nvidia.com/gpu", "4:1", "MIG-5"},
		{"a MIG instance that does not exist", "nvidia.com/gpu", "4:2", ""},
		{"index that does not exist", "nvidia.com/gpu", "3", ""},
		{"container-engine-accelerators: minor", "nvidia.com/gpu", "nvidia0", b},
		{"container-engine-accelerators: time-sharing", "nvidia.com/gpu", "nvidia3/vgpu1", a},
		{"container-engine-accelerators: MIG", "nvidia.com/gpu", "nvidia0/gi1", "MIG-1"},
		{"container-engine-accelerators: MIG, time-sharing", "nvidia.com/gpu", "nvidia0/gi1/vgpu4", "MIG-1"},
		{"container-engine-accelerators: several compute instances", "nvidia.com/gpu", "nvidia0/gi2", ""},
		{"container-engine-accelerators: no such instance", "nvidia.com/gpu", "nvidia3/gi1", ""},
		{"container-engine-accelerators: no such GPU", "nvidia.com/gpu", "nvidia1/gi1", ""},
		{"Project-HAMi/HAMi", "nvidia.com/gpu", a + "-9", a},
		{"volcano-sh/volcano-vgpu-device-plugin", "volcano.sh/vgpu-number", b + "-0", b},
		{"a share of another GPU", "nvidia.com/gpu", "GPU-33333333-3333-4333-8333-333333333333-0", ""},
		{"ROCm/k8s-device-plugin: PCI address", "amd.com/gpu", "0000:c1:00.0", "aa"},
		{"ROCm/k8s-device-plugin: slices", "amd.com/gpu", "0000:C1:00.0-slice-2", "aa"},
		{"AMD: a card", "amd.com/gpu", "card1", "aa"},
		{"AMD: a number is no number of the driver", "amd.com/gpu", "0", ""},
		{"ROCm/k8s-device-plugin: a partition", "amd.com/gpu", "amdgpu_xcp_3", ""},
		{"intel/intel-device-plugins: i915", "gpu.intel.com/i915", "card0-0", "0000:d1:00.0"},
		{"intel/intel-device-plugins: xe", "gpu.intel.com/xe", "card0-7", "0000:d1:00.0"},
		{"kubernetes-sigs/dra-driver-nvidia-gpu: minor and index agree", "gpu.nvidia.com/node1", "gpu-2", "GPU-c"},
		{"kubernetes-sigs/dra-driver-nvidia-gpu: a minor of a GPU with another index", "gpu.nvidia.com/node1", "gpu-3", ""},
		{"kubernetes-sigs/dra-driver-nvidia-gpu: index and minor of two GPUs", "gpu.nvidia.com/node1", "gpu-0", ""},
		{"kubernetes-sigs/dra-driver-nvidia-gpu: MIG", "gpu.nvidia.com/node1", "gpu-0-mig-1g10gb-19-0", ""},
		{"a DRA number is no index", "gpu.nvidia.com/node1", "0", ""},
		{"nothing", "nvidia.com/gpu", "", ""},
	} {
		got := ""
		if gpu, _ := newGPUs(list).ofPlugin(c.resource, c.id); gpu != nil {
			got = gpu.UUID
		}
		if got != c.want {
			t.Errorf("%s: %s %q: %q, want %q", c.from, c.resource, c.id, got, c.want)
		}
	}
}

// TestPluginChooses: the plugins of HAMi and Volcano allocate another GPU than the ID names. The container's nodes or
// requests decide, and a share never belongs to two GPUs.
func TestPluginChooses(t *testing.T) {
	const id = "GPU-0-4"
	for name, c := range map[string]struct {
		container *model.Container // nil: not listed
		want      []string
	}{
		"not listed":               {nil, []string{"GPU-0-4 kubelet"}},
		"nodes not known":          {&model.Container{}, []string{"GPU-0-4 kubelet"}},
		"no nodes":                 {&model.Container{Devices: []string{}}, []string{"GPU-0-4 kubelet"}},
		"nodes of others":          {&model.Container{Devices: []string{"/dev/fuse"}}, []string{"GPU-0-4 kubelet"}},
		"all nodes":                {&model.Container{Devices: []string{"/dev/nvidia0"}, AllDevices: true}, []string{"GPU-0-4 kubelet"}},
		"the GPU of the ID":        {&model.Container{Devices: []string{"/dev/nvidia0"}}, []string{"GPU-0 kubelet"}},
		"another GPU":              {&model.Container{Devices: []string{"/dev/nvidia1"}}, []string{"GPU-1 device_node"}},
		"requested: that of ID":    {&model.Container{Devices: []string{}, GPURequests: []string{"GPU-0"}}, []string{"GPU-0 kubelet"}},
		"requested: another":       {&model.Container{Devices: []string{}, GPURequests: []string{"GPU-1"}}, []string{"GPU-1 runtime"}},
		"requested: by its number": {&model.Container{GPURequests: []string{"1"}}, []string{"GPU-1 runtime"}},
	} {
		facts := facts{Snapshot: model.Snapshot{
			GPUs: []model.GPU{
				{Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0", Nodes: []string{"/dev/nvidia0"}},
				{Vendor: model.NVIDIA, ID: "1", UUID: "GPU-1", Nodes: []string{"/dev/nvidia1"}},
			},
			Allocations: []model.Allocation{{Namespace: "n", Pod: "p", Container: "c", Resource: "nvidia.com/gpu", ID: id}},
		}}
		if c.container != nil {
			w := *c.container
			w.ID, w.Runtime, w.Namespace, w.Pod, w.Name, w.PodUID = "c", "containerd", "n", "p", "c", "u"
			facts.Containers = []model.Container{w}
		}
		var got []string
		a := attribute(facts)
		for _, s := range a.Assigned {
			got = append(got, s.Device+" "+string(s.Origin))
			if (s.GPU == nil) != (s.Device == id) || s.Resource != "nvidia.com/gpu" {
				t.Errorf("%s: %+v", name, s)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
