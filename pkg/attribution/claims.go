// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"encoding/base32"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

const capsDir = "/dev/nvidia-caps/"

// claimed adds the GPUs and HCAs of a claimed device, and reports whether it found a device. The kubelet lists all
// devices of a claim for each container with the claim, even if the container has only one of its requests. If the
// container has nodes of some devices, claimed leaves out devices without a node in the container.
func (e *evidence) claimed(a *model.Allocation, share DeviceShare) (found bool) {
	if a.Claim == "" {
		return false
	}
	share.Allocated = EvidenceKubelet
	c := e.live.containers[containerName{a.Namespace, a.Pod, a.Container}]
	for _, g := range e.gpus.behind(a.Nodes) {
		found = true
		whole := func(path string) bool {
			return e.gpus.byNode[path] != nil && !e.gpus.parents[e.gpus.byNode[path].UUID]
		}
		if !hasOthers(c, g.Nodes, whole) {
			s := share
			s.describeGPU(g)
			e.add(s)
		}
	}
	for _, path := range a.Nodes {
		h := e.hcas.ofNode(path)
		if h == nil {
			continue
		}
		found = true
		if !hasOthers(c, []string{path}, func(path string) bool { return e.hcas.ofNode(path) != nil }) {
			s := share
			s.describe(h)
			e.add(s)
		}
	}
	return e.claimedInterface(a, share) || found
}

// hasOthers reports whether a container has device nodes of a kind, but none of these nodes.
func hasOthers(c *model.Container, nodes []string, kind func(path string) bool) bool {
	if c == nil || c.AllDevices || slices.ContainsFunc(nodes, func(path string) bool { return slices.Contains(c.Devices, path) }) {
		return false
	}
	return slices.ContainsFunc(c.Devices, kind)
}

// ofNode returns the HCA with a device node, or nil.
func (h hcas) ofNode(path string) *model.HCA {
	name, ok := strings.CutPrefix(path, uverbsDir)
	if !ok {
		return nil
	}
	return h.byChar[name]
}

// behind returns the GPUs with the device nodes, each once. A MIG instance has its own nodes and its GPU's node: the
// GPU is then not meant, even if the instance is not listed yet.
func (g gpus) behind(nodes []string) (found []*model.GPU) {
	part := slices.ContainsFunc(nodes, func(path string) bool { return strings.HasPrefix(path, capsDir) })
	for _, path := range nodes {
		gpu := g.byNode[path]
		if gpu != nil && !g.parents[gpu.UUID] && (gpu.Parent != "" || !part) && !slices.Contains(found, gpu) {
			found = append(found, gpu)
		}
	}
	return found
}

// claimedInterface adds the HCA of a network interface that DRANET allocated. DRANET writes no CDI specification. The
// device name is the PCI address, pci-0000-8a-00-0; before DRANET 1.0 the interface name, as net-BASE32 if it is not a
// DNS label; or the name of an RDMA device without an interface.
func (e *evidence) claimedInterface(a *model.Allocation, share DeviceShare) bool {
	if driver, _, _ := strings.Cut(a.Resource, "/"); driver != "dra.net" {
		return false
	}
	var h *model.HCA
	if address, ok := strings.CutPrefix(a.ID, "pci-"); ok {
		if p := strings.Split(address, "-"); len(p) == 4 {
			address = p[0] + ":" + p[1] + ":" + p[2] + "." + p[3]
		}
		if !model.IsPCIAddress(address) {
			return false
		}
		share.PCIAddress = strings.ToLower(address)
		h = e.hcas.byPCI[share.PCIAddress]
	} else if h = e.hcas.ofNetdev(a.ID); h == nil {
		if h = e.hcas.named(a.ID); h == nil {
			return false
		}
	}
	share.describe(h)
	share.Given = a.ShareID == ""
	if !mayUse(e.live.containers[containerName{a.Namespace, a.Pod, a.Container}], h) {
		share.Allocated = ""
	}
	e.add(share)
	return true
}

// ofNetdev returns the HCA with a network interface in DRANET's notation.
func (h hcas) ofNetdev(name string) *model.HCA {
	if encoded, ok := strings.CutPrefix(name, "net-"); ok {
		if b, err := base32.StdEncoding.WithPadding(base32.NoPadding).DecodeString(strings.ToUpper(encoded)); err == nil {
			name = string(b)
		}
	}
	return h.byNetdev[name]
}

// CountGPUs counts the GPUs that are allocated to containers, and all GPUs of the node. The parts of a GPU count
// instead of the GPU. An allocated GPU counts even if its plugin no longer lists it. CountGPUs returns 0, 0 if the
// allocations or the devices of plugins are unknown, or if the ID of an allocation only stands for a share: the
// plugin's choice is not known.
//
// No API of the node lists the devices that claims may allocate. For a vendor with claims, all GPUs that its source
// lists count; without a device plugin for GPUs, all GPUs count.
func CountGPUs(s *model.Snapshot) (allocated, all int) {
	if s.Allocations == nil || s.Allocatable == nil {
		return 0, 0
	}
	index := newGPUs(s.GPUs)
	key := func(resource, id string) (key string, share bool) {
		gpu, share := index.ofPlugin(resource, id)
		switch {
		case gpu != nil:
			return gpu.UUID, share
		case share:
			return id[:lenUUID], true
		}
		return WholeGPU(id), false
	}
	listed := map[model.Vendor]bool{}
	for i := range s.GPUs {
		listed[s.GPUs[i].Vendor] = true
	}
	given, unknown, known, plugins := map[string]bool{}, map[string]bool{}, map[string]bool{}, false
	for i := range s.Allocatable {
		if IsGPU(s.Allocatable[i].Resource) {
			plugins = true
			for _, id := range s.Allocatable[i].IDs {
				k, _ := key(s.Allocatable[i].Resource, id)
				known[k] = true
			}
		}
	}
	claims := map[model.Vendor]bool{}
	for i := range s.Allocations {
		a := &s.Allocations[i]
		if a.Claim == "" {
			if IsGPU(a.Resource) {
				k, share := key(a.Resource, a.ID)
				if share {
					return 0, 0
				}
				given[k], known[k] = true, true
			}
			continue
		}
		found := index.behind(a.Nodes)
		if gpu, share := index.ofPlugin(a.Resource, a.ID); len(found) == 0 && gpu != nil && !share {
			found = []*model.GPU{gpu}
		}
		for _, gpu := range found {
			given[gpu.UUID], claims[gpu.Vendor] = true, true
		}
		if v := claimVendor(a.Resource); v != nil && len(found) == 0 {
			unknown[a.Resource+" "+a.ID], claims[v.Vendor] = true, true
			if !listed[v.Vendor] {
				known[a.Resource+" "+a.ID] = true
			}
		}
	}
	for i := range s.GPUs {
		if gpu := &s.GPUs[i]; !index.parents[gpu.UUID] && (claims[gpu.Vendor] || !plugins) {
			known[gpu.UUID] = true
		}
	}
	// A claimed device with an unknown GPU is one of the listed GPUs.
	allocated = len(given) + len(unknown)
	return allocated, max(len(known), allocated)
}
