// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var gpuShareNotes = []string{
	"The parts of a GPU (MIG instances, partitions) have its values.",
	"`container_gpu_memory_used_bytes`: shares, with the unattributed share (empty `method`), add up to " +
		"`gpu_memory_used_bytes`; Intel: only memory of processes.",
	"`container_gpu_memory_used_bytes`: `method` is `process` or [`gpu`](../docs/gpus.md#memory-without-an-owner). `pool` is " +
		"`vram` or `gtt` for AMD APUs.",
	"`container_gpu_utilization_ratio`: since the previous list, for engines that the driver reports by process: NVIDIA `sm`, " +
		"`memory`, `encoder`, `decoder`; AMD fdinfo engines, `sdma` and `cu` (occupied compute units); Intel `render`, `copy`, " +
		"`video`, `video-enhance`, `compute`. If the GPU reports the engine, shares add up to `gpu_engine_utilization_ratio`.",
	"`container_gpu_energy_joules_total`: `method`: `exclusive`, `activity` or `mig`: [how energy is " +
		"divided](../docs/gpus.md#energy-of-workloads). Shares, with the unattributed share (empty `method`), add up to " +
		"`gpu_energy_joules_total`; if that starts again, they go on. A removed workload's energy moves to the unattributed share.",
	"`container_gpu_processes` and `container_gpu_memory_used_bytes` are 0 for an allocated, unused GPU.",
	"`container_gpu_allocated`: `method` and `claim` are in [GPUs](../docs/gpus.md). Privileged access does not count.",
}

func gpuShareMetrics() []metric {
	share := func(name, help string, of func(*attribution.GPUShare) model.Optional) metric {
		return metric{name: name, typ: gauge, owned: true, gpu: true, help: help, emit: func(v *view, b *exposition.Builder) {
			for i := range v.shares.GPUs {
				known(b, of(&v.shares.GPUs[i]), v.users[i])
			}
		}}
	}
	return []metric{
		gpuValue("gpu_processes", gauge, "Processes that use the GPU.",
			func(g *gpuView) model.Optional {
				return model.Optional{Value: float64(g.figures.Processes), Known: g.figures.Listed}
			}),
		gpuValue("gpu_listed_timestamp_seconds", gauge,
			"Unix time when processes, memory and engines of the GPU were last read.",
			func(g *gpuView) model.Optional { return moment(g.Listed) }),
		{
			name: "container_gpu_memory_used_bytes", typ: gauge, owned: true, gpu: true, labels: []string{"pool", "method"},
			help: "GPU memory allocated by the workload's processes.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.GPUs {
					emitMemory(b, &v.shares.GPUs[i], v.users[i])
				}
			},
		},
		{
			name: "container_gpu_utilization_ratio", typ: gauge, owned: true, gpu: true, labels: []string{"engine"},
			help: "Fraction of time that the workload's processes used the GPU engine (0 to 1).",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.GPUs {
					for _, e := range v.shares.GPUs[i].Engines {
						b.Share(e.Value, v.users[i], e.Name)
					}
				}
			},
		},
		{
			name: "container_gpu_energy_joules_total", typ: counter, owned: true, gpu: true, labels: []string{"method"},
			help: "Energy of the GPU that the workload used or kept idle, by method of division.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.Energy {
					s := &v.shares.Energy[i]
					labels := b.GPU(v.owners[s.Owner], s.GPU.ID, s.GPU.UUID)
					b.Since(s.Since).Share(float64(s.Millijoules)/milliPerUnit, labels, string(s.Method))
				}
			},
		},
		share("container_gpu_processes", "Processes of the workload on the GPU.",
			func(s *attribution.GPUShare) model.Optional {
				return model.Optional{Value: float64(s.Processes), Known: s.Listed}
			}),
		{
			name: "container_gpu_allocated", typ: gauge, owned: true, gpu: true, labels: []string{"method", "claim", "share"},
			help: "GPU allocated to the workload, by source, always 1.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.GPUs {
					if a := v.shares.GPUs[i].Assigned; a != nil {
						b.Share(1, v.users[i], string(a.Allocated), a.Claim, a.ShareID)
					}
				}
			},
		},
	}
}

// emitMemory adds a workload's memory on a GPU, by pool if the GPU has two pools.
func emitMemory(b *exposition.Builder, s *attribution.GPUShare, owner *exposition.OwnerLabels) {
	method := "process"
	switch {
	case s.MemoryOfGPU:
		method = "gpu"
	case s.Owner == 0:
		method = "" // the remainder, and processes without an owner
	}
	if !s.GTT.Known {
		known(b, s.Memory, owner, "", method)
		return
	}
	known(b, s.GTT, owner, "gtt", method)
	if local := s.Memory.Value - s.GTT.Value; local > 0 {
		known(b, model.Some(local), owner, "vram", method)
	}
}

// accessMetrics returns the use of the device nodes of HCAs and GPUs in /dev.
func accessMetrics() []metric {
	return []metric{
		{
			name: "container_device_opens_total", typ: counter, owned: true, labels: []string{"device", "class", "result"},
			detail: []string{"device"},
			help:   "Opens of the device node, by class and result (allowed, denied).",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.DeviceOpens {
					s := &v.shares.DeviceOpens[i]
					b.Since(s.Since).Share(float64(s.Value.Allowed), v.owners[s.Owner], s.Key.Device, string(s.Key.Class), "allowed")
					if !v.facts.DenialsUnseen {
						b.Since(s.Since).Share(float64(s.Value.Denied), v.owners[s.Owner], s.Key.Device, string(s.Key.Class), "denied")
					}
				}
			},
		},
		{
			name: "container_device_handles", typ: gauge, owned: true, labels: []string{"device", "class"}, detail: []string{"device"},
			help: "Open files of the device node, by class.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.DeviceHandles {
					s := &v.shares.DeviceHandles[i]
					b.Share(float64(s.Count), v.owners[s.Owner], s.Device, string(s.Class))
				}
			},
		},
	}
}
