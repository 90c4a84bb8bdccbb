// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// IsGPU reports whether the devices of a resource of the kubelet are GPUs, or parts of them.
func IsGPU(resource string) bool {
	return model.FindGPUVendor(func(v *model.GPUVendor) bool { return v.Owns(resource) }) != nil
}

// givesGPU reports whether a resource of the kubelet, or of a resource claim (DRIVER/POOL), is GPUs or parts of them.
func givesGPU(resource string) bool {
	driver, _, claim := strings.Cut(resource, "/")
	return IsGPU(resource) ||
		model.FindGPUVendor(func(v *model.GPUVendor) bool { return claim && v.DRADriver != "" && v.DRADriver == driver }) != nil
}

// WholeGPU returns the GPU that an id of a device plugin is a share of: UUID::2 of NVIDIA's, nvidia0/vgpu2 of Google's,
// 0000:c1:00.0-slice-2 of AMD's.
func WholeGPU(id string) string {
	for _, separator := range []string{"::", "/vgpu", "-slice-"} {
		id, _, _ = strings.Cut(id, separator)
	}
	return id
}

// gpus finds GPUs by the names that plugins, runtimes and device nodes give them.
type gpus struct {
	list                  []model.GPU
	byUUID, byPCI, byNode map[string]*model.GPU
	parents               map[string]bool // UUIDs of GPUs that have parts
}

func newGPUs(list []model.GPU) gpus {
	g := gpus{
		list: list, byUUID: map[string]*model.GPU{}, byPCI: map[string]*model.GPU{}, byNode: map[string]*model.GPU{},
		parents: map[string]bool{},
	}
	put := func(m map[string]*model.GPU, key string, gpu *model.GPU) {
		if key != "" && m[key] == nil {
			m[key] = gpu
		}
	}
	for i := range list {
		put(g.byUUID, list[i].UUID, &list[i])
		put(g.byPCI, strings.ToLower(list[i].PCIAddress), &list[i])
		for _, node := range list[i].Nodes {
			if _, several := g.byNode[node]; several {
				g.byNode[node] = nil // a GPU instance with several compute instances
			} else {
				g.byNode[node] = &list[i]
			}
		}
		address := strings.ToLower(list[i].PCIAddress)
		if whole := g.byPCI[address]; whole != nil && whole.UUID == list[i].Parent && list[i].Vendor.Row().SharedAddress {
			g.byPCI[address] = &list[i]
		}
		if parent := list[i].Parent; parent != "" && parent != list[i].UUID {
			g.parents[parent] = true
		}
	}
	return g
}

// find returns the GPU with a plugin's id: the UUID, also of a part, the PCI address (AMD), or the name of the device
// node (Google).
func (g gpus) find(id string) *model.GPU {
	if gpu := g.byUUID[id]; gpu != nil {
		return gpu
	}
	if model.IsPCIAddress(id) {
		return g.byPCI[strings.ToLower(id)]
	}
	return g.byNode["/dev/"+id]
}

// named returns the GPUs with a name that was requested from a runtime: a UUID, a PCI address, a number (of a part 0:1),
// or all, which are the parts of GPUs that have parts. A name with a kind (CDI: amd.com/gpu=0) is that of one vendor.
func (g gpus) named(name string) (found []*model.GPU) {
	vendor := g.bareVendor()
	kind, device, ok := strings.Cut(name, "=")
	if !ok {
		device = name
	} else if v := model.FindGPUVendor(func(v *model.GPUVendor) bool { return slices.Contains(v.CDIKinds, kind) }); v != nil {
		vendor = v.Vendor
	} else {
		return nil
	}
	if gpu := g.byUUID[device]; gpu != nil {
		return []*model.GPU{gpu}
	}
	if gpu := g.byPCI[strings.ToLower(device)]; gpu != nil {
		return []*model.GPU{gpu}
	}
	for i := range g.list {
		gpu := &g.list[i]
		if gpu.Vendor == vendor && (gpu.ID == device || device == "all" && !g.parents[gpu.UUID]) {
			found = append(found, gpu)
		}
	}
	return found
}

// bareVendor returns the vendor that a number without a kind refers to: the one with bare names if the node has a GPU of
// it, else that of the node's GPUs.
func (g gpus) bareVendor() (vendor model.Vendor) {
	for i := range g.list {
		if i == 0 || g.list[i].Vendor.Row().BareNames {
			vendor = g.list[i].Vendor
		}
	}
	return vendor
}

// describeGPU sets the fields of the share that describe a GPU.
func (s *DeviceShare) describeGPU(g *model.GPU) {
	if g != nil {
		s.GPU, s.Device, s.PCIAddress = g, valid(g.UUID), valid(strings.ToLower(g.PCIAddress))
	}
}
