// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
)

// Whose GPUs can be asked for. NVIDIA's tools number them as its driver does; AMD's
// in an order of their own, so that a number of theirs tells nobody which it is.
const (
	vendorNVIDIA = "nvidia"
	vendorAMD    = "amd"

	kindAMD = "amd.com/gpu"
)

// requested adds the GPUs called names, as one vendor's tools call them, to out. A
// bare name is NVIDIA's.
func requested(out []string, vendor string, names ...string) []string {
	for _, name := range names {
		number := strings.Trim(name, "0123456789:") == "" // 0, or 0:1 of a MIG instance
		if name == "" || name == "none" || name == "void" || number && vendor == vendorAMD {
			continue
		}
		if vendor == vendorAMD {
			name = kindAMD + "=" + name
		}
		if !slices.Contains(out, name) && len(out) < maxDevices {
			out = append(out, name)
		}
	}
	return out
}

// cdiRequested adds the GPUs among names of the Container Device Interface,
// VENDOR/CLASS=NAME: nvidia.com/gpu=0.
func cdiRequested(out []string, names ...string) []string {
	for _, name := range names {
		switch kind, device, _ := strings.Cut(strings.TrimSpace(name), "="); kind {
		case "nvidia.com/gpu", "runtime.nvidia.com/gpu":
			out = requested(out, vendorNVIDIA, device)
		case kindAMD:
			out = requested(out, vendorAMD, device)
		}
	}
	return out
}

// annotationCDI begins the annotations with which device plugins ask for devices of
// the Container Device Interface; their values are lists of names.
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

// gpuRequests are the GPUs that the specification names: in annotations, and in a
// hook that runs nvidia-container-cli, as ctr and nerdctl write it. A hook that looks
// at the environment itself names none: images bring one.
func (s *spec) gpuRequests() []string {
	out := cdiAnnotated(nil, s.Annotations)
	for _, h := range slices.Concat(s.Hooks.Prestart, s.Hooks.CreateRuntime, s.Hooks.CreateContainer) {
		args := append([]string{h.Path}, h.Args...)
		cli := slices.IndexFunc(args, func(a string) bool { return path.Base(a) == "nvidia-container-cli" })
		for _, arg := range args[max(cli, 0):] {
			if list, ok := strings.CutPrefix(arg, "--device="); ok && cli >= 0 {
				out = requested(out, vendorNVIDIA, strings.Split(list, ",")...)
			}
		}
	}
	return out
}

// allDevices says whether the rules of the device cgroup let the container open
// any device, as those of a privileged one do. Later rules count.
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

// dockerGPUs are the GPUs that Docker was asked for (--gpus, --device
// nvidia.com/gpu=0). Of a count of them it gives the first.
func dockerGPUs(requests []container.DeviceRequest) []string {
	var out []string
	for _, r := range requests {
		vendor := vendorNVIDIA
		switch gpu := slices.ContainsFunc(r.Capabilities, func(all []string) bool { return slices.Contains(all, "gpu") }); {
		case r.Driver == "cdi":
			out = cdiRequested(out, r.DeviceIDs...)
			continue
		case r.Driver == vendorAMD:
			vendor = vendorAMD
		case r.Driver != vendorNVIDIA && (r.Driver != "" || !gpu):
			continue
		}
		switch {
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
