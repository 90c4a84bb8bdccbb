// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var gpuShareNotes = []string{
	"The driver lists processes, their memory and engines every `--gpu.process-interval`; `gpu_listed_timestamp_seconds` is the " +
		"time of the last list, which is before the time of the scrape.",
	"A GPU that has parts (MIG instances, partitions) is used through its parts: processes, memory and utilization are those " +
		"of the parts.",
	"`container_gpu_memory_used_bytes`: the shares of a GPU add up to `gpu_memory_used_bytes`. Memory of the driver, managed memory of " +
		"CUDA, and memory of processes that ended are in the unattributed share, which has empty identity labels. Intel's drivers " +
		"report no memory in use of the whole GPU: the unattributed share has that of processes only.",
	"`container_gpu_memory_used_bytes`: where the driver lists a process without its memory, as in a guest of a vGPU, the memory of its " +
		"workload and of the unattributed share is unknown, and absent. If no other workload has processes on the GPU, the workload " +
		"has the memory in use of the GPU, with `method` `gpu` in place of `process`.",
	"`container_gpu_memory_used_bytes`: `pool` is `vram` or `gtt` (memory of the host) of an APU of AMD, with processes in both; else it " +
		"is empty. `method` of the unattributed share is empty.",
	"Compute instances of one GPU instance of MIG have one memory: the first one has its size, what is free, and the unattributed share. " +
		"`gpu_memory_used_bytes` of the others is the memory of their processes. Their engines (GPM) are those of all, and absent.",
	"`container_gpu_utilization_ratio`: fraction of the time since the previous list. It covers the engines that the driver " +
		"reports per process: NVIDIA `sm`, `memory`, `encoder`, `decoder`; AMD the engines of fdinfo, `sdma`, and `cu`, the " +
		"fraction of compute units that are occupied; Intel `render`, `copy`, `video`, `video-enhance`, `compute`. " +
		"Where the GPU reports the engine, too, the shares add up to `gpu_engine_utilization_ratio`, and the rest is " +
		"in the unattributed share.",
	"`container_gpu_processes` counts processes whether the workload requested the GPU or not. This family and " +
		"`container_gpu_memory_used_bytes` are 0 for a workload that was allocated the GPU and does not use it.",
	"`container_gpu_allocated`: by `method`, the kubelet allocated the GPU (`kubelet`), the container requested it from its " +
		"runtime (`runtime`), or the container has its device node (`device_node`); for a Slurm job, its device cgroup or device program " +
		"allows the GPU (`device_cgroup`), or the environment of its processes names it (`environment`), which the user can change. " +
		"Access to all devices of the node (privileged) does not count. `claim` is the resource claim, which several pods may share, and " +
		"`share` the part of the GPU that the claim has, if it has not all of it. A GPU with `container_gpu_processes` at 0 is " +
		"allocated and idle.",
}

// gpuShareMetrics returns the shares of GPUs that workloads use.
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
			"Unix time at which the processes, memory and engines of the GPU were last read.",
			func(g *gpuView) model.Optional { return moment(g.Listed) }),
		{
			name: "container_gpu_memory_used_bytes", typ: gauge, owned: true, gpu: true, labels: []string{"pool", "method"},
			help: "GPU memory that the processes of the workload have allocated.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.GPUs {
					emitMemory(b, &v.shares.GPUs[i], v.users[i])
				}
			},
		},
		{
			name: "container_gpu_utilization_ratio", typ: gauge, owned: true, gpu: true, labels: []string{"engine"},
			help: "Fraction of time in which the processes of the workload used the engine of the GPU (0 to 1).",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.GPUs {
					for _, e := range v.shares.GPUs[i].Engines {
						b.Share(e.Value, v.users[i], e.Name)
					}
				}
			},
		},
		share("container_gpu_processes", "Processes of the workload that use the GPU.",
			func(s *attribution.GPUShare) model.Optional {
				return model.Optional{Value: float64(s.Processes), Known: s.Listed}
			}),
		{
			name: "container_gpu_allocated", typ: gauge, owned: true, gpu: true, labels: []string{"method", "claim", "share"},
			help: "GPU that is allocated to the workload, by the source of this information, always 1.",
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

// emitMemory adds the memory of a workload on a GPU, and by pool if the GPU has two.
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

// accessMetrics returns the use of the device nodes of HCAs and GPUs in /dev by workloads.
func accessMetrics() []metric {
	return []metric{
		{
			name: "container_device_opens_total", typ: counter, owned: true, labels: []string{"device", "class", "result"},
			detail: []string{"device"},
			help:   "Times that the workload opened the device node, by class and result (allowed, denied).",
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
			help: "Open files of the device node in the processes of the workload, by class.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.DeviceHandles {
					s := &v.shares.DeviceHandles[i]
					b.Share(float64(s.Count), v.owners[s.Owner], s.Device, string(s.Class))
				}
			},
		},
	}
}
