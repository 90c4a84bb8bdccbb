// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// TestToolsEndWithSensor kills the sensor while it waits for the tools that it started. The tools are scripts that
// write their PID and hang; the AMD GPU is made of files.
func TestToolsEndWithSensor(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	binary := build(t)
	for _, tool := range []string{"ibnetdiscover", "amd-smi"} {
		t.Run(tool, func(t *testing.T) {
			m, args := fakeNode(t)
			tools := wrapTools(t, fakeTools(t, "amd-smi", "ibnetdiscover", "perfquery"))
			tools.hang(tool)
			if tool == "amd-smi" {
				writeAPU(t, m.SysFS())
				args = slices.DeleteFunc(args, func(a string) bool { return a == "--no-collector.gpu" })
				args = append(args, "--gpu.amd-smi="+filepath.Join(tools.dir, tool))
			} else {
				args = append(args, "--collector.fabric", "--fabric.tools="+tools.dir)
			}
			_, p, stop := startProcess(t, binary, args...)
			await(t, func() error {
				if len(tools.hanging()) == 0 {
					return fmt.Errorf("%s is not started", tool)
				}
				return nil
			})
			if err := p.Kill(); err != nil {
				t.Fatal(err)
			}
			if _, err := stop(); err == nil {
				t.Error("the sensor was killed and ends without an error")
			}
			await(t, tools.ended)
		})
	}
}

// await polls until got returns nil, and fails the test with its error after a minute.
func await(t *testing.T, got func() error) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		err := got()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// fakeTools writes programs that print nothing and returns their directory.
func fakeTools(t *testing.T, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"), 0o755); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	return dir
}

// writeAPU adds the files of an AMD GPU that is never suspended.
func writeAPU(t *testing.T, sysfs string) {
	t.Helper()
	device := filepath.Join(sysfs, "devices/pci0000:00/0000:04:00.0")
	drm, driver := filepath.Join(sysfs, "class/drm"), filepath.Join(sysfs, "bus/pci/drivers/amdgpu")
	err := errors.Join(
		os.MkdirAll(filepath.Join(device, "power"), 0o755), os.MkdirAll(drm, 0o755), os.MkdirAll(driver, 0o755),
		os.Symlink(driver, filepath.Join(device, "driver")),
		os.Symlink("../../devices/pci0000:00/0000:04:00.0/drm/card0", filepath.Join(drm, "card0")),
		os.Symlink("../../devices/pci0000:00/0000:04:00.0/drm/renderD128", filepath.Join(drm, "renderD128")),
	)
	for name, text := range map[string]string{
		"class": "0x030000", "vendor": "0x1002", "device": "0x1638", "power/runtime_status": "active", "power/control": "on",
	} {
		err = errors.Join(err, os.WriteFile(filepath.Join(device, name), []byte(text+"\n"), 0o644)) //nolint:gosec // as in /sys
	}
	if err != nil {
		t.Fatal(err)
	}
}

// running returns the PIDs of the tools that hang and are not killed.
func (w wrapped) running() []string {
	return slices.DeleteFunc(w.hanging(), func(pid string) bool {
		line, _ := os.ReadFile("/proc/" + pid + "/cmdline") // after the end of a tool, another process may have its PID
		return string(line) != "sleep\x001000\x00"
	})
}

// ended returns an error while a tool that hangs still runs.
func (w wrapped) ended() error {
	if left := w.running(); len(left) > 0 {
		return fmt.Errorf("processes %q are left", left)
	}
	return nil
}
