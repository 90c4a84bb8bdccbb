// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// Requests of DRM, and of tests/machines/vm/driver/nvidia.c.
const (
	drmVersion   = "0xc0406400" // DRM_IOCTL_VERSION
	virtioWait   = "0xc0086448" // DRM_IOCTL_VIRTGPU_WAIT
	stubHang     = "0x4601"
	stubRelease  = "0x4602"
	stubNone     = "0x4603"
	ioctlSeconds = "container_gpu_driver_ioctl_duration_seconds"
)

// onlyGPUDriver are arguments of a sensor that measures ioctls, and knows containers by their cgroups.
func onlyGPUDriver(more ...string) []string {
	return append([]string{
		"--collector.gpudriver", "--no-collector.probe", "--no-collector.rdma", "--no-collector.node", "--no-collector.container",
		"--no-collector.runtime", "--no-collector.kubelet", "--no-collector.access", "--no-collector.gpu", "--no-collector.kernellog",
	}, more...)
}

// driverTask is an entry of /api/v1/gpu-driver-tasks.
type driverTask struct {
	Driver, Process, Request, Type, Number, Function, Workload string
	PID, TID                                                   int
	Since                                                      time.Time
	ContainerID                                                string `json:"container_id"`
	HolderPID                                                  int    `json:"holder_pid"`
	HolderTID                                                  int    `json:"holder_tid"`
	HolderProcess                                              string `json:"holder_process"`
}

func (s *sensor) driverTasks() ([]driverTask, error) {
	res, err := http.Get(s.url + "/api/v1/gpu-driver-tasks")
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	var envelope struct{ Data []driverTask }
	if err := json.NewDecoder(res.Body).Decode(&envelope); err != nil || res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("/api/v1/gpu-driver-tasks: %s: %w", res.Status, errors.Join(err, os.ErrInvalid))
	}
	return envelope.Data, nil
}

// driverCalls compares the ended ioctls of each container with its program's count: by id, driver and kind.
func (s *sensor) driverCalls(want map[string]float64) {
	s.t.Helper()
	eventually(s.t, 30*time.Second, func() error {
		got := map[string]float64{}
		for _, x := range s.scrape().all(ioctlSeconds) {
			if id := label(x, "container_id"); id != "" {
				got[strings.Join([]string{id, label(x, "driver"), label(x, "kind")}, " ")] = float64(x.GetHistogram().GetSampleCount())
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			return fmt.Errorf("-want +got: %s", diff)
		}
		return nil
	})
}

// noDriverLosses: no call was lost.
func (s *sensor) noDriverLosses(m metrics) {
	s.t.Helper()
	for _, x := range m.all("accelscope_probe_lost_total") {
		if strings.HasPrefix(label(x, "reason"), "driver_") && x.GetCounter().GetValue() != 0 {
			s.t.Errorf("lost: %v", x)
		}
	}
}

// hooked waits until a function of a GPU driver is hooked, or is not.
func (s *sensor) hooked(function, state string) {
	s.t.Helper()
	s.hookedWithin(30*time.Second, function, state)
}

func (s *sensor) hookedWithin(limit time.Duration, function, state string) {
	s.t.Helper()
	took := eventually(s.t, limit, func() error {
		if m := s.scrape(); m.sum("accelscope_probe_hook_state", "hook", function, "state", state) != 1 {
			return fmt.Errorf("%s: %v", function, m.all("accelscope_probe_hook_state", "hook", function))
		}
		return nil
	})
	s.t.Logf("%s is %s after %v", function, state, took.Round(time.Millisecond))
}

// loadDRM loads a driver of DRM and returns a device node that it makes.
func loadDRM(t *testing.T, module, pattern string) string {
	t.Helper()
	nodes := func() map[string]bool {
		paths, _ := filepath.Glob("/dev/dri/" + pattern)
		found := map[string]bool{}
		for _, p := range paths {
			found[p] = true
		}
		return found
	}
	_ = child.Command(t.Context(), "modprobe", "-r", module).Run() // an earlier scenario may have left it loaded
	before := nodes()
	sh(t, "modprobe", module)
	t.Cleanup(func() { _ = child.Command(context.Background(), "modprobe", "-r", module).Run() })
	for path := range nodes() {
		if !before[path] {
			return path
		}
	}
	t.Fatalf("%s has made no /dev/dri/%s", module, pattern)
	return ""
}

// driverIoctls loads two drivers of DRM under the sensor, counts the ioctls of two containers on them, finds a stuck
// ioctl, and unloads the drivers.
func (n node) driverIoctls(t *testing.T) {
	s := start(t, onlyGPUDriver("--gpu.stuck-after=1s")...)
	vgem, virtio := loadDRM(t, "vgem", "card*"), loadDRM(t, "virtio_gpu", "renderD*")
	s.hooked("drm_ioctl", "ok")
	one := enter(t, "ioctls one", "ioctls", vgem, drmVersion, "1000", virtioWait, "7") // vgem has no such request
	two := enter(t, "ioctls two", "ioctls", virtio, drmVersion, "300", virtioWait, "20")
	for _, c := range []*container{one, two} {
		c.line(t, "made "+virtioWait)
	}
	want := map[string]float64{
		one.id + " vgem work": 1007, two.id + " virtio_gpu work": 300, two.id + " virtio_gpu wait": 20,
	}
	s.driverCalls(want)
	m := s.scrape()
	s.noDriverLosses(m)
	if got := m.sum("container_gpu_driver_stuck_tasks", "driver", "vgem", "container_id", one.id); got != 0 ||
		len(m.all("container_gpu_driver_stuck_tasks", "driver", "vgem", "container_id", one.id)) != 1 {
		t.Errorf("stuck tasks: %v", m.all("container_gpu_driver_stuck_tasks"))
	}
	for _, x := range m.all(ioctlSeconds, "container_id", one.id) {
		t.Logf("vgem: %.1f µs per ioctl", x.GetHistogram().GetSampleSum()*1e6/float64(x.GetHistogram().GetSampleCount()))
	}
	if tasks, err := s.driverTasks(); err != nil || len(tasks) > 0 {
		t.Errorf("stuck: %v, %v", tasks, err)
	}
	stuck := enter(t, "ioctls stuck", "ioctls", vgem, "-s", drmVersion)
	eventually(t, 30*time.Second, func() error {
		tasks, err := s.driverTasks()
		if err != nil || len(tasks) != 1 || tasks[0].Driver != "vgem" || tasks[0].Request != drmVersion || tasks[0].PID != stuck.cmd.Process.Pid {
			return fmt.Errorf("stuck: %+v, %w", tasks, err)
		}
		return nil
	})
	stuck.rest(t)
	want[stuck.id+" vgem work"] = 1
	s.driverCalls(want)
	if tasks, err := s.driverTasks(); err != nil || len(tasks) > 0 {
		t.Errorf("after its return: %v, %v", tasks, err)
	}
	s.noDriverLosses(s.scrape())
	withoutFdinfo(t, one.cmd.Process.Pid, vgem)
	withoutFdinfo(t, two.cmd.Process.Pid, virtio)
	one.rest(t)
	two.rest(t)
	if whole() { // driverStuck reloads, too
		sh(t, "modprobe", "-r", "vgem", "virtio_gpu")
		sh(t, "modprobe", "-r", "drm_kms_helper", "drm") // the hooks do not pin it
		s.hooked("drm_ioctl", "absent")
		vgem = loadDRM(t, "vgem", "card*")
		s.hooked("drm_ioctl", "ok")
		again := enter(t, "ioctls again", "ioctls", vgem, drmVersion, "50")
		again.line(t, "made "+drmVersion)
		want[again.id+" vgem work"] = 50
		s.driverCalls(want)
		s.noDriverLosses(s.scrape())
		again.rest(t)
	}
	s.stop()
}

// recordsHolders reports whether the kernel records which task has the lock that a task waits for: from 6.16 on.
func (n node) recordsHolders() bool { return n.kernel == "7" }

// driverStuck has two containers in an ioctl of a stub of NVIDIA's driver: one has a lock that the other waits for. The
// sensor names the holder where the kernel does. Then the driver is unloaded and reloaded under the sensor.
func (n node) driverStuck(t *testing.T) {
	module := os.Getenv(stubVar)
	node := filepath.Join(t.TempDir(), "nvidiactl")
	if err := unix.Mknod(node, unix.S_IFCHR|0o666, int(unix.Mkdev(195, 255))); err != nil {
		t.Fatal(err)
	}
	sh(t, "insmod", module)
	t.Cleanup(func() { _ = child.Command(context.Background(), "rmmod", "nvidia").Run() })
	s := start(t, onlyGPUDriver("--gpu.stuck-after=1s")...)
	s.hooked("nvidia_unlocked_ioctl", "ok")

	first := enter(t, "hangs", "ioctls", node, stubNone, "3", stubHang, "1")
	first.line(t, "made "+stubNone)
	time.Sleep(500 * time.Millisecond) // the first to have the lock
	second := enter(t, "waits", "ioctls", node, stubHang, "1")
	second.line(t, "ready")
	var tasks []driverTask
	eventually(t, 30*time.Second, func() (err error) {
		if tasks, err = s.driverTasks(); err == nil && len(tasks) < 2 {
			err = fmt.Errorf("stuck: %+v", tasks)
		}
		return err
	})
	for i, c := range []*container{first, second} {
		want := driverTask{
			Driver: "nvidia", Process: "ioctls", Request: "0x00004601", Type: "0x46", Number: "0x01", Function: "nvidia_unlocked_ioctl",
			PID: c.cmd.Process.Pid, TID: c.cmd.Process.Pid, ContainerID: c.id, Workload: tasks[i].Workload, Since: tasks[i].Since,
		}
		if c == second && n.recordsHolders() {
			want.HolderPID, want.HolderTID, want.HolderProcess = tasks[0].PID, tasks[0].TID, tasks[0].Process
		}
		if d := cmp.Diff(want, tasks[i]); d != "" {
			t.Errorf("task %d (-want +got):\n%s", i, d)
		}
		wchan, _ := os.ReadFile("/proc/" + strconv.Itoa(c.cmd.Process.Pid) + "/wchan")
		t.Logf("%+v, wchan %s", tasks[i], wchan)
	}
	m := s.fresh()
	for _, c := range []*container{first, second} {
		stuck := m.sum("container_gpu_driver_stuck_tasks", "driver", "nvidia", "container_id", c.id)
		oldest := m.sum("container_gpu_driver_oldest_ioctl_seconds", "driver", "nvidia", "container_id", c.id)
		if stuck != 1 || oldest < 1 || oldest > 120 {
			t.Errorf("%v stuck tasks, the oldest ioctl for %v s", stuck, oldest)
		}
	}
	s.driverCalls(map[string]float64{first.id + " nvidia work": 3, second.id + " nvidia work": 0})

	release := enter(t, "releases", "ioctls", node, stubRelease, "1")
	for _, c := range []*container{first, second, release} {
		c.rest(t)
	}
	want := map[string]float64{first.id + " nvidia work": 4, second.id + " nvidia work": 1, release.id + " nvidia work": 1}
	s.driverCalls(want)
	if m = s.fresh(); m.sum("container_gpu_driver_stuck_tasks") != 0 || m.sum("container_gpu_driver_oldest_ioctl_seconds") != 0 {
		t.Errorf("after the release: %v", m.all("container_gpu_driver_stuck_tasks"))
	}
	s.noDriverLosses(m)

	refs, _ := os.ReadFile("/sys/module/nvidia/refcnt")
	t.Logf("reference count with attached hooks: %s", refs)
	sh(t, "rmmod", "nvidia")
	s.hooked("nvidia_unlocked_ioctl", "absent")
	sh(t, "insmod", module)
	s.hooked("nvidia_unlocked_ioctl", "ok")
	reload := func(name string) {
		t.Helper()
		c := enter(t, name, "ioctls", node, stubNone, "11")
		c.line(t, "made "+stubNone)
		c.rest(t)
		want[c.id+" nvidia work"] = 11
		s.driverCalls(want)
	}
	reload("after a reload")
	if whole() {
		// Unloaded and loaded between two looks at the modules.
		sh(t, "sh", "-c", "rmmod nvidia && insmod "+module)
		time.Sleep(5 * time.Second)
		reload("after a fast reload")
	}
	s.noDriverLosses(s.scrape())
	s.stop()
}
