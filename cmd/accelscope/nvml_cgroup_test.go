// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/fixtures"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// TestNVMLRealProcesses has 40 real processes in 10 real cgroups with names of containers; the GPUs that they use are
// fakes.
func TestNVMLRealProcesses(t *testing.T) {
	root(t)
	binary, library := buildNVML(t)
	s, err := nvml.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	n := &gpuNode{Manifest: fixtures.Manifest{Dir: t.TempDir()}, Scenario: s}
	var pids []int
	var processes []*exec.Cmd
	for i := range 10 {
		c := fixtures.Container{
			ID:     fmt.Sprintf("%x", sha256.Sum256([]byte{byte(i)})),
			PodUID: fmt.Sprintf("acce15c0-0000-4000-8000-%012d", os.Getpid()),
		}
		leaves := containerCgroups(t, c)
		for range 4 {
			cmd := child.Command(t.Context(), "sleep", "300")
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			// Must run before the cgroups are removed: deferred calls run before cleanups.
			defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
			for _, leaf := range leaves {
				if err := os.WriteFile(filepath.Join(leaf, "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			c.PIDs = append(c.PIDs, cmd.Process.Pid)
			processes = append(processes, cmd)
		}
		n.Containers = append(n.Containers, c)
		pids = append(pids, c.PIDs...)
	}
	n.Node(pids...)
	n.bind(t, nvml.GPUs)
	n.write(t)

	n.start(t, binary, library, time.Second)
	e := n.listed(t)
	n.owners(t, e)
	conserved(t, e)
	ends(t, n.stop)

	// A process that ends after it was listed keeps its owner until the next list.
	n.start(t, binary, library, time.Hour)
	defer ends(t, n.stop)
	e = n.listed(t)
	for _, cmd := range processes {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	time.Sleep(1100 * time.Millisecond)
	after := scrape(t, n.url)
	n.owners(t, after)
	owned := func(e exposition) map[string]float64 {
		return e.by("container_gpu_memory_used_bytes", "workload", "uuid")
	}
	if diff := cmp.Diff(owned(e), owned(after)); diff != "" {
		t.Errorf("memory of processes that ended (-before +after):\n%s", diff)
	}
}

// containerCgroups creates the cgroup of a container in every hierarchy of the machine.
func containerCgroups(t *testing.T, c fixtures.Container) []string {
	t.Helper()
	mounts, err := os.ReadFile("/proc/mounts")
	if err != nil {
		t.Fatal(err)
	}
	var leaves []string
	for line := range strings.Lines(string(mounts)) {
		f := strings.Fields(line)
		if !strings.HasPrefix(f[2], "cgroup") || strings.Contains(f[3], "cpuset") { // cpuset needs CPUs to be set first
			continue
		}
		pod := filepath.Join(f[1], "kubepods", "pod"+c.PodUID)
		leaf := filepath.Join(pod, c.ID)
		if err := os.MkdirAll(leaf, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = os.Remove(leaf)
			_ = os.Remove(pod) // the last one succeeds
			_ = os.Remove(filepath.Dir(pod))
		})
		leaves = append(leaves, leaf)
	}
	if len(leaves) == 0 {
		t.Fatal("no cgroups are mounted")
	}
	return leaves
}

// root skips tests that create cgroups or load BPF programs. As root, both must work.
func root(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}
