// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var driverNotes = []string{
	"These families need `--collector.gpudriver`. `driver` is the name of the kernel module: `nvidia`, `nvidia_uvm`, `amdgpu`, `i915`, " +
		"`xe`, or another driver of DRM; `built-in` if the driver is part of the kernel image.",
	"`kind` is `wait` for [requests that wait on purpose](../docs/gpus.md#ioctls-of-gpu-drivers), such as for the end of a computation, " +
		"and `work` for all others. The gauges leave out `wait`.",
	"`container_gpu_driver_stuck_tasks` counts threads that have been in one ioctl for longer than `--gpu.stuck-after`; " +
		"`/api/v1/gpu-driver-tasks` lists them.",
	"An ioctl that began before the sensor started is in none of these families.",
}

// driverMetrics returns the metrics of the ioctls of GPU drivers.
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
			help: "Time that tasks of the workload were in ioctls of the GPU driver.",
			emit: each(driverCallsOf, func(v *view, b *exposition.Builder, s *attribution.Share[model.DriverCallKey, model.Histogram]) {
				b.Since(s.Since).Histogram(&s.Value, v.owners[s.Owner], s.Key.Driver, string(s.Key.Kind))
			}),
		},
		inProgress("container_gpu_driver_oldest_ioctl_seconds",
			"Age of the oldest ioctl of the GPU driver that a task of the workload is in, 0 without one.",
			func(s *attribution.DriverShare) float64 { return s.Oldest.Seconds() }),
		inProgress("container_gpu_driver_stuck_tasks",
			"Tasks of the workload that have been in one ioctl of the GPU driver for long.",
			func(s *attribution.DriverShare) float64 { return float64(s.Stuck) }),
	}
}

func driverCallsOf(v *view) []attribution.Share[model.DriverCallKey, model.Histogram] {
	return v.shares.DriverCalls
}
