// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/fixtures"
)

// oneGPU is a node with a scenario of one GPU, which knows nothing but its name, and a process in a container.
func oneGPU(t *testing.T, name string) *gpuNode {
	t.Helper()
	m, err := fixtures.Write(t.TempDir(), fixtures.Options{Containers: 1, ContainersPerPod: 1, ProcsPerContainer: 1})
	if err != nil {
		t.Fatal(err)
	}
	s, err := nvml.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	n := &gpuNode{Manifest: m, Scenario: s}
	n.Set("0", "nvmlDeviceGetName", name)
	n.Set("0", "nvmlDeviceGetUUID", nvml.UUID(0))
	n.write(t)
	return n
}

// TestNVMLLibrary: doctor distinguishes a library that it does not find from one that cannot be initialized.
func TestNVMLLibrary(t *testing.T) {
	binary, library := buildNVML(t)
	const invisible, initialization = "make the driver's libnvidia-ml.so.1 visible", "the library was found: load the driver that matches it"
	for name, c := range map[string]struct {
		library       string
		code          int // of nvmlInit
		want, without []string
	}{
		"not at the path": {
			filepath.Join(t.TempDir(), nvml.Library), 0, []string{"cannot open shared object file", invisible}, []string{"nvmlInit", initialization},
		},
		"not at the usual places": {"", 0, []string{"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", invisible}, []string{"nvmlInit", initialization}},
		"of another driver": {
			library, nvml.VersionMismatch, []string{"nvmlInit failed with 18", "the driver was upgraded", initialization}, []string{"cannot open shared object file", invisible},
		},
		"without a driver": {
			library, nvml.DriverNotLoaded, []string{"nvmlInit failed with 9", "/dev/nvidiactl", initialization}, []string{"cannot open shared object file", invisible},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := oneGPU(t, "NVIDIA H100 80GB HBM3")
			n.bind(t, 1)
			if c.code != 0 {
				n.Fail(nvml.System, "nvmlInit", c.code)
				n.write(t)
			}
			out := n.doctor(t, binary, c.library)
			for _, text := range c.want {
				if !strings.Contains(out, text) {
					t.Errorf("%q is missing", text)
				}
			}
			for _, text := range c.without {
				if strings.Contains(out, text) {
					t.Errorf("%q is too much", text)
				}
			}
			if t.Failed() {
				t.Logf("doctor:\n%s", out)
			}
		})
	}
}

// TestNVMLPlatforms has nodes whose GPU has no PCI driver in this kernel: nothing below /sys/bus/pci/drivers/nvidia and
// /proc/driver/nvidia. The library is found at the place that it has there. The scenarios are made from reports of users:
// nvidia-smi has neither engines nor processes in WSL (NVIDIA's guide, dask/distributed#5567: the list fails with 999,
// microsoft/wslg#919: it has PIDs that do not exist), and a Jetson's GPU has no PCI address and no memory of its own.
func TestNVMLPlatforms(t *testing.T) {
	binary, library := buildNVML(t)
	for name, c := range map[string]struct {
		path, gpu string
		dxg       bool
		set       func(n *gpuNode)
		listed    bool
	}{
		"WSL": {"usr/lib/wsl/lib", "NVIDIA GeForce RTX 4060", true, func(n *gpuNode) {
			n.Set("0", "nvmlDeviceGetPciInfo", "00000000:01:00.0", "0x288210DE", "0x00000000")
			n.Set("0", "nvmlDeviceGetMemoryInfo", 8<<30, 6<<30, 2<<30)
			n.Set("0", "nvmlDeviceGetTemperature.0", 48)
			for _, version := range []string{"", "_v2", "_v3"} {
				n.Fail("0", "nvmlDeviceGetComputeRunningProcesses"+version, 999)
			}
			n.Processes = []nvml.Process{{Device: "0", PID: 4_000_000, Memory: nvml.Unknown, Kinds: "G"}}
		}, false},
		"Jetson": {"usr/lib/aarch64-linux-gnu/nvidia", "Orin (nvgpu)", false, func(n *gpuNode) {
			n.Set("0", "nvmlDeviceGetTemperature.0", 48)
			n.Processes = []nvml.Process{{Device: "0", PID: n.Containers[0].PIDs[0], Memory: nvml.Unknown, Kinds: "C"}}
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := oneGPU(t, c.gpu)
			c.set(n)
			n.write(t)
			text, err := os.ReadFile(library)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(n.Dir, c.path, nvml.Library)
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, text, 0o755); err != nil { //nolint:gosec // as installed
				t.Fatal(err)
			}
			if c.dxg {
				if err := os.MkdirAll(filepath.Join(n.Dir, "dev"), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(n.Dir, "dev/dxg"), nil, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			n.start(t, binary, "", time.Second, "--path.procfs="+n.ProcFS(), "--path.cgroup="+n.CgroupFS())
			defer func() { ends(t, n.stop) }()
			e := n.until(t, "the GPU is read", func(e exposition) bool {
				return e.sum("gpu_temperature_celsius", "", "") == 48 && (!c.listed || e.sum("container_gpu_processes", "", "") == 1)
			})
			if e.sum("gpu_info", "name", c.gpu) != 1 || e.nvidia() != "ok" {
				t.Errorf("%s\n%s", e.nvidia(), e.only("gpu_info"))
			}
			for device, state := range e.states("accelscope_device_state") {
				if strings.HasPrefix(device, "nvidia") && state != "ok" {
					t.Errorf("%s: %s", device, state)
				}
			}
			if got := e.only("container_gpu_", "gpu_processes"); !c.listed && got != "" {
				t.Errorf("NVML lists no processes, although there may be some:\n%s", got)
			}
			if got := e.sum("container_gpu_processes", "container_id", n.Containers[0].ID); c.listed && got != 1 {
				t.Errorf("%g processes of the container", got)
			}
			out := n.doctor(t, binary, "")
			if strings.Contains(out, "Windows Subsystem") != c.dxg || !strings.Contains(out, "nvidia 0") {
				t.Errorf("doctor:\n%s", out)
			}
		})
	}
}
