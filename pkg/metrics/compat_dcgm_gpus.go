// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

// dcgmGPU is an NVIDIA GPU or MIG instance with the labels of dcgm-exporter.
type dcgmGPU struct {
	*gpuView
	alone     *exposition.LabelSet // without a workload
	workloads []dcgmWorkload       // allocated the GPU; without any, one element without names
}

// dcgmWorkload is a container that is allocated a GPU, or all workloads that are not containers: dcgm-exporter has only
// containers' names.
type dcgmWorkload struct {
	container, namespace, pod string
	// The memory and utilization of its own processes, in bytes and 0 to 1.
	memory, utilization model.Optional
	values              []string // of dcgmLabels
	labels              *exposition.LabelSet
}

func (v *view) dcgm(b *exposition.Builder) []dcgmGPU {
	if v.dcgmGPUs != nil {
		return v.dcgmGPUs
	}
	v.dcgmGPUs = make([]dcgmGPU, 0, len(v.gpus))
	version := ""
	for _, d := range v.facts.GPUDrivers {
		if d.Vendor == model.NVIDIA {
			version = d.Version
		}
	}
	whole := make(map[string]*model.GPU, len(v.gpus))
	parts := map[string]bool{} // UUIDs of GPUs with parts
	for _, g := range v.gpus {
		whole[g.UUID] = g.GPU
		parts[g.Parent] = true
	}
	given := v.givenTo()
	for i := range v.gpus {
		g := &v.gpus[i]
		if g.Vendor != model.NVIDIA || unreadable(g.GPU) {
			continue
		}
		board, instance := whole[g.Parent], ""
		if board == nil {
			board = g.GPU
		} else {
			_, instance, _ = strings.Cut(g.ID, ":")
			instance = cmp.Or(g.Instance, instance)
		}
		workloads := given[g.GPU]
		if len(workloads) == 0 {
			workloads = []dcgmWorkload{{}}
		}
		if parts[g.UUID] { // only the parts report memory, or sums would count it twice
			board, own := *g.GPU, *g
			board.Memory, own.GPU = model.VideoMemory{}, &board
			g = &own
		}
		labels := []string{
			board.ID, board.UUID, instance, g.Profile, busID(board.PCIAddress), nvidiaNode(board.Nodes), board.Name,
			v.node, v.node, version,
		}
		schema := b.Schema(dcgmLabels)
		for j := range workloads {
			w := &workloads[j]
			w.values = slices.Concat(labels, []string{w.container, w.namespace, w.pod})
			w.labels = b.Labels(schema, nil, w.values...)
		}
		alone := b.Labels(schema, nil, slices.Concat(labels, []string{"", "", ""})...)
		v.dcgmGPUs = append(v.dcgmGPUs, dcgmGPU{g, alone, workloads})
	}
	return v.dcgmGPUs
}

// givenTo returns, by GPU, the workloads that are allocated the GPU.
func (v *view) givenTo() map[*model.GPU][]dcgmWorkload {
	given := map[*model.GPU][]dcgmWorkload{}
	for i := range v.shares.GPUs {
		s := &v.shares.GPUs[i]
		if s.Assigned == nil {
			continue
		}
		o := v.shares.Owners[s.Owner]
		w := dcgmWorkload{
			container: o.Container, namespace: o.Namespace, pod: o.Pod, memory: s.Memory, utilization: named(s.Engines, "sm"),
		}
		if s.Listed && s.Processes == 0 {
			w.memory = model.Some(0)
			w.utilization = model.Optional{Known: named(s.GPU.Engines, "sm").Known} // MIG has no utilization by process
		}
		all := given[s.GPU]
		same := slices.IndexFunc(all, func(o dcgmWorkload) bool {
			return o.container == w.container && o.namespace == w.namespace && o.pod == w.pod
		})
		if same < 0 {
			given[s.GPU] = append(all, w)
			continue
		}
		all[same].memory = model.Optional{Value: all[same].memory.Value + w.memory.Value, Known: all[same].memory.Known && w.memory.Known}
		all[same].utilization = sumOf(all[same].utilization, w.utilization)
	}
	return given
}

// sumOf adds two values. Either may be unknown.
func sumOf(a, b model.Optional) model.Optional {
	return model.Optional{Value: a.Value + b.Value, Known: a.Known || b.Known}
}

// busID formats a PCI address as NVML does: the domain has eight digits, in capitals.
func busID(address string) string {
	if address == "" {
		return ""
	}
	return "0000" + strings.ToUpper(address)
}

// nvidiaNode returns the name of the GPU's device node, such as nvidia0.
func nvidiaNode(nodes []string) string {
	for _, node := range nodes {
		if name := strings.TrimPrefix(node, "/dev/"); strings.HasPrefix(name, "nvidia") && !strings.Contains(name, "/") {
			return name
		}
	}
	return ""
}
