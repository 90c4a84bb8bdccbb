// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// System is the device of calls without a device.
const System = "-"

// Unknown is NVML's value for an unknown number.
const Unknown = 1<<64 - 1

// Return codes of failing calls: nvmlReturn_t of nvml.h.
const (
	DriverNotLoaded = 9
	GPUIsLost       = 15
	ResetRequired   = 16
	VersionMismatch = 18
)

// xidEvent is nvmlEventTypeXidCriticalError, recoveryEvent nvmlEventTypeGpuRecoveryAction.
const (
	xidEvent      = 8
	recoveryEvent = 0x8000
)

// Process is a process that uses a GPU.
type Process struct {
	Device string // 0, or 0:1 for the MIG device 1 of GPU 0
	PID    int
	Memory uint64 // bytes, or Unknown
	// The current usage of the engines, in percent.
	SM, Mem, Encoder, Decoder uint64
	// Kinds are the lists with the process: C compute, G graphics, M clients of MPS.
	Kinds string
}

// Scenario has the answers of the fake library. Changes take effect with Write.
type Scenario struct {
	Processes []Process

	file, calls string
	values      map[string]map[string]string // by device and key
	events      []string
}

// New returns a scenario of a driver without GPUs; its files are in dir.
func New(dir string) (*Scenario, error) {
	s := &Scenario{
		file: filepath.Join(dir, "nvml.scenario"), calls: filepath.Join(dir, "nvml.calls"),
		values: map[string]map[string]string{},
	}
	s.Driver("550.54.15")
	s.Set(System, "nvmlSystemGetCudaDriverVersion", 12040)
	if err := os.MkdirAll(s.DeviceDir(), 0o700); err != nil {
		return nil, err
	}
	if err := os.WriteFile(s.calls, make([]byte, callRoom*callSize), 0o600); err != nil {
		return nil, err
	}
	return s, s.Write()
}

// Environment returns the environment variables of a process that uses s.
func (s *Scenario) Environment() []string {
	return []string{"NVML_FAKE_SCENARIO=" + s.file, "NVML_FAKE_CALLS=" + s.calls, "NVML_FAKE_DEVICES=" + s.DeviceDir()}
}

// DeviceDir returns the directory of the files that the library holds instead of device nodes.
func (s *Scenario) DeviceDir() string { return filepath.Join(filepath.Dir(s.file), "dev") }

// makeFiles creates the files of all devices.
func (s *Scenario) makeFiles() error {
	names := []string{"nvidiactl"}
	for _, d := range s.Devices() {
		if gpu, mig, is := strings.Cut(d, ":"); is {
			names = append(names, "nvidia-cap"+gpu+"-"+mig)
		} else {
			names = append(names, "nvidia"+d)
		}
	}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(s.DeviceDir(), name), nil, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// Held lists the files that processes hold instead of device nodes, by PID.
func (s *Scenario) Held() (map[int][]string, error) {
	links, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return nil, err
	}
	held := map[int][]string{}
	for _, link := range links {
		path, err := os.Readlink(link) // fails for a file that was closed
		if err != nil || filepath.Dir(path) != s.DeviceDir() {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(link, "/")[2])
		if err != nil {
			return nil, err
		}
		held[pid] = append(held[pid], filepath.Base(path))
	}
	for pid, names := range held {
		slices.Sort(names)
		held[pid] = slices.Compact(names) // an event set opens nvidiactl again
	}
	return held, nil
}

// Holding returns the environment variables of a process that uses s, with a library that opens the device nodes in a
// directory like the real library (fake/nodes.c).
func (s *Scenario) Holding(dev string) []string {
	return append(s.Environment(), "NVML_FAKE_DEVICES="+dev)
}

// Driver sets the version of the driver and of its library.
func (s *Scenario) Driver(version string) {
	s.Set(System, "nvmlSystemGetDriverVersion", version)
	s.Set(System, "nvmlSystemGetNVMLVersion", "12."+version)
}

// Set sets the result for a key of a device: see fake/nvml.c.
func (s *Scenario) Set(device, key string, values ...any) {
	if s.values[device] == nil {
		s.values[device] = map[string]string{}
	}
	s.values[device][key] = strings.TrimSpace(fmt.Sprintln(values...))
}

// Unset makes a key unsupported.
func (s *Scenario) Unset(device, key string) { delete(s.values[device], key) }

// Get returns the value of a key.
func (s *Scenario) Get(device, key string) string { return s.values[device][key] }

// UUID returns the UUID of a device.
func (s *Scenario) UUID(device string) string { return s.Get(device, "nvmlDeviceGetUUID") }

// Fail makes a function fail for a device; "*" is all functions.
func (s *Scenario) Fail(device, function string, code int) { s.Set(device, "!"+function, code) }

// Block makes a function block until Heal.
func (s *Scenario) Block(device, function string) { s.Set(device, "!"+function, "block") }

// Crash makes a function end the process with SIGSEGV until Heal.
func (s *Scenario) Crash(device, function string) { s.Set(device, "!"+function, "crash") }

// Sleep makes a function look up a file, and so sleep while the file system does not answer.
func (s *Scenario) Sleep(device, function, path string) { s.Set(device, "!"+function, "sleep", path) }

// Heal ends Fail, Block, Crash and Sleep.
func (s *Scenario) Heal(device, function string) { s.Unset(device, "!"+function) }

// XID adds an error that the driver reports.
func (s *Scenario) XID(device string, code uint64) {
	s.events = append(s.events, fmt.Sprintln(device, "event", xidEvent, code))
}

// Recovery sets the action that the driver asks for, a nvmlDeviceGpuRecoveryAction_t, and adds its event.
func (s *Scenario) Recovery(device string, action int) {
	s.Set(device, "field.230", "u", action)
	s.events = append(s.events, fmt.Sprintln(device, "event", recoveryEvent, 0))
}

// Remove removes a device, with its processes and MIG devices. A GPU that is removed while the
// library is initialized is lost.
func (s *Scenario) Remove(device string) {
	is := func(d string) bool { return d == device || strings.HasPrefix(d, device+":") }
	maps.DeleteFunc(s.values, func(d string, _ map[string]string) bool { return is(d) })
	s.Processes = slices.DeleteFunc(s.Processes, func(p Process) bool { return is(p.Device) })
}

// Devices returns the GPUs and MIG devices, sorted by name.
func (s *Scenario) Devices() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(s.values)), func(d string) bool { return d == System })
}

// Write publishes s to the library atomically.
func (s *Scenario) Write() error {
	var b strings.Builder
	for _, device := range slices.Sorted(maps.Keys(s.values)) {
		for _, key := range slices.Sorted(maps.Keys(s.values[device])) {
			fmt.Fprintln(&b, device, key, s.values[device][key])
		}
	}
	for _, p := range s.Processes {
		fmt.Fprintln(&b, p.Device, "process", p.PID, p.Memory, p.SM, p.Mem, p.Encoder, p.Decoder, cmp.Or(p.Kinds, "C"))
	}
	for _, e := range s.events {
		b.WriteString(e)
	}
	if err := s.makeFiles(); err != nil {
		return err
	}
	if err := os.WriteFile(s.file+".new", []byte(b.String()), 0o600); err != nil {
		return err
	}
	return os.Rename(s.file+".new", s.file)
}
