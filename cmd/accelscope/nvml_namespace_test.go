// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// TestNVMLProcessNamespace runs the sensor in a process namespace of its own, where NVML omits the processes of containers:
// the fake library lists none. Processes must be absent, also of the pod that was given a GPU: zero would mean that it is idle.
func TestNVMLProcessNamespace(t *testing.T) {
	binary, library := buildNVML(t)
	own := []string{"unshare", "--pid", "--fork", "--kill-child", binary}
	socket := filepath.Join(t.TempDir(), "kubelet.sock")
	servePodResources(t, socket, claimServer{})
	n := startGPUs(t, own[0], library, time.Second, func(n *gpuNode) {
		n.Processes = nil
		n.args = own[1:]
		writeBelow(t, n.Dir, "etc/cdi/gpu-3.json", claimedGPU3)
	}, "--collector.kubelet", "--kubelet.pod-resources="+socket)
	defer func() {
		// unshare ignores SIGTERM, and ends with the sensor.
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", n.process.Pid))
		if pid, convErr := strconv.Atoi(strings.TrimSpace(string(children))); err != nil || convErr != nil || syscall.Kill(pid, syscall.SIGTERM) != nil {
			t.Errorf("the sensor cannot be ended: %v %q", err, children)
			_ = n.process.Kill()
		}
		_, _ = n.stop()
	}()
	e := n.until(t, "the GPUs are read, and one is allocated", func(e exposition) bool {
		return e.sum("gpu_engine_utilization_ratio", "engine", "sm_active") > 0 &&
			e.by("container_gpu_allocated", "workload", "uuid")["ml/train-0/main "+nvml.UUID(3)] == 1
	})
	for _, family := range []string{"container_gpu_processes", "container_gpu_memory_used_bytes", "container_gpu_utilization_ratio"} {
		if got := e.only(family); got != "" {
			t.Errorf("%s is present:\n%s", family, got)
		}
	}
	if got := e.sum("gpu_memory_used_bytes", "", ""); got == 0 {
		t.Error("the memory of the GPUs is missing")
	}
	args := append(n.Environment(), own...)
	args = append(args, "doctor", "--path.procfs="+n.ProcFS(), "--path.cgroup="+n.CgroupFS(), "--path.sysfs="+n.SysFS(), "--path.host="+n.Dir,
		"--no-collector.probe", "--no-collector.runtime", "--no-collector.rdma", "--gpu.nvml-library="+library)
	out, _ := child.Command(t.Context(), "env", args...).CombinedOutput() // fails: the main job needs HCAs and probes
	if !strings.Contains(string(out), "NVML omits processes of other process namespaces") || strings.Count(string(out), "nvidia ") < nvml.GPUs {
		t.Errorf("doctor:\n%s", out)
	}
}
