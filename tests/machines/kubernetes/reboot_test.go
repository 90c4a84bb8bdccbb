// SPDX-License-Identifier: Apache-2.0

//go:build vm

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const bootID = "/proc/sys/kernel/random/boot_id"

// testReboot is the stand-in for a reboot of the node: everything on it is killed at once, what is in memory is lost (/run, cgroups, mounts,
// interfaces of pods), and it starts again from the same files with another boot id. The control plane stays, as if it was on other
// machines. The kernel is the same: only a guest can boot. The sensor starts first, as a unit of systemd does.
func testReboot(t *testing.T) {
	const ns = "reboot"
	makeNamespace(t, ns)
	s := startSensor(t)
	plugins := startPlugins(t, s)
	t.Cleanup(func() { removePods(t, ns) })
	apply(t, podYAML(ns, "train-0", `  containers:
  - {name: main, IMAGE, SLEEP, resources: {limits: {nvidia.com/gpu: 2, example.com/vf: 1}}}
  - {name: logs, IMAGE, SLEEP}
`)+podYAML(ns, "sidecar", `  initContainers:
  - {name: prepare, IMAGE, args: ["true"]}
  - {name: proxy, IMAGE, SLEEP, restartPolicy: Always}
  containers:
  - {name: main, IMAGE, SLEEP, resources: {limits: {nvidia.com/gpu: 1}}}
`))
	ready(t, ns, "pod/train-0", "pod/sidecar")
	same(t, "containers", running.running, shown)
	allocated(t, ns, s)
	before, err := running.running(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	s.stop(syscall.SIGKILL)
	for _, p := range plugins {
		p.stop()
	}
	boot := powerOff(t)
	s = startSensor(t)
	named := collectNames(t)
	if err := running.startContainerd(t.Context(), filepath.Dir(running.containerd.args[0])); err != nil {
		t.Fatal(err)
	}
	if err := running.startKubelet(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, p := range plugins {
		if err := p.start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	until(t, "the kubelet reports another boot", func(ctx context.Context) error {
		var node corev1.Node
		if err := running.get(ctx, "/api/v1/nodes/"+nodeName, &node); err != nil {
			return err
		}
		if got := node.Status.NodeInfo.BootID; got != boot {
			return fmt.Errorf("boot id %s, want %s", got, boot)
		}
		events, err := running.kubectl(ctx, "get", "events", "--all-namespaces", "--field-selector=reason=Rebooted", "--no-headers")
		if err == nil && !strings.Contains(events, boot) {
			err = fmt.Errorf("no event of a reboot: %q", events)
		}
		return err
	})
	until(t, "all containers run again", func(ctx context.Context) error {
		after, err := running.running(ctx)
		for key := range before {
			if after[key] != 0 {
				return fmt.Errorf("%s has survived", key)
			}
		}
		if err == nil && len(after) != len(before) {
			err = fmt.Errorf("before %v, after %v", slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)))
		}
		return err
	})
	ready(t, ns, "pod/train-0", "pod/sidecar")
	same(t, "containers after the reboot", running.running, shown)
	allocated(t, ns, s)
	after, err := running.running(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for key := range named() {
		if after[key] == 0 {
			t.Errorf("while the node started, %s was shown as running", key)
		}
	}
	same(t, "restarts", func(ctx context.Context) (map[string]float64, error) {
		pods, err := running.pods(ctx)
		out := map[string]float64{}
		for i := range pods {
			for _, c := range statuses(&pods[i]) {
				if pods[i].Namespace == ns && c.State.Running != nil {
					out[pods[i].Name+" "+c.Name] = float64(c.RestartCount)
				}
			}
		}
		return out, err
	}, func(ctx context.Context) (map[string]float64, error) {
		out, err := restarts(ns)(ctx)
		delete(out, "sidecar prepare") // it has ended
		return out, err
	})
}

// powerOff kills the kubelet, containerd, its shims and all containers, removes what does not survive a reboot, and returns the boot id
// that the node has from now on.
func powerOff(t *testing.T) (boot string) {
	t.Helper()
	running.kubelet.stop(syscall.SIGKILL)
	running.containerd.stop(syscall.SIGKILL)
	until(t, "no shim and no container is left", func(context.Context) error {
		pids, err := ofPods()
		for _, pid := range pids {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
		if err == nil && len(pids) > 0 {
			err = fmt.Errorf("processes %v", pids)
		}
		return err
	})
	for _, dir := range []string{"/run", "/var/lib/kubelet/pods"} {
		if err := unmountBelow(dir); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir("/run")
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join("/run", e.Name())))
	}
	hierarchies, globErr := filepath.Glob("/sys/fs/cgroup/*/kubepods")
	for _, dir := range hierarchies {
		err = errors.Join(err, removeCgroups(dir))
	}
	if err := errors.Join(err, globErr); err != nil {
		t.Fatal(err)
	}
	if _, err := output(t.Context(), running.dir, "ip", "link", "delete", "cni0"); err != nil {
		t.Fatal(err)
	}
	boot = "b0070000-0000-4000-8000-000000000002"
	file := filepath.Join(running.dir, "boot_id")
	if err := errors.Join(os.WriteFile(file, []byte(boot+"\n"), 0o644), syscall.Mount(file, bootID, "", syscall.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(bootID, 0); err != nil {
			t.Error(err)
		}
	})
	return boot
}

// ofPods returns the processes in cgroups of pods, and the shims, of this node's process namespace.
func ofPods() (pids []int, err error) {
	entries, err := os.ReadDir("/proc")
	for _, e := range entries {
		pid, numErr := strconv.Atoi(e.Name())
		if numErr != nil {
			continue
		}
		cgroup, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cgroup")) // it may have ended
		name, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))  // a zombie has none
		if len(name) > 0 && (strings.Contains(string(cgroup), "/kubepods/") || strings.Contains(string(name), "containerd-shim")) {
			pids = append(pids, pid)
		}
	}
	return pids, err
}

// unmountBelow unmounts what is mounted below a directory, the last mount first. A mount may be gone with one before it.
func unmountBelow(dir string) error {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	slices.Reverse(lines)
	for _, line := range lines {
		at := strings.Fields(line)[4]
		if !strings.HasPrefix(at, dir+"/") {
			continue
		}
		if unmountErr := syscall.Unmount(at, syscall.MNT_DETACH); unmountErr != nil && !errors.Is(unmountErr, syscall.EINVAL) {
			err = errors.Join(err, fmt.Errorf("%s: %w", at, unmountErr))
		}
	}
	return err
}

// removeCgroups removes a cgroup without processes, and those in it.
func removeCgroups(dir string) error {
	var dirs []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	slices.Reverse(dirs)
	for _, d := range dirs {
		err = errors.Join(err, os.Remove(d))
	}
	return err
}

// collectNames collects all containers that the sensor shows as running until named is called.
func collectNames(t *testing.T) (named func() map[string]float64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	all := map[string]float64{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if now, err := shown(ctx); err == nil {
				maps.Copy(all, now)
			}
			time.Sleep(300 * time.Millisecond)
		}
	})
	return func() map[string]float64 {
		cancel()
		wg.Wait()
		return all
	}
}
