// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
)

// TestNVMLMemoryOwners checks memory that has an owner although a driver does not list it for a process, with fake drivers.
func TestNVMLMemoryOwners(t *testing.T) {
	binary, library := buildNVML(t)

	t.Run("two compute instances of a GPU instance", func(t *testing.T) {
		t.Parallel()
		const used = 9 << 30
		n := startGPUs(t, binary, library, time.Second, func(n *gpuNode) {
			for d, profile := range map[string]string{"6:0": "2c.3g.40gb", "6:1": "1c.3g.40gb"} {
				n.Set(d, "nvmlDeviceGetGpuInstanceId", n.Get("6:0", "nvmlDeviceGetGpuInstanceId"))
				n.Set(d, "nvmlDeviceGetComputeInstanceId", strings.TrimPrefix(d, "6:"))
				n.Set(d, "nvmlDeviceGetName", "NVIDIA H100 80GB HBM3 MIG "+profile)
				n.Set(d, "memory_v2", 40<<30, 16<<20, 40<<30-16<<20-used, used)
				n.Set(d, "nvmlDeviceGetMemoryInfo", 40<<30, 40<<30-16<<20-used, used+16<<20)
			}
			n.Set("6", "memory_v2", 80<<30, 16<<20, 80<<30-16<<20-used, used)
		})
		defer ends(t, n.stop)
		e := n.listed(t)
		n.owners(t, e)
		conserved(t, e)
		sum := func(family string) (total float64) {
			all := e.by(family, "uuid")
			return all[n.UUID("6:0")] + all[n.UUID("6:1")]
		}
		if got := sum("gpu_memory_used_bytes"); got != used || got != e.by("gpu_memory_used_bytes", "uuid")[nvml.UUID(6)] {
			t.Errorf("%v bytes are in use, want %v", got, used)
		}
		if got := sum("gpu_memory_total_bytes"); got != 40<<30 {
			t.Errorf("a size of %v bytes, want 40 GiB", got)
		}
		if got := e.sum("DCGM_FI_DEV_FB_USED", "UUID", nvml.UUID(6)); got != used>>20 {
			t.Errorf("DCGM_FI_DEV_FB_USED adds up to %v, want %v", got, used>>20)
		}
		for key := range e.by("gpu_engine_utilization_ratio", "gpu_id", "engine") {
			if strings.HasPrefix(key, "6:") {
				t.Errorf("the counters of the GPU instance are exported for %s", key)
			}
		}
	})

	t.Run("the driver does not report the memory of a process", func(t *testing.T) {
		t.Parallel()
		n := startGPUs(t, binary, library, time.Second, func(n *gpuNode) {
			one := n.Containers[0].PIDs[0]
			n.Processes = []nvml.Process{
				{Device: "0", PID: one, Memory: nvml.Unknown, SM: 5, Kinds: "C"},
				{Device: "1", PID: one, Memory: nvml.Unknown, SM: 5, Kinds: "C"},
				{Device: "1", PID: n.Containers[2].PIDs[0], Memory: 1 << 30, SM: 5, Kinds: "C"},
			}
			n.Balance()
		})
		defer ends(t, n.stop)
		e := n.until(t, "processes are listed", func(e exposition) bool { return e.sum("container_gpu_processes", "", "") == 3 })
		got := e.by("container_gpu_memory_used_bytes", "gpu_id", "container_id", "method")
		used := e.by("gpu_memory_used_bytes", "gpu_id")
		if of := fmt.Sprintf("0 %s gpu", n.Containers[0].ID); got[of] != used["0"] || used["0"] == 0 {
			t.Errorf("the only workload of GPU 0 has %v of %v bytes", got[of], used["0"])
		}
		if of := fmt.Sprintf("1 %s process", n.Containers[2].ID); got[of] != 1<<30 {
			t.Errorf("a workload with known memory has %v", got[of])
		}
		for key, v := range got {
			if key == "0  " || key == "1  " || strings.HasPrefix(key, "1 "+n.Containers[0].ID) {
				t.Errorf("%q has %v bytes, which are not known", key, v)
			}
		}
	})
}
