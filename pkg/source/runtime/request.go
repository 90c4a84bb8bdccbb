// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/model"
)

// requested adds the GPUs that a vendor's tools call names to out. It drops numbers of tools that count the GPUs in
// their own order, as AMD's tools do.
func requested(out []string, vendor *model.GPUVendor, names ...string) []string {
	for _, name := range names {
		number := strings.Trim(name, "0123456789:") == "" // 0, or 0:1 of a MIG instance
		if name == "" || name == "none" || name == "void" || number && !vendor.DriverNumbers {
			continue
		}
		if !vendor.BareNames {
			name = vendor.CDIKinds[0] + "=" + name
		}
		if !slices.Contains(out, name) && len(out) < maxDevices {
			out = append(out, name)
		}
	}
	return out
}

// cdiRequested adds the GPUs among names of the Container Device Interface, VENDOR/CLASS=NAME: nvidia.com/gpu=0.
func cdiRequested(out []string, names ...string) []string {
	for _, name := range names {
		kind, device, _ := strings.Cut(strings.TrimSpace(name), "=")
		if v := model.FindGPUVendor(func(v *model.GPUVendor) bool { return slices.Contains(v.CDIKinds, kind) }); v != nil {
			out = requested(out, v, device)
		}
	}
	return out
}

// annotationCDI is the prefix of the annotations with which device plugins request CDI devices. Their values are lists
// of names.
const annotationCDI = "cdi.k8s.io/"

func cdiAnnotated(out []string, annotations map[string]string) []string {
	for key, value := range annotations {
		if strings.HasPrefix(key, annotationCDI) {
			out = cdiRequested(out, strings.Split(value, ",")...)
		}
	}
	slices.Sort(out) // a map has no order
	return out
}

// gpuRequests returns the GPUs that the specification names: in annotations, and in a hook that runs
// nvidia-container-cli, as ctr and nerdctl write it. A hook that reads the environment names no GPU: the image sets the
// environment.
func (s *spec) gpuRequests() []string {
	out := cdiAnnotated(nil, s.Annotations)
	for _, h := range slices.Concat(s.Hooks.Prestart, s.Hooks.CreateRuntime, s.Hooks.CreateContainer) {
		args := append([]string{h.Path}, h.Args...)
		cli := slices.IndexFunc(args, func(a string) bool { return path.Base(a) == "nvidia-container-cli" })
		for _, arg := range args[max(cli, 0):] {
			if list, ok := strings.CutPrefix(arg, "--device="); ok && cli >= 0 {
				out = requested(out, model.NVIDIA.Row(), strings.Split(list, ",")...)
			}
		}
	}
	return out
}

// allDevices reports whether the rules of the device cgroup let the container open any device, as in a privileged
// container. A later rule overrides an earlier rule.
func (s *spec) allDevices() bool {
	all := false
	for _, r := range s.Linux.Resources.Devices {
		wild := func(n *int64) bool { return n == nil || *n < 0 }
		if (r.Type == "" || r.Type == "a" || r.Type == "c") && wild(r.Major) && wild(r.Minor) {
			switch opens := r.Access == "" || strings.Contains(r.Access, "r") && strings.Contains(r.Access, "w"); {
			case opens:
				all = r.Allow
			case !r.Allow && strings.ContainsAny(r.Access, "rw"):
				all = false
			}
		}
	}
	return all
}

// dockerVendor returns the vendor of the GPUs that a device request asks Docker for, or nil.
func dockerVendor(r dockerRequest) *model.GPUVendor {
	gpu := slices.ContainsFunc(r.Capabilities, func(all []string) bool { return slices.Contains(all, "gpu") })
	return model.FindGPUVendor(func(v *model.GPUVendor) bool {
		if r.Driver == "" {
			return gpu && v.BareNames
		}
		return r.Driver == v.DockerDriver
	})
}

// monitors reports whether a device request is only for the library that monitors GPUs, as NVIDIA's container toolkit
// names it. Monitoring does not occupy GPUs.
func monitors(r dockerRequest) bool {
	for _, all := range r.Capabilities {
		if len(all) != 1 || all[0] != "utility" {
			return false
		}
	}
	return len(r.Capabilities) > 0
}

// dockerGPUs returns the GPUs that were requested from Docker (--gpus, --device nvidia.com/gpu=0). A number of GPUs
// means the first GPUs.
func dockerGPUs(requests []dockerRequest) []string {
	var out []string
	for _, r := range requests {
		vendor := dockerVendor(r)
		switch {
		case monitors(r):
		case r.Driver == "cdi":
			out = cdiRequested(out, r.DeviceIDs...)
		case vendor == nil:
		case len(r.DeviceIDs) > 0:
			out = requested(out, vendor, r.DeviceIDs...)
		case r.Count < 0:
			out = requested(out, vendor, "all")
		default:
			for n := range min(r.Count, maxDevices) {
				out = requested(out, vendor, strconv.Itoa(n))
			}
		}
	}
	return out
}
