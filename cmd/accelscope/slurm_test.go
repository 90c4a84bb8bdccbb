// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/fakes/slurmjob"
	"github.com/accelscope/accelscope/tests/fixtures"
)

// TestSlurmDevicePrograms has two Slurm jobs in real cgroups of version 2, with device programs like Slurm's: the first one has two
// GPUs and one step with only one of them, the second one has no GPU. No job has a process. The GPUs are fakes.
func TestSlurmDevicePrograms(t *testing.T) {
	root(t)
	binary, library := buildNVML(t)
	mount := ""
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var st unix.Statfs_t
		if unix.Statfs(dir, &st) == nil && st.Type == unix.CGROUP2_SUPER_MAGIC {
			mount = dir
		}
	}
	if mount == "" {
		t.Fatal("no cgroups of version 2 are mounted")
	}
	job := 1_000_000_000 + os.Getpid()
	scope := filepath.Join(mount, fmt.Sprintf("system.slice/accelscope%d_slurmstepd.scope", os.Getpid()))
	step := func(number int, name string) string { return fmt.Sprintf("%s/job_%d/step_%s", scope, job+number, name) }
	for _, leaf := range []string{step(0, "0") + "/user/task_0", step(0, "batch") + "/user/task_0", step(1, "batch") + "/user/task_0"} {
		for _, dir := range ancestors(mount, leaf) {
			switch err := os.Mkdir(dir, 0o755); {
			case err == nil:
				t.Cleanup(func() { _ = os.Remove(dir) }) // systemd may have made more in system.slice
			case !os.IsExist(err):
				t.Fatal(err)
			}
		}
	}
	gpus := func(allowed ...int64) (all []slurmjob.Device) {
		for minor := range int64(nvml.GPUs) {
			all = append(all, slurmjob.Device{Kind: slurmjob.Character, Major: 195, Minor: minor})
		}
		for _, minor := range allowed {
			all[minor].Allow = true
		}
		return all
	}
	for dir, devices := range map[string][]slurmjob.Device{
		filepath.Dir(step(0, "0")): gpus(2, 3), step(0, "0") + "/user": gpus(3), filepath.Dir(step(1, "batch")): gpus(),
	} {
		defer slurmjob.Attach(t, dir, slurmjob.Program(devices...), slurmjob.AllowOverride)()
	}

	s, err := nvml.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	n := &gpuNode{Manifest: fixtures.Manifest{Dir: t.TempDir()}, Scenario: s}
	n.Node()
	n.bind(t, nvml.GPUs)
	n.write(t)
	if err := os.WriteFile(filepath.Join(n.ProcFS(), "devices"), []byte("Character devices:\n195 nvidia\n236 nvidia-caps\n"), 0o644); err != nil { //nolint:gosec // as in /proc
		t.Fatal(err)
	}
	n.start(t, binary, library, time.Second, "--path.procfs="+n.ProcFS(), "--path.cgroup="+mount)
	defer ends(t, n.stop)
	workload := fmt.Sprint("slurm:", job)
	want := map[string]float64{workload + " " + nvml.UUID(2) + " device_cgroup": 1, workload + " " + nvml.UUID(3) + " device_cgroup": 1}
	e := n.until(t, "the GPUs of the job are known", func(e exposition) bool {
		return maps.Equal(e.by("container_gpu_allocated", "workload", "uuid", "method"), want)
	})
	idle := e.by("container_gpu_processes", "workload", "uuid")
	for minor := 2; minor <= 3; minor++ {
		if v, known := idle[workload+" "+nvml.UUID(minor)]; !known || v != 0 {
			t.Errorf("GPU %d has %v processes (%v), want to see that it is idle", minor, v, known)
		}
	}
}

// ancestors returns the directories below root to a leaf, the upper ones first.
func ancestors(root, leaf string) (dirs []string) {
	for dir := leaf; dir != root; dir = filepath.Dir(dir) {
		dirs = append([]string{dir}, dirs...)
	}
	return dirs
}
