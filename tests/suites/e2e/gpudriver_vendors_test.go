// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// vendorDrivers loads drivers of missing GPUs under a sensor. The sensor hooks the function of each, and the drivers
// can be unloaded: the sensor is not in their way.
func (n node) vendorDrivers(t *testing.T) {
	s := start(t, n.args("--collector.gpudriver", "--gpu.allocation-failures", "--gpu.stuck-after=1s")...)
	for _, driver := range []struct {
		module    string
		functions []string
	}{
		{module: "i915", functions: []string{"drm_ioctl"}},
		{module: "xe", functions: []string{"xe_drm_ioctl"}},
		{module: "nouveau", functions: []string{"nouveau_drm_ioctl"}},
		{module: "amdgpu", functions: []string{"amdgpu_drm_ioctl", "kfd_ioctl"}},
	} {
		if driver.module == "xe" && (n.kernel == "5.10" || n.kernel == "6.1") {
			continue // since Linux 6.8
		}
		unload := func(ctx context.Context) ([]byte, error) {
			return child.Command(ctx, "modprobe", "-r", driver.module).CombinedOutput()
		}
		sh(t, "modprobe", driver.module)
		t.Cleanup(func() { _, _ = unload(context.Background()) })
		for _, function := range driver.functions {
			s.hooked(function, "ok")
		}
		if driver.module == "amdgpu" && n.kernel != "7" { // without a GPU its /dev/kfd cannot be opened
			s.kfd(t, n)
		}
		time.Sleep(3 * time.Second) // all sources have read the devices at least once
		s.fresh()
		eventually(t, 10*time.Second, func() error {
			users, err := os.ReadFile(filepath.Join("/sys/module", driver.module, "refcnt"))
			if err == nil && strings.TrimSpace(string(users)) != "0" {
				err = fmt.Errorf("%s has %s users", driver.module, users)
			}
			return err
		})
		begin := time.Now()
		if out, err := unload(t.Context()); err != nil {
			t.Errorf("%s cannot be unloaded: %v\n%s", driver.module, err, out)
			continue
		}
		t.Logf("%s was unloaded in %v", driver.module, time.Since(begin).Round(time.Millisecond))
		for _, function := range driver.functions {
			if function != "drm_ioctl" { // modprobe -r leaves drm loaded if something else uses it
				s.hooked(function, "absent")
			}
		}
	}
	s.stop()
}

// kfd counts the ioctls of a container on /dev/kfd, which amdgpu makes even without a GPU, and finds a stuck ioctl.
func (s *sensor) kfd(t *testing.T, n node) {
	const (
		node       = "/dev/kfd"
		getVersion = "0x80084b01" // AMDKFD_IOC_GET_VERSION
		waitEvents = "0xc0184b0c" // AMDKFD_IOC_WAIT_EVENTS, here for no events
	)
	one := enter(t, "kfd one", "ioctls", node, getVersion, "400", waitEvents, "30")
	one.line(t, "made "+waitEvents)
	want := map[string]float64{one.id + " amdgpu work": 400, one.id + " amdgpu wait": 30}
	s.driverCalls(want)
	stuck := enter(t, "kfd stuck", "ioctls", node, "-s", getVersion)
	eventually(t, time.Minute, func() error {
		tasks, err := s.driverTasks()
		if err != nil || len(tasks) != 1 || tasks[0].Driver != "amdgpu" || tasks[0].Request != getVersion || tasks[0].PID != stuck.cmd.Process.Pid ||
			tasks[0].Function == "" && n.kernel != "5.10" { // see model.DriverTask
			return fmt.Errorf("stuck: %+v, %w", tasks, err)
		}
		return nil
	})
	stuck.rest(t)
	want[stuck.id+" amdgpu work"] = 1
	s.driverCalls(want)
	s.noDriverLosses(s.scrape())
	one.rest(t)
}
