// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// GPUs is the number of GPUs of a node.
const GPUs = 8

// Node adds eight GPUs with these processes: GPUs 0 to 4 are time-sliced, GPU 5 is shared through MPS, GPUs 6 and 7 are
// split into MIG devices. The processes use the twelve devices in turn.
func (s *Scenario) Node(pids ...int) {
	for n := range GPUs {
		s.AddH100(n)
	}
	s.SplitGPU(6, Profile3g, Profile3g)
	s.SplitGPU(7, Profile1g, Profile1g, Profile1g, Profile1g)
	devices := []string{"0", "1", "2", "3", "4", "5", "6:0", "6:1", "7:0", "7:1", "7:2", "7:3"}
	for i, pid := range pids {
		round := uint64(i / len(devices))
		p := Process{Device: devices[i%len(devices)], PID: pid, Memory: (200 + uint64(i)) * mib, SM: 5 + round, Mem: 2 + round, Kinds: "C"}
		switch {
		case p.Device == "5":
			p.Kinds = "CM"
		case i%len(devices) == 0: // graphics and decoding as well
			p.Kinds, p.Decoder = "CG", 1
		}
		s.Processes = append(s.Processes, p)
	}
	s.Balance()
}

// A Sensor is the configuration of a sensor for a fake node with GPUs.
type Sensor struct {
	Arguments   []string // of accelscope
	Environment []string
}

// Own adds a GPU for each list, used by its processes only.
func (s *Scenario) Own(lists [][]int) {
	for n, pids := range lists {
		s.AddH100(n)
		for _, pid := range pids {
			s.Processes = append(s.Processes, Process{Device: strconv.Itoa(n), PID: pid, Memory: 200 * mib, SM: 5, Mem: 2, Kinds: "C"})
		}
	}
	s.Balance()
}

// Bench creates GPUs, which add puts into the scenario, in a node's fake sysfs and procfs, and the library with its
// scenario in dir.
func Bench(ctx context.Context, dir, sysfs, procfs string, gpus int, add func(*Scenario)) (Sensor, error) {
	library, err := Build(ctx, dir, false)
	if err != nil {
		return Sensor{}, err
	}
	s, err := New(dir)
	if err != nil {
		return Sensor{}, err
	}
	add(s)
	for n := range gpus {
		if err := Bind(sysfs, procfs, n); err != nil {
			return Sensor{}, err
		}
	}
	if err := s.Capabilities(procfs); err != nil {
		return Sensor{}, err
	}
	return Sensor{[]string{"--gpu.nvml-library=" + library}, s.Environment()}, s.Write()
}

// Bind writes the files of sysfs and procfs for GPU n with a bound driver. The library's answers do not change.
func Bind(sysfs, procfs string, n int) error {
	device := filepath.Join(sysfs, "bus/pci/devices", Address(n))
	driver := filepath.Join(sysfs, "bus/pci/drivers/nvidia", Address(n))
	for path, content := range map[string]string{
		filepath.Join(device, "vendor"):               "0x10de\n",
		filepath.Join(device, "device"):               "0x2330\n",
		filepath.Join(device, "class"):                "0x030200\n",
		filepath.Join(device, "numa_node"):            fmt.Sprintln(2 * (n % GPUs) / GPUs),
		filepath.Join(device, "power/runtime_status"): "active\n",
		filepath.Join(procfs, "driver/nvidia/gpus", Address(n), "information"): fmt.Sprintf(
			"Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t %s\nBus Location: \t %s\nDevice Minor: \t %d\n", UUID(n), Address(n), n),
		filepath.Join(procfs, "driver/nvidia/version"): "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15\n",
	} {
		if err := write(path, content); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Dir(driver), 0o755); err != nil {
		return err
	}
	return os.Symlink("../../devices/"+Address(n), driver)
}

// Capabilities writes the driver's procfs files for the device nodes of MIG devices.
func (s *Scenario) Capabilities(procfs string) error {
	const perInstance, perGPU = 9, 15 * 9 // minors; the first ones belong to the whole machine
	for _, d := range s.Devices() {
		gpu, _, is := strings.Cut(d, ":")
		if !is {
			continue
		}
		n, err := strconv.Atoi(gpu)
		if err != nil {
			return err
		}
		instance, err := strconv.Atoi(s.Get(d, "nvmlDeviceGetGpuInstanceId"))
		if err != nil {
			return err
		}
		dir := filepath.Join(procfs, "driver/nvidia/capabilities", fmt.Sprint("gpu", n), "mig", fmt.Sprint("gi", instance))
		minor := 3 + n*perGPU + instance*perInstance
		for _, access := range []string{"access", "ci0/access"} {
			text := fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor)
			if err := write(filepath.Join(dir, access), text); err != nil {
				return err
			}
			minor++
		}
	}
	return nil
}

// Unbind reverts Bind.
func Unbind(sysfs, procfs string, n int) error {
	if err := os.RemoveAll(filepath.Join(procfs, "driver/nvidia/gpus", Address(n))); err != nil {
		return err
	}
	return os.Remove(filepath.Join(sysfs, "bus/pci/drivers/nvidia", Address(n)))
}

// Suspend sets the runtime power management status of GPU n: active, suspended.
func Suspend(sysfs string, n int, status string) error {
	return write(filepath.Join(sysfs, "bus/pci/devices", Address(n), "power/runtime_status"), status+"\n")
}

func write(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(content), 0o644)
}
