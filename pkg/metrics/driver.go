// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var driverNotes = []string{
	"Needs `--collector.gpudriver`. `driver` is the kernel module: `nvidia`, `nvidia_uvm`, `amdgpu`, `i915`, `xe`, or another " +
		"DRM driver; `built-in` in the kernel image.",
	"`kind` is `wait` for [requests that wait on purpose](../docs/gpus.md#ioctls-of-gpu-drivers), else `work`. The gauges leave " +
		"out `wait`.",
	"`container_gpu_driver_stuck_tasks`: longer than `--gpu.stuck-after`; `/api/v1/gpu-driver-tasks` lists them.",
	"Ioctls that began before the sensor's start are left out.",
}

func driverMetrics() []metric {
	inProgress := func(name, help string, of func(*attribution.DriverShare) float64) metric {
		return metric{
			name: name, typ: gauge, owned: true, labels: []string{"driver"}, help: help,
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.DriverShares {
					s := &v.shares.DriverShares[i]
					b.Share(of(s), v.owners[s.Owner], s.Driver)
				}
			},
		}
	}
	return []metric{
		{
			name: "container_gpu_driver_ioctl_duration_seconds", typ: histogram, owned: true, labels: []string{"driver", "kind"},
			help: "Time of the workload's tasks in GPU driver ioctls.",
			emit: each(driverCallsOf, func(v *view, b *exposition.Builder, s *attribution.Share[model.DriverCallKey, model.Histogram]) {
				b.Since(s.Since).Histogram(&s.Value, v.owners[s.Owner], s.Key.Driver, string(s.Key.Kind))
			}),
		},
		inProgress("container_gpu_driver_oldest_ioctl_seconds",
			"Age of the oldest GPU driver ioctl in progress, or 0.",
			func(s *attribution.DriverShare) float64 { return s.Oldest.Seconds() }),
		inProgress("container_gpu_driver_stuck_tasks",
			"Tasks that have been in one GPU driver ioctl for long.",
			func(s *attribution.DriverShare) float64 { return float64(s.Stuck) }),
	}
}

func driverCallsOf(v *view) []attribution.Share[model.DriverCallKey, model.Histogram] {
	return v.shares.DriverCalls
}
