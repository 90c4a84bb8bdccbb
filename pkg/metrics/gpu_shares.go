// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/exposition"
)

// gpuShareMetrics are who uses which GPU.
func gpuShareMetrics() []metric {
	const parts = " A GPU that has parts (MIG instances, partitions) is used through them, and has none."
	share := func(name, help string, of func(*attribution.GPUShare) (float64, bool)) metric {
		return metric{name: name, typ: gauge, owned: true, gpu: true, help: help, emit: func(v *view, b *exposition.Builder) {
			for i := range v.shares.GPUs {
				if n, ok := of(&v.shares.GPUs[i]); ok {
					b.Share(n, v.users[i])
				}
			}
		}}
	}
	return []metric{
		{
			name: "gpu_processes", typ: gauge, gpu: true,
			help: "Processes that use the GPU, as its driver lists them (--gpu.process-interval)." + parts,
			emit: func(v *view, b *exposition.Builder) {
				for _, g := range v.gpus {
					if g.figures.Listed {
						b.Share(float64(g.figures.Processes), g.labels)
					}
				}
			},
		},
		{
			name: "gpu_listed_timestamp_seconds", typ: gauge, gpu: true,
			help: "When the processes of the GPU, its memory and its engines were read last, in seconds since 1970: all that is " +
				"older than the scrape (--gpu.process-interval).",
			emit: func(v *view, b *exposition.Builder) {
				for _, g := range v.gpus {
					if !g.Listed.IsZero() {
						b.Share(float64(g.Listed.UnixMilli())/milliPerUnit, g.labels)
					}
				}
			},
		},
		share("container_gpu_memory_used_bytes", "Memory of the GPU that the processes of the workload have allocated, in bytes. "+
			"The shares of a GPU add up to gpu_memory_used_bytes; what no process of a known workload has (the driver's own, "+
			"processes whose memory the driver does not tell) has empty identity labels. 0 for who was given the GPU and does "+
			"not use it."+parts,
			func(s *attribution.GPUShare) (float64, bool) { return s.Memory.Value, s.Memory.Known }),
		{
			name: "container_gpu_utilization_ratio", typ: gauge, owned: true, gpu: true, labels: []string{"engine"},
			help: "Part of the time since the last listing in which the processes of the workload used an engine of the GPU (0 to " +
				"1), for engines of which the driver tells by process (NVIDIA: sm, memory, encoder, decoder; AMD: those of fdinfo, " +
				"sdma, and cu, the part of the compute units that is occupied). Where the GPU tells of the engine, too, the shares " +
				"add up to gpu_engine_utilization_ratio, and what no process of a known workload accounts for has empty identity " +
				"labels." + parts,
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.GPUs {
					for _, e := range v.shares.GPUs[i].Engines {
						b.Share(e.Value, v.users[i], e.Name)
					}
				}
			},
		},
		share("container_gpu_processes", "Processes of the workload that use the GPU, whether it asked for one or not. 0 for who "+
			"was given it and does not use it."+parts,
			func(s *attribution.GPUShare) (float64, bool) { return float64(s.Processes), s.Listed }),
		share("container_gpu_allocated", "1 for a workload that was given the GPU: by the kubelet, as a device node of its own, or "+
			"because it asked its runtime for it. That it may use all devices of the node (privileged) does not count. With "+
			"container_gpu_processes at 0 the GPU is allocated and idle.",
			func(s *attribution.GPUShare) (float64, bool) { return 1, s.Allocated }),
	}
}

// accessMetrics are what workloads do with the nodes of HCAs and GPUs in /dev.
func accessMetrics() []metric {
	const classes = " Classes: rdma (/dev/infiniband/*), nvidia (/dev/nvidia*), amdgpu (/dev/kfd), dri (/dev/dri/*)."
	return []metric{
		{
			name: "container_device_opens_total", typ: counter, owned: true, labels: []string{"device", "class", "result"},
			help: "How often the workload opened a device node since the sensor looks (allowed), and how often its device " +
				"cgroup did not let it (denied), by the name of the node." + classes,
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.DeviceOpens {
					s := &v.shares.DeviceOpens[i]
					b.Share(float64(s.Value.Allowed), v.owners[s.Owner], s.Key.Device, string(s.Key.Class), "allowed")
					b.Share(float64(s.Value.Denied), v.owners[s.Owner], s.Key.Device, string(s.Key.Class), "denied")
				}
			},
		},
		{
			name: "container_device_handles", typ: gauge, owned: true, labels: []string{"device", "class"},
			help: "Open files of a device node that the processes of the workload have, by the name of the node. Absent where the " +
				"kernel has no iterator over open files." + classes,
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.DeviceHandles {
					s := &v.shares.DeviceHandles[i]
					b.Share(float64(s.Count), v.owners[s.Owner], s.Device, string(s.Class))
				}
			},
		},
	}
}
