// SPDX-License-Identifier: Apache-2.0

//go:build vm

package guest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/machines/vm"
	"github.com/accelscope/accelscope/tests/machines/vm/guest"
)

// TestRuntimes checks the CRI, Docker Engine and podman: each runs a container with an RDMA context, which survives a
// crash of its runtime.
func TestRuntimes(t *testing.T) {
	programs, err := vm.BuildWorkloads(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if guest.Enter(t, vm.Options{Devices: 1}) {
		runtimes(t, programs)
	}
}

// runtimes is TestRuntimes in the guest.
func runtimes(t *testing.T, programs string) {
	ctx := t.Context()
	begin := time.Now()
	took := func(what string) {
		t.Logf("%-30s %v", what, time.Since(begin).Round(time.Millisecond))
		begin = time.Now()
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	verbs := []string{filepath.Join(programs, "verbs"), "-q", "2", "-m", "8192"}
	holds := func(pid int, cgroup string) {
		t.Helper()
		at, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil || !strings.Contains(string(at), cgroup) {
			t.Errorf("cgroup of process %d: %q, %v; want %s", pid, at, err, cgroup)
		}
		file := filepath.Join("/sys/fs/cgroup", strings.TrimSpace(strings.TrimPrefix(string(at), "0::")), "rdma.current")
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
			text, err := os.ReadFile(file)
			if err == nil && strings.Contains(string(text), "hca_handle=1") {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %q, %v", file, text, err)
			}
		}
	}

	c, err := guest.StartContainerd(ctx)
	must(err)
	took("containerd")
	k, err := c.StartCRI(ctx)
	must(err)
	took("CRI")
	pod := &guest.Pod{Namespace: "default", Name: "train-0"}
	must(k.RunPod(ctx, pod))
	took("sandbox")
	id, err := k.Run(ctx, pod, guest.PodMember{
		Name: "worker", Command: verbs, Mounts: []string{programs}, Devices: []string{"/dev/infiniband/uverbs0"},
	})
	must(err)
	took("container of a pod")
	pid, err := k.PID(ctx, id)
	must(err)
	holds(pid, "/kubepods/burstable/pod"+pod.UID+"/"+id)
	out, err := k.Exec(ctx, id, "/bin/busybox", "ip", "-o", "address")
	if err != nil || !strings.Contains(out, "10.88.0.") {
		t.Errorf("addresses in the pod: %q, %v", out, err)
	}
	took("exec")
	must(c.Crash())
	must(c.Start(ctx))
	took("crash and start")
	after, err := k.PID(ctx, id)
	must(err)
	if after != pid {
		t.Errorf("process %d is %d after a crash of containerd", pid, after)
	}

	d, err := guest.StartDocker(ctx, "cgroupfs")
	must(err)
	took("dockerd")
	id, err = d.Run(ctx, []string{
		"--name=solo", "--network=none", "--device=/dev/infiniband/uverbs0", "--volume=" + programs + ":" + programs + ":ro",
	}, verbs...)
	must(err)
	took("docker run")
	inspected, err := d.Do(ctx, "inspect", "-f", "{{.State.Pid}}", "solo")
	must(err)
	_, err = fmt.Sscan(inspected, &pid)
	must(err)
	holds(pid, "/docker/"+id)
	must(d.Crash())
	must(d.Start(ctx))
	took("crash and start")
	if again, err := d.Do(ctx, "inspect", "-f", "{{.State.Pid}}", "solo"); err != nil || again != inspected {
		t.Errorf("process %d is %q after a crash of dockerd, %v", pid, again, err)
	}

	p, err := guest.StartPodman(ctx)
	must(err)
	took("podman")
	id, err = p.Run(ctx, []string{
		"--name=pod-less", "--network=none", "--device=/dev/infiniband/uverbs0", "--volume=" + programs + ":" + programs + ":ro",
	}, verbs...)
	must(err)
	took("podman run")
	inspected, err = p.Do(ctx, "inspect", "-f", "{{.State.Pid}}", "pod-less")
	must(err)
	_, err = fmt.Sscan(inspected, &pid)
	must(err)
	holds(pid, "/libpod_parent/libpod-"+id)
	took("podman inspect")

	id, err = k.Run(ctx, pod, guest.PodMember{Name: "short", Command: []string{"/bin/sh", "-c", "exit 7"}})
	must(err)
	if code, err := k.Wait(ctx, id); code != 7 || err != nil {
		t.Errorf("exit code %d, %v; want 7", code, err)
	}
	must(k.Remove(ctx, id))
	took("a short container")
	must(k.RemovePod(ctx, pod))
	took("remove the pod")
	_, err = d.Do(ctx, "rm", "-f", "solo")
	must(err)
	_, err = p.Do(ctx, "rm", "-f", "-t", "0", "pod-less")
	must(err)
	took("remove the others")
	must(p.Stop())
	must(d.Stop())
	must(k.Close())
	must(c.Stop())
	took("stop")
}
