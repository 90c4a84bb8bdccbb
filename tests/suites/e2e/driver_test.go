// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
	"github.com/accelscope/accelscope/tests/tools/child"
)

// stubVar names the kernel module of tests/machines/vm/driver/nvidia.c.
const stubVar = "ACCELSCOPE_NVIDIA"

// stubDriver is a stub of NVIDIA's kernel module, bound to the guest's unused GPU, with a fake of NVIDIA's library that
// holds the device nodes like the real library.
type stubDriver struct {
	t       *testing.T
	module  string
	address string // of the PCI function
	gpus    *nvml.Scenario

	endDaemon func() // ends the process of daemon
}

func newStubDriver(t *testing.T) *stubDriver {
	t.Helper()
	gpus, err := nvml.New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	d := &stubDriver{t: t, module: os.Getenv(stubVar), gpus: gpus}
	devices, err := filepath.Glob("/sys/bus/pci/devices/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, device := range devices {
		id, err := os.ReadFile(filepath.Join(device, "device"))
		if err == nil && strings.TrimSpace(string(id)) == "0x1050" { // virtio-gpu
			d.address = filepath.Base(device)
		}
	}
	if d.address == "" || d.module == "" {
		t.Fatalf("no virtio-gpu-pci in the guest, or %s is not set", stubVar)
	}
	gpus.AddH100(0)
	gpus.Set("0", "nvmlDeviceGetPciInfo", "0000"+strings.ToUpper(d.address), "0x233010DE", "0x16C110DE")
	for _, variable := range gpus.Holding("/dev") {
		name, value, _ := strings.Cut(variable, "=")
		t.Setenv(name, value)
	}
	_ = child.Command(t.Context(), "modprobe", "-r", "virtio_gpu").Run() // an earlier scenario may have left it loaded
	d.bindTo("")
	t.Cleanup(func() { // the other scenarios use the GPU
		_ = child.Command(context.Background(), "rmmod", "nvidia").Run()
		d.write("/sys/bus/pci/devices/"+d.address+"/driver_override", "\n")
		d.write("/sys/bus/pci/drivers_probe", d.address)
	})
	return d
}

func (d *stubDriver) write(path, text string) {
	d.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		d.t.Error(err)
	}
}

func (d *stubDriver) bindTo(driver string) {
	d.t.Helper()
	device := "/sys/bus/pci/devices/" + d.address
	if _, err := os.Stat(device + "/driver"); err == nil {
		d.write(device+"/driver/unbind", d.address)
	}
	if driver != "" {
		d.write(device+"/driver_override", driver)
		d.write("/sys/bus/pci/drivers_probe", d.address)
	}
}

// load loads a version of the driver, and of its library, and binds the GPU.
func (d *stubDriver) load(version string) {
	d.t.Helper()
	d.gpus.Driver(version)
	if err := d.gpus.Write(); err != nil {
		d.t.Fatal(err)
	}
	sh(d.t, "insmod", d.module, "version="+version)
	d.bindTo("nvidia")
}

func (d *stubDriver) makeNodes() {
	d.t.Helper()
	for name, minor := range map[string]uint32{"nvidiactl": 255, "nvidia0": 0} {
		if err := unix.Mknod("/dev/"+name, unix.S_IFCHR|0o666, int(unix.Mkdev(195, minor))); err != nil && !errors.Is(err, unix.EEXIST) {
			d.t.Fatal(err)
		}
	}
}

// unload runs rmmod once, like tools, which look at the users once.
func (d *stubDriver) unload() {
	d.t.Helper()
	if out, err := child.Command(d.t.Context(), "rmmod", "nvidia").CombinedOutput(); err != nil {
		d.t.Fatalf("rmmod: %v: %s", err, out)
	}
}

// refuses: the driver cannot be unloaded while the sensor reads the GPU, or the stub does not resemble the driver.
func (d *stubDriver) refuses() {
	d.t.Helper()
	users := d.users()
	out, err := child.Command(d.t.Context(), "rmmod", "nvidia").CombinedOutput()
	d.t.Logf("without a release: reference count %s; rmmod: %v: %s", users, err, strings.TrimSpace(string(out)))
	if users == "0" || err == nil || !strings.Contains(string(out), "in use") {
		d.t.Fatal("rmmod succeeds without a release")
	}
}

// users returns the reference count of the module, which tools read before they unload it.
func (d *stubDriver) users() string {
	d.t.Helper()
	text, err := os.ReadFile("/sys/module/nvidia/refcnt")
	if err != nil {
		d.t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// read waits until the sensor reads the GPU with a version of the driver.
func (d *stubDriver) read(s *sensor, version string) {
	d.t.Helper()
	took := eventually(d.t, time.Minute, func() error {
		m := s.scrape()
		if len(m.all("gpu_driver_info", "version", version)) != 1 || len(m.all("gpu_temperature_celsius")) == 0 {
			return fmt.Errorf("driver %v, temperature %v", m.by("gpu_driver_info", "version"), m.all("gpu_temperature_celsius"))
		}
		return nil
	})
	d.t.Logf("the GPU is read with driver %s after %v; reference count %s", version, took.Round(time.Millisecond), d.users())
}

func onlyGPUs(more ...string) []string {
	return append([]string{
		"--gpu.nvml-library=" + os.Getenv(nvmlVar), "--gpu.process-interval=1s", "--no-collector.probe", "--no-collector.rdma",
		"--no-collector.node", "--no-collector.container", "--no-collector.runtime", "--no-collector.kubelet", "--no-collector.access",
	}, more...)
}

// nvidiaDriver starts the sensor with its own /dev, as in a container, and then loads the driver. No program makes
// device nodes.
func (n node) nvidiaDriver(t *testing.T) {
	d := newStubDriver(t)
	script := filepath.Join(t.TempDir(), "container")
	text := "#!/bin/sh\nexec unshare --mount sh -c 'mount -t tmpfs dev /dev && mknod /dev/null c 1 3 && exec " + os.Getenv(binaryVar) + " \"$@\"' sh \"$@\"\n"
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv(binaryVar, script)
	s := start(t, onlyGPUs()...)
	if got := s.scrape().all("gpu_driver_info"); len(got) > 0 {
		t.Errorf("without a driver: %v", got)
	}
	d.load("550.54.15")
	d.read(s, "550.54.15")
	if _, err := os.Lstat("/dev/nvidiactl"); err == nil {
		t.Error("the sensor made a node in /dev of the node")
	}
	s.stop()
	d.unload()
}
