// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// The drivers of GPUs in /proc/devices. nvidiaFrontend is the name of nvidia in older drivers.
const (
	driverNVIDIA   = "nvidia"
	nvidiaFrontend = "nvidia-frontend"
	driverCaps     = "nvidia-caps" // MIG instances
	driverDRM      = "drm"
)

// gpuMajors parses /proc/devices and returns the drivers of GPUs by major number.
func gpuMajors(text []byte) map[uint64]string {
	majors := map[uint64]string{}
	for line := range bytes.Lines(text) {
		if bytes.HasPrefix(line, []byte("Block devices:")) {
			break
		}
		number, driver, _ := strings.Cut(strings.TrimSpace(string(line)), " ")
		switch driver {
		case driverNVIDIA, nvidiaFrontend, driverCaps, driverDRM:
			if major, err := strconv.ParseUint(number, 10, 32); err == nil {
				majors[major] = driver
			}
		}
	}
	return majors
}

// gpuNode returns the path of the device node of a GPU, and false for other nodes of its driver.
func gpuNode(driver string, minor uint64) (string, bool) {
	number := strconv.FormatUint(minor, 10)
	switch {
	case driver == driverCaps:
		return "/dev/nvidia-caps/nvidia-cap" + number, true
	case driver != driverDRM:
		return "/dev/nvidia" + number, minor < 248 // above: nvidiactl, nvidia-modeset
	case minor < 64:
		return "/dev/dri/card" + number, true
	}
	return "/dev/dri/renderD" + number, minor >= 128 && minor < 192
}

// allowedNodes parses devices.list of a device cgroup of version 1 and returns the GPU device nodes that may be opened.
// It returns false if the list does not show them: the kernel shows "a *:* rwm" for a cgroup that allows all devices
// except some. Unparsable lines are skipped; if no other line names a GPU, the result is unknown.
func allowedNodes(text []byte, majors map[uint64]string) (nodes []string, ok bool) {
	nodes, all := []string{}, true
	for line := range bytes.Lines(text) {
		f := strings.Fields(string(line)) // c 195:0 rwm
		if len(f) != 3 {
			all = false
			continue
		}
		if f[0] == "b" || !strings.ContainsAny(f[2], "rw") {
			continue
		}
		major, minor, _ := strings.Cut(f[1], ":")
		if f[0] == "a" || major == "*" {
			return nil, false
		}
		number, err := strconv.ParseUint(major, 10, 32)
		if err != nil {
			all = false
			continue
		}
		driver := majors[number]
		if driver == "" {
			continue
		}
		if minor == "*" { // all GPUs of the driver
			return nil, false
		}
		m, err := strconv.ParseUint(minor, 10, 32)
		if err != nil {
			all = false
			continue
		}
		if node, ok := gpuNode(driver, m); ok && len(nodes) < 4*maxJobGPUs { // with the nodes of MIG and DRM
			nodes = append(nodes, node)
		}
	}
	if !all && len(nodes) == 0 {
		return nil, false
	}
	return nodes, true
}

// addEnvironment adds the GPUs in the environment of a step's process, as slurmstepd sets it. A UUID in
// CUDA_VISIBLE_DEVICES is better than a number, and the only name of a MIG instance; its numbers may be the job's.
// SLURM_STEP_GPUS and SLURM_JOB_GPUS have the node's numbers. If both are missing, Slurm gave the process no GPU. The
// process can change all of these variables.
func addEnvironment(to *model.JobGPUs, environ []byte) {
	var step, job, visible string
	for entry := range bytes.SplitSeq(environ, []byte{0}) {
		name, value, _ := bytes.Cut(entry, []byte("="))
		switch string(name) {
		case "SLURM_STEP_GPUS":
			step = string(value)
		case "SLURM_JOB_GPUS":
			job = string(value)
		case "CUDA_VISIBLE_DEVICES":
			visible = string(value)
		}
	}
	if step == "" {
		step = job
	}
	numbers := numbersOf(step)
	if len(numbers) == 0 {
		return
	}
	if uuids := uuidsOf(visible); uuids != nil {
		to.UUIDs = union(to.UUIDs, uuids)
		return
	}
	to.Numbers = union(to.Numbers, numbers)
}

// numbersOf parses a list like 0,2. It returns nil if an entry is not a number.
func numbersOf(list string) []int {
	var out []int
	for entry := range strings.SplitSeq(list, ",") {
		n, err := strconv.ParseUint(entry, 10, 8)
		if err != nil || len(out) == maxJobGPUs {
			return nil
		}
		out = append(out, int(n))
	}
	return out
}

// uuidsOf parses a list of UUIDs of NVIDIA's GPUs and MIG instances. It returns nil if an entry is something else.
func uuidsOf(list string) []string {
	var out []string
	for entry := range strings.SplitSeq(list, ",") {
		kind, id, _ := strings.Cut(entry, "-")
		if kind != "GPU" && kind != "MIG" || len(id) != 36 || strings.Trim(id, "0123456789abcdef-") != "" || len(out) == maxJobGPUs {
			return nil
		}
		out = append(out, entry)
	}
	return out
}

// union adds the missing elements of a list, up to maxJobGPUs.
func union[T comparable](to, more []T) []T {
	for _, v := range more {
		if len(to) < maxJobGPUs && !slices.Contains(to, v) {
			to = append(to, v)
		}
	}
	return to
}
