// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var allocationNotes = []string{
	"Needs `--gpu.allocation-failures`. `api` is the vendor's function: `cuMemAlloc`, `cuMemAllocPitch`, `cuMemAllocManaged`, " +
		"`cuMemAllocAsync`, `cuMemAllocFromPoolAsync`, `cuMemCreate`, `hipMalloc`, `hipExtMallocWithFlags`, `hipMallocManaged`, " +
		"`hipMallocPitch`, `hipMemAllocPitch`, `hipMallocAsync`, `hipMallocFromPoolAsync`, `hipMemCreate`.",
	"Only lack of memory (error 2) counts, once for nested functions.",
	"[What is not seen](../docs/limits.md#failed-allocations-of-gpu-memory). While a hook in `accelscope_probe_hook_state` is " +
		"`failed`, values are lower bounds.",
}

func allocationMetrics() []metric {
	row := func(name, help string, value func(*model.Allocations) uint64) metric {
		return metric{
			name: name, typ: counter, owned: true, labels: []string{"vendor", "api"}, detail: []string{"api"}, help: help,
			emit: each(allocationsOf, func(v *view, b *exposition.Builder, s *allocationShare) {
				b.Since(s.Since).Share(float64(value(&s.Value)), v.owners[s.Owner], string(s.Key.Vendor), s.Key.API)
			}),
		}
	}
	return []metric{
		row("container_gpu_allocation_failures_total", "GPU memory allocations that failed for lack of memory, by API.",
			func(a *model.Allocations) uint64 { return a.Count }),
		row("container_gpu_allocation_failed_bytes_total", "Bytes requested by failed GPU memory allocations, by API.",
			func(a *model.Allocations) uint64 { return a.Bytes }),
	}
}

type allocationShare = attribution.Share[model.AllocationKey, model.Allocations]

func allocationsOf(v *view) []allocationShare { return v.shares.FailedAllocations }
