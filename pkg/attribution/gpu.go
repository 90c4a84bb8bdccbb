// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// IsGPU reports whether a kubelet resource consists of GPUs or parts of GPUs.
func IsGPU(resource string) bool {
	return model.FindGPUVendor(func(v *model.GPUVendor) bool { return v.Owns(resource) }) != nil
}

// givesGPU reports whether a kubelet resource or a resource claim consists of GPUs or parts of GPUs.
func givesGPU(resource string) bool { return IsGPU(resource) || claimVendor(resource) != nil }

// claimVendor returns the GPU vendor of a resource claim, or nil: DRIVER/POOL or, before Kubernetes 1.31, the CDI kind
// k8s.DRIVER/claim.
func claimVendor(resource string) *model.GPUVendor {
	driver, _, claim := strings.Cut(strings.TrimPrefix(resource, "k8s."), "/")
	return model.FindGPUVendor(func(v *model.GPUVendor) bool { return claim && v.DRADriver != "" && v.DRADriver == driver })
}

// WholeGPU returns the GPU in a device plugin's ID: UUID::2 (NVIDIA), nvidia0/vgpu2 (Google), 0000:c1:00.0-slice-2
// (AMD), card0-2 (Intel).
func WholeGPU(id string) string {
	if card, share, ok := strings.Cut(id, "-"); ok && gpuNodes([]string{"/dev/dri/" + card}) != nil && share != "" {
		return card
	}
	for _, separator := range []string{"::", "/vgpu", "-slice-"} {
		id, _, _ = strings.Cut(id, separator)
	}
	return id
}

// lenUUID is the length of NVIDIA's UUID with its prefix: GPU-, MIG-.
const lenUUID = 4 + 36

// gpus finds GPUs by the names of plugins, runtimes and device nodes.
type gpus struct {
	list                  []model.GPU
	byUUID, byPCI, byNode map[string]*model.GPU
	parents               map[string]bool // UUIDs of partitioned GPUs
}

func newGPUs(list []model.GPU) gpus {
	g := gpus{
		list: list, byNode: map[string]*model.GPU{}, parents: map[string]bool{},
		byUUID: indexBy(list, func(g *model.GPU) string { return g.UUID }),
		byPCI:  indexBy(list, func(g *model.GPU) string { return strings.ToLower(g.PCIAddress) }),
	}
	for i := range list {
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

// find returns the GPU of a plugin's ID: a UUID (also of a part), a PCI address (AMD), or the name of a device node
// (Google, Intel).
func (g gpus) find(id string) *model.GPU {
	if gpu := g.byUUID[id]; gpu != nil {
		return gpu
	}
	if model.IsPCIAddress(id) {
		return g.byPCI[strings.ToLower(id)]
	}
	return g.ofNode(id)
}

// ofPlugin returns the GPU of the ID that a device plugin or DRA driver gives the kubelet, nil if not certain. share
// reports that the ID only stands for a share (GPU-UUID-4): the plugins of HAMi and Volcano choose the GPU themselves,
// and gpu is only the GPU in the name.
func (g gpus) ofPlugin(resource, id string) (gpu *model.GPU, share bool) {
	id = WholeGPU(id)
	if gpu := g.find(id); gpu != nil {
		return gpu, false
	}
	if node, instance, ok := strings.Cut(id, "/gi"); ok { // Google: the numbers of the device node and of the GPU instance
		return g.ofInstance(g.ofNode(node), instance), false
	}
	if i := strings.LastIndexByte(id, '-'); i > 0 && model.IsDigits(id[i+1:]) {
		if gpu := g.byUUID[id[:i]]; gpu != nil || i == lenUUID && (strings.HasPrefix(id, "GPU-") || strings.HasPrefix(id, "MIG-")) {
			return gpu, true
		}
	}
	if v := claimVendor(resource); v != nil {
		return g.ofClaim(v, id), false
	}
	return g.numbered(model.FindGPUVendor(func(v *model.GPUVendor) bool { return v.Owns(resource) }), id), false
}

// ofClaim returns the GPU that NVIDIA's DRA driver names gpu-0, nil if not certain: the number is the GPU's index in
// old versions of the driver, and the device node's number in newer versions.
func (g gpus) ofClaim(v *model.GPUVendor, name string) *model.GPU {
	if number, ok := strings.CutPrefix(name, "gpu-"); ok {
		return g.numbered(v, number)
	}
	return nil
}

// numbered returns the GPU or part with a number: 0, 1:0. Plugins mean the driver's index or the device node's number:
// numbered returns nil unless both belong to one GPU, or if the vendor's plugins do not use numbers.
func (g gpus) numbered(v *model.GPUVendor, number string) *model.GPU {
	if v == nil || !v.DriverNumbers {
		return nil
	}
	of := func(id string) *model.GPU {
		i := slices.IndexFunc(g.list, func(gpu model.GPU) bool { return gpu.Vendor == v.Vendor && gpu.ID == id })
		if i < 0 {
			return nil
		}
		return &g.list[i]
	}
	index, _, _ := strings.Cut(number, ":")
	if whole := of(index); whole == nil || whole != g.byNode[v.NodePrefix+index] {
		return nil
	}
	return of(number)
}

// ofInstance returns the only part of a GPU with the GPU instance, nil if it does not exist or is not unique.
func (g gpus) ofInstance(whole *model.GPU, instance string) (found *model.GPU) {
	for i := range g.list {
		part := &g.list[i]
		if whole == nil || part.Parent != whole.UUID || part.Instance != instance {
			continue
		}
		if found != nil {
			return nil
		}
		found = part
	}
	return found
}

// ofNode returns the GPU with a device node of this name in /dev or /dev/dri.
func (g gpus) ofNode(name string) *model.GPU {
	if gpu := g.byNode["/dev/"+name]; gpu != nil {
		return gpu
	}
	return g.byNode["/dev/dri/"+name]
}

// named returns the GPUs with a name in a request to a runtime: a UUID, a PCI address, a number (0:1 for a part), a
// device node (card0), or all. For a partitioned GPU "all" means its parts. A kind (CDI: amd.com/gpu=0) selects one
// vendor.
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
	if gpu := g.ofNode(device); gpu != nil && gpu.Vendor == vendor {
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

// bareVendor returns the vendor of numbers without a kind: the vendor with BareNames if the node has its GPUs, else the
// vendor of the first GPU.
func (g gpus) bareVendor() (vendor model.Vendor) {
	for i := range g.list {
		if i == 0 || g.list[i].Vendor.Row().BareNames {
			vendor = g.list[i].Vendor
		}
	}
	return vendor
}

func (s *DeviceShare) describeGPU(g *model.GPU) {
	if g != nil {
		s.GPU, s.Device, s.PCIAddress = g, valid(g.UUID), valid(strings.ToLower(g.PCIAddress))
	}
}
