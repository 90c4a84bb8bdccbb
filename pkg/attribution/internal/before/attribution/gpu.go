// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"strings"

	"github.com/accelscope/accelscope/pkg/attribution/internal/before/model"
)

// IsGPU says whether the devices of a resource of the kubelet are GPUs, or parts
// of them. Those that Intel's plugin gives for monitoring are all of them, and
// nobody's.
func IsGPU(resource string) bool {
	for _, prefix := range []string{"nvidia.com/gpu", "nvidia.com/mig-", "amd.com/gpu", "gpu.intel.com/"} {
		if strings.HasPrefix(resource, prefix) {
			return !strings.HasSuffix(resource, "_monitoring")
		}
	}
	// AMD's plugin with resource_naming_strategy=mixed: amd.com/cpx_nps4.
	partition, ok := strings.CutPrefix(resource, "amd.com/")
	_, memory, mixed := strings.Cut(partition, "px_nps")
	return ok && mixed && memory != ""
}

// givesGPU is IsGPU for resource claims, too, whose resource is DRIVER/POOL.
func givesGPU(resource string) bool {
	return IsGPU(resource) || strings.HasPrefix(resource, "gpu.nvidia.com/") || strings.HasPrefix(resource, "gpu.amd.com/")
}

// WholeGPU is the GPU that an id of a device plugin is a share of: UUID::2 of
// NVIDIA's, nvidia0/vgpu2 of Google's, 0000:c1:00.0-slice-2 of AMD's.
func WholeGPU(id string) string {
	for _, separator := range []string{"::", "/vgpu", "-slice-"} {
		id, _, _ = strings.Cut(id, separator)
	}
	return id
}

// gpus finds GPUs by what others call them.
type gpus struct {
	list                  []model.GPU
	byUUID, byPCI, byNode map[string]*model.GPU
	parents               map[string]bool // UUIDs of those that have parts
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
				g.byNode[node] = nil // of a GPU instance that has several compute instances
			} else {
				g.byNode[node] = &list[i]
			}
		}
		// AMD's plugin calls the first partition by the PCI function that all of them share.
		address := strings.ToLower(list[i].PCIAddress)
		if whole := g.byPCI[address]; list[i].Vendor == model.AMD && whole != nil && whole.UUID == list[i].Parent {
			g.byPCI[address] = &list[i]
		}
		if parent := list[i].Parent; parent != "" && parent != list[i].UUID {
			g.parents[parent] = true
		}
	}
	return g
}

// find gives the GPU of a plugin's id: the UUID, also of a part, the PCI address
// (AMD), or the name of the device node (Google).
func (g gpus) find(id string) *model.GPU {
	if gpu := g.byUUID[id]; gpu != nil {
		return gpu
	}
	if isPCI(id) {
		return g.byPCI[strings.ToLower(id)]
	}
	return g.byNode["/dev/"+id]
}

// named are the GPUs that a runtime was asked for: by UUID, by number (also of a
// part, 0:1), or all, which are the parts of those that have some. A number of a
// vendor's is that of one of its GPUs (CDI: amd.com/gpu=0), otherwise of NVIDIA's
// where the node has any: the names are those of its tools.
func (g gpus) named(name string) (found []*model.GPU) {
	vendor := model.AMD
	for i := range g.list {
		if g.list[i].Vendor == model.NVIDIA {
			vendor = model.NVIDIA
		}
	}
	kind, device, ok := strings.Cut(name, "=")
	switch {
	case !ok:
		device = name
	case strings.HasPrefix(kind, "nvidia.com/"):
		vendor = model.NVIDIA
	case strings.HasPrefix(kind, "amd.com/"):
		vendor = model.AMD
	default:
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

// describeGPU fills in what is known of a GPU.
func (s *DeviceShare) describeGPU(g *model.GPU) {
	if g != nil {
		s.GPU, s.Device, s.PCIAddress = g, valid(g.UUID), valid(strings.ToLower(g.PCIAddress))
	}
}
