// SPDX-License-Identifier: Apache-2.0

//go:build vm

package guest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/machines/vm"
	"github.com/accelscope/accelscope/tests/machines/vm/guest"
)

// TestContainers checks two pods with RDMA traffic: their cgroups, their objects, their end.
func TestContainers(t *testing.T) {
	for name, o := range map[string]struct{ kernel, cgroup, root string }{
		"5.10":       {"5.10", vm.CgroupV2, "/sys/fs/cgroup"},
		"6.1":        {"6.1", vm.CgroupV2, "/sys/fs/cgroup"},
		"6.12":       {"6.12", vm.CgroupV2, "/sys/fs/cgroup"},
		"6.1-v1":     {"6.1", vm.CgroupV1, "/sys/fs/cgroup/rdma"},
		"6.1-hybrid": {"6.1", vm.CgroupHybrid, "/sys/fs/cgroup/rdma"},
	} {
		t.Run(name, func(t *testing.T) {
			programs, err := vm.BuildWorkloads(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if guest.Enter(t, vm.Options{Kernel: o.kernel, Cgroup: o.cgroup, Devices: 1}) {
				containers(t, o.root, programs)
			}
		})
	}
}

// containers is TestContainers in the guest. root is the cgroup file system with the rdma controller.
func containers(t *testing.T, root, programs string) {
	ctx := t.Context()
	c, err := guest.StartContainerd(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Stop()
	server, client, err := c.RunTraffic(ctx)
	if err != nil {
		t.Fatal(err)
	}

	idle := guest.PodContainer("default", "idle", "main", filepath.Join(programs, "verbs"), "-q", "4", "-m", "8192")
	idle.Devices = []string{"/dev/infiniband/uverbs0"}
	idle.Mounts = []string{programs}
	pid, err := c.Run(ctx, idle)
	if err != nil {
		t.Fatal(err)
	}
	cgroup, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil || !strings.Contains(string(cgroup), idle.Cgroup) {
		t.Errorf("cgroup of process %d: %q, %v", pid, cgroup, err)
	}

	// The rdma controller is independent of the other checks: it shows that all containers have verbs contexts.
	for _, o := range []guest.Container{server, client, idle} {
		current := filepath.Join(root, o.Cgroup, "rdma.current")
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
			text, err := os.ReadFile(current)
			if err == nil && strings.Contains(string(text), "hca_handle=1") {
				break
			}
			if time.Now().After(deadline) {
				log, _ := c.Log(o.ID)
				t.Fatalf("%s: %q, %v\n%s", current, text, err, log)
			}
		}
	}
	for deadline := time.Now().Add(60 * time.Second); ; time.Sleep(200 * time.Millisecond) {
		log, err := c.Log(client.ID)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(log, "65536 ") {
			t.Log(log)
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no traffic:\n%s", log)
		}
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		log, err := c.Log(idle.ID)
		if err == nil && strings.Contains(log, "pd 1 cq 1 qp 4 srq 0 mr 1 bytes 8192") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("log: %q, %v", log, err)
		}
	}
	out, err := c.Exec(ctx, client.ID, "ls", "/dev/infiniband")
	if err != nil || out != "uverbs0\n" {
		t.Errorf("devices in the container: %q, %v; want only uverbs0", out, err)
	}

	if err := c.Kill(ctx, server.ID, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	for _, o := range []guest.Container{server, client, idle} {
		if err := c.Delete(ctx, o.ID); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(filepath.Join(root, o.Cgroup)); !os.IsNotExist(err) {
			t.Errorf("cgroup of a deleted container: %v", err)
		}
	}
}
