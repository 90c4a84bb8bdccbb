// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/cgroup"
	"github.com/accelscope/accelscope/pkg/source/kernellog"
)

// sourceCure returns a cure for a source that is not ok, or "" if none is known.
func sourceCure(s model.SourceState) string {
	switch {
	case s.State == model.StateOK:
		return ""
	case s.State == model.StateReleased:
		return "accelscope gpu resume ends the release"
	case s.Source == "rdma" && s.State == model.StateAbsent:
		return "load the driver of the HCA (mlx5_ib, irdma, …); `make demo` shows a node with Soft-RoCE"
	case errors.Is(s.Err, model.ErrLibraryInit):
		return "the library was found: load the driver that matches it, and make the device nodes of the GPUs visible"
	case errors.Is(s.Err, model.ErrLibrary):
		if v := model.FindGPUVendor(func(v *model.GPUVendor) bool { return v.Source == s.Source }); v != nil {
			return v.LibraryCure
		}
	case errors.Is(s.Err, cgroup.ErrWatches):
		return "raise fs.inotify.max_user_watches: the sensor takes at most a quarter of it, and at most 8192"
	case s.Source == "cgroup" && s.State == model.StateAbsent:
		return "mount the host's cgroup tree and name it with --path.cgroup"
	case s.State == model.StateStuck && s.Source != "runtime" && s.Source != "kubelet" && s.Source != "fabric":
		return "look for processes in state D and for messages of the driver in dmesg"
	case s.Source == "kernellog" && errors.Is(s.Err, os.ErrPermission):
		return "add CAP_SYSLOG, and in a container the device /dev/kmsg (privileged)"
	case s.Source == "kernellog" && errors.Is(s.Err, kernellog.ErrForeignPIDs):
		return "share the PID namespace of the host (hostPID)"
	case s.Source == "gpudriver" && s.State == model.StateUnsupported:
		return "use a kernel with CONFIG_KPROBE_EVENTS and CONFIG_DEBUG_INFO_BTF, as those of the distributions"
	case errors.Is(s.Err, os.ErrPermission):
		return "run as root, or privileged in a container; the permissions below say what is missing"
	}
	return ""
}

// hookCure returns a cure for a hook that lacks type information, or "".
func hookCure(h model.Hook) string {
	if errors.Is(h.Err, hook.ErrTypes) {
		return "make type information and name its directory with --probe.btf-dir: deploy/README.md, Out-of-tree RDMA modules"
	}
	return ""
}

func mapCure(name string) string {
	if name == "driver_calls" {
		return "look for tasks that hang in a driver: /api/v1/gpu-driver-tasks"
	}
	if strings.HasPrefix(name, "datapath_") {
		return "raise --rdma.datapath-max-contexts"
	}
	return "raise --probe.map-entries or --probe.max-objects"
}

func deviceCure(d model.DeviceState) string {
	switch {
	case d.Source == "link" && d.State == model.StateUnsupported:
		return "share the network namespace of the node (hostNetwork)"
	case d.State == model.StateStuck && d.Source == "rdma",
		d.Source == "link" && (d.State == model.StateStuck || d.State == model.StateQuarantined):
		return "look for processes in state D and for messages of the driver in dmesg"
	case d.State == model.StateQuarantined:
		return fmt.Sprintf("leave it out for good: --collector.rdma.device-exclude=%s", d.Device)
	}
	return ""
}
