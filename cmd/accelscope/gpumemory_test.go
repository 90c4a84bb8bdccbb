// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/accelscope/accelscope/tests/fakes/gpumemory"
	"github.com/accelscope/accelscope/tests/fixtures"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// testGPUMemory runs the program with real processes in the cgroups of two containers, which allocate from FAKE libraries. The
// master of a terminal stands in for the device node of a GPU: in the mount namespace of the program, /proc/devices names its
// driver kfd.
func testGPUMemory(t *testing.T, binary string) {
	t.Helper()
	root(t)
	built := gpumemory.Build(t, t.TempDir())
	gpu, err := os.Open("/dev/ptmx")
	if err != nil {
		t.Fatal(err)
	}
	defer gpu.Close()
	var containers []fixtures.Container
	var allocators []*gpumemory.Allocator
	for i, library := range []string{built.CUDA, built.HIP} {
		c := fixtures.Container{
			ID:     fmt.Sprintf("%x", sha256.Sum256([]byte{0x00, 0xf, byte(i)})),
			PodUID: fmt.Sprintf("acce15c0-00f0-4000-8000-%012d", os.Getpid()),
		}
		leaves := containerCgroups(t, c)
		cmd := child.Command(context.Background(), built.Program)
		cmd.ExtraFiles = []*os.File{gpu}
		a := gpumemory.Start(t, cmd)
		for _, leaf := range leaves {
			if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), fmt.Append(nil, a.Process.Pid), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		a.OK("load %s", library)
		a.OK("limit 0")
		containers, allocators = append(containers, c), append(allocators, a)
	}
	url, stop := start(t, "unshare", asGPU(t, binary,
		"--no-collector.rdma", "--no-collector.probe", "--no-collector.runtime", "--no-collector.kubelet", "--no-collector.node",
		"--no-collector.container", "--no-collector.gpu", "--no-collector.kernellog",
		"--gpu.allocation-failures", "--gpu.process-interval=200ms")...)
	awaitSeries(t, url, `accelscope_probe_hook_state{hook="cuMemAlloc_v2"*state="ok"*tier="uprobe"} 1`,
		`accelscope_probe_hook_state{hook="hipMallocPitch"*state="ok"*tier="uprobe"} 1`,
		`accelscope_source_state{source="gpumemory",state="ok"} 1`)
	allocators[0].Failures("call cuMemAlloc_v2 3 1000")
	allocators[0].Failures("call cuMemAllocManaged 2 500") // it calls cuMemAlloc_v2
	allocators[1].Failures("call hipMallocPitch 4 1000 10")
	allocators[1].OK("limit 1000000")
	allocators[1].Failures("call hipMalloc 1 1000")
	const failures, bytes = "container_gpu_allocation_failures_total", "container_gpu_allocation_failed_bytes_total"
	cuda, hip := containers[0].ID, containers[1].ID
	body := awaitSeries(t, url,
		failures+`{api="cuMemAlloc"*`+cuda+`*} 3`, bytes+`{api="cuMemAlloc"*`+cuda+`*} 3000`,
		failures+`{api="cuMemAllocManaged"*`+cuda+`*} 2`, bytes+`{api="cuMemAllocManaged"*`+cuda+`*} 1000`,
		failures+`{api="hipMallocPitch"*`+hip+`*} 4`, bytes+`{api="hipMallocPitch"*`+hip+`*} 40000`,
		failures+`{api="hipMalloc"*`+hip+`*} 0`, bytes+`{api="hipMalloc"*`+hip+`*} 0`,
		`accelscope_probe_map_entries{map="allocation_failures"} 4`)
	for _, reason := range []string{"allocation_failures_full", "allocation_failures_share", "allocation_entry_missed"} {
		if series := `accelscope_probe_lost_total{reason="` + reason + `"} 0`; !hasSeries(body, series) {
			t.Errorf("no series %s", series)
		}
	}
	if n := strings.Count(body, "\n"+failures+"{"); n != 4 {
		t.Errorf("%d series of %s, want 4", n, failures)
	}
	if _, err := stop(); err != nil {
		t.Error(err)
	}
}

// asGPU returns the arguments of unshare(1) that run the program where the master of a terminal is the node of a GPU.
func asGPU(t *testing.T, binary string, args ...string) []string {
	t.Helper()
	dir := t.TempDir()
	sysfs := filepath.Join(dir, "sys")
	if err := os.MkdirAll(filepath.Join(sysfs, "dev/char"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../../devices/x/kfd", filepath.Join(sysfs, "dev/char/5:2")); err != nil {
		t.Fatal(err)
	}
	devices := filepath.Join(dir, "devices")
	if err := os.WriteFile(devices, []byte("Character devices:\n  5 kfd\n\nBlock devices:\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	const script = `mount --bind "$0" /proc/devices && exec "$@"`
	return append([]string{"--mount", "sh", "-c", script, devices, binary, "--path.sysfs=" + sysfs}, args...)
}

// awaitSeries waits until /metrics has all series (see hasSeries), and returns it.
func awaitSeries(t *testing.T, url string, want ...string) (body string) {
	t.Helper()
	await(t, func() error {
		_, _, body = get(t, url+"/metrics", "text/plain")
		for _, series := range want {
			if !hasSeries(body, series) {
				return fmt.Errorf("no series %s in:\n%s", series, body)
			}
		}
		return nil
	})
	return body
}
