// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

const uverbsDir = "/dev/infiniband/"

// deviceNodes adds the HCAs and GPUs of the device nodes in containers. The number in a node's name is not the HCA's
// number. In a container that may use all devices, a device node is not an assignment: the container would look idle on
// all devices.
func (e *evidence) deviceNodes(unplaced []DeviceShare) {
	given := map[int][]int{} // GPUs that the kubelet reports, by owner
	for i := range e.rows {
		if r := &e.rows[i]; givesGPU(r.Resource) && r.GPU == nil {
			given[r.Owner] = append(given[r.Owner], i)
		}
	}
	isUnplaced := map[int]bool{} // owners with GPUs without a known node
	for i := range unplaced {
		isUnplaced[unplaced[i].Owner] = true
	}
	for i := range e.s.Containers {
		c := &e.s.Containers[i]
		if c.Status == model.ContainerExited || c.Sandbox || len(c.Devices)+len(c.GPURequests) == 0 || e.live.replaced(c) {
			continue
		}
		owner := e.o.ofContainer(c)
		for _, name := range c.GPURequests {
			e.requested(owner, name)
		}
		unknown := make([]string, 0, len(c.Devices))
		for _, path := range c.Devices {
			name, ok := strings.CutPrefix(path, uverbsDir)
			share := DeviceShare{Owner: owner}
			if h := e.hcas.byChar[name]; ok && h != nil {
				share.describe(h)
				if !c.AllDevices {
					share.Allocated = EvidenceNode
				}
			} else if c.AllDevices {
				continue
			} else if g := e.gpus.byNode[path]; g != nil {
				share.Node, share.Allocated = valid(path), EvidenceNode
				share.describeGPU(g)
			} else {
				unknown = append(unknown, path)
				continue
			}
			// The node of a partitioned GPU gives access to its parts, which have their own nodes.
			if share.GPU == nil || !e.gpus.parents[share.GPU.UUID] {
				e.add(share)
			}
		}
		nodes := gpuNodes(unknown)
		if rows := given[owner]; len(rows) > 0 || isUnplaced[owner] {
			if len(rows) == 1 && len(nodes) == 1 { // with several, the match is unknown
				e.rows[rows[0]].Node = nodes[0]
			}
			continue
		}
		for _, path := range nodes {
			e.add(DeviceShare{Owner: owner, Device: strings.TrimPrefix(path, "/dev/"), Node: path})
		}
	}
}

// gpuNodes returns the device nodes of single GPUs: /dev/nvidia0, /dev/dri/card0 or, without a card,
// /dev/dri/renderD128. A GPU has a card and a render node.
func gpuNodes(paths []string) (nodes []string) {
	numbered := func(prefix string) (nodes []string) {
		for _, path := range paths {
			number, ok := strings.CutPrefix(path, prefix)
			if ok && number != "" && strings.Trim(number, "0123456789") == "" {
				nodes = append(nodes, path)
			}
		}
		return nodes
	}
	dri := numbered("/dev/dri/card")
	if dri == nil {
		dri = numbered("/dev/dri/renderD")
	}
	for _, v := range model.GPUVendors {
		if v.NodePrefix != "" {
			nodes = append(nodes, numbered(v.NodePrefix)...)
		}
	}
	return append(nodes, dri...)
}

func (e *evidence) requested(owner int, name string) {
	for _, g := range e.gpus.named(name) {
		share := DeviceShare{Owner: owner, Allocated: EvidenceRuntime}
		share.describeGPU(g)
		e.add(share)
	}
}
