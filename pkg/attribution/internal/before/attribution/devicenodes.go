// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"strings"

	"github.com/accelscope/accelscope/pkg/attribution/internal/before/model"
)

// deviceNodes books the HCAs and GPUs whose device nodes containers have. The
// number in the name of a node is not that of the HCA. A container that may use
// all devices of the node was given no GPU by having its node: it would look idle
// on all of them.
func (e *evidence) deviceNodes(unplaced []DeviceShare) {
	given := map[int][]int{} // the GPUs that the kubelet told of, by owner
	for i := range e.t.rows {
		if r := &e.t.rows[i]; IsGPU(r.Resource) && r.GPU == nil {
			given[r.Owner] = append(given[r.Owner], i)
		}
	}
	told := map[int]bool{} // whose unknown nodes are GPUs that were told of
	for i := range unplaced {
		told[unplaced[i].Owner] = true
	}
	for i := range e.s.Containers {
		c := &e.s.Containers[i]
		if c.Status == model.ContainerExited || c.Sandbox || len(c.Devices)+len(c.GPURequests) == 0 {
			continue
		}
		owner := e.o.number(entityOf(c, model.Entity{}))
		for _, name := range c.GPURequests {
			e.requested(owner, name)
		}
		unknown := make([]string, 0, len(c.Devices))
		for _, path := range c.Devices {
			name, ok := strings.CutPrefix(path, "/dev/infiniband/")
			share := DeviceShare{Owner: owner}
			if h := e.hcas.byChar[name]; ok && h != nil {
				share.describe(h)
			} else if c.AllDevices {
				continue
			} else if g := e.gpus.byNode[path]; g != nil {
				share.Node = valid(path)
				share.describeGPU(g)
			} else {
				unknown = append(unknown, path)
				continue
			}
			// That of a GPU in parts is a way to its parts, each of which has a node of its own.
			if share.GPU == nil || !e.gpus.parents[share.GPU.UUID] {
				e.t.add(share)
			}
		}
		nodes := gpuNodes(unknown)
		if rows := given[owner]; len(rows) > 0 || told[owner] {
			if len(rows) == 1 && len(nodes) == 1 { // of several nobody says which is which
				e.t.rows[rows[0]].Node = nodes[0]
			}
			continue
		}
		for _, path := range nodes {
			e.t.add(DeviceShare{Owner: owner, Device: strings.TrimPrefix(path, "/dev/"), Node: path})
		}
	}
}

// gpuNodes are the device nodes of single GPUs: /dev/nvidia0, /dev/dri/card0 or,
// without any of these, /dev/dri/renderD128. A GPU has a card and a render node.
func gpuNodes(paths []string) []string {
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
	return append(numbered("/dev/nvidia"), dri...)
}

// requested books the GPUs that a container asked its runtime for.
func (e *evidence) requested(owner int, name string) {
	for _, g := range e.gpus.named(name) {
		share := DeviceShare{Owner: owner}
		share.describeGPU(g)
		e.t.add(share)
	}
}
