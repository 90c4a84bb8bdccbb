// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"slices"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// jobs adds the GPUs of Slurm jobs. Users can change the environments of their processes: an environment does not
// assign a GPU that the kubelet or a device cgroup assigned to another owner.
func (e *evidence) jobs() {
	for i := range e.s.JobGPUs {
		if j := &e.s.JobGPUs[i]; j.Nodes != nil {
			e.addJob(j, e.gpus.behind(j.Nodes), EvidenceCgroup)
		}
	}
	proven := map[*model.GPU]int{}
	for i := range e.rows {
		if r := &e.rows[i]; r.GPU != nil && (r.Allocated == EvidenceKubelet || r.Allocated == EvidenceCgroup) {
			proven[r.GPU] = r.Owner
		}
	}
	for i := range e.s.JobGPUs {
		j := &e.s.JobGPUs[i]
		var named []*model.GPU
		for _, uuid := range j.UUIDs {
			if g := e.gpus.byUUID[uuid]; g != nil && !e.gpus.parents[uuid] {
				named = append(named, g)
			}
		}
		for _, n := range j.Numbers {
			if g := e.gpus.ofSlurm(n); g != nil {
				named = append(named, g)
			}
		}
		owner := e.o.ofCgroup(j.Cgroup)
		e.addJob(j, slices.DeleteFunc(named, func(g *model.GPU) bool {
			other, ok := proven[g]
			return ok && other != owner
		}), EvidenceEnvironment)
	}
}

func (e *evidence) addJob(j *model.JobGPUs, gpus []*model.GPU, how Evidence) {
	owner := e.o.ofCgroup(j.Cgroup)
	if owner == unattributed {
		return
	}
	for _, g := range gpus {
		share := DeviceShare{Owner: owner, Allocated: how}
		share.describeGPU(g)
		e.add(share)
	}
}

// ofSlurm returns the GPU with Slurm's number, the place in gres.conf, usually in the order of device nodes. It returns
// nil on a node with parts of GPUs, whose numbers differ, or with several vendors.
func (g gpus) ofSlurm(number int) *model.GPU {
	type node struct {
		number int
		gpu    *model.GPU
	}
	var nodes []node
	for i := range g.list {
		gpu := &g.list[i]
		if gpu.Vendor != g.list[0].Vendor || gpu.Parent != "" {
			return nil
		}
		prefix := gpu.Vendor.Row().NodePrefix
		if prefix == "" {
			prefix = "/dev/dri/renderD"
		}
		for _, path := range gpu.Nodes {
			if text, ok := strings.CutPrefix(path, prefix); ok {
				if n, err := strconv.Atoi(text); err == nil {
					nodes = append(nodes, node{n, gpu})
					break
				}
			}
		}
	}
	if len(nodes) != len(g.list) || number < 0 || number >= len(nodes) {
		return nil
	}
	slices.SortFunc(nodes, func(a, b node) int { return a.number - b.number })
	return nodes[number].gpu
}
