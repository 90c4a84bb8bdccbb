// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

type part struct {
	handle                       nvml.Device
	uuid                         string
	gpuInstance, computeInstance int
}

// partsMax is more than any GPU has.
const partsMax = 64

// partsOf lists the MIG instances of a device, which can change at any time: an instance with
// another profile may reuse a UUID. ok is false if the list could not be read.
func partsOf(o wire.Options, handle nvml.Device, whole model.GPU) (parts []part, facts []model.GPU, ok bool) {
	if whole.Modes["mig"] != "enabled" {
		return nil, nil, true
	}
	count, ret := handle.GetMaxMigDeviceCount()
	switch ret {
	case nvml.SUCCESS:
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_FUNCTION_NOT_FOUND:
		return nil, nil, true
	default:
		return nil, nil, false
	}
	for i := range min(count, partsMax) {
		h, ret := handle.GetMigDeviceHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue // the numbers of instances have gaps
		}
		uuid, ret := h.GetUUID()
		if ret != nvml.SUCCESS || uuid == "" {
			continue // the instance was destroyed between the two calls
		}
		p := part{handle: h, uuid: uuid, gpuInstance: -1, computeInstance: -1}
		if v, ret := h.GetGpuInstanceId(); ret == nvml.SUCCESS {
			p.gpuInstance = v
		}
		if v, ret := h.GetComputeInstanceId(); ret == nvml.SUCCESS {
			p.computeInstance = v
		}
		g := describePart(o, p, whole)
		g.ID = whole.ID + ":" + strconv.Itoa(i)
		parts, facts = append(parts, p), append(facts, g)
	}
	return parts, facts, true
}

// firstOfInstance reports whether a part is the first compute instance of its GPU instance. The driver reports memory
// and errors of the GPU instance for each compute instance. Only the first one shows them, so that sums over the parts
// count them once.
func firstOfInstance(p part, parts []part) bool {
	i := slices.IndexFunc(parts, func(o part) bool { return p.gpuInstance >= 0 && o.gpuInstance == p.gpuInstance })
	return i < 0 || parts[i].uuid == p.uuid
}

func describePart(o wire.Options, p part, whole model.GPU) model.GPU {
	g := model.GPU{
		Vendor: model.NVIDIA, UUID: p.uuid, Parent: whole.UUID, Name: known(p.handle.GetName()), Serial: whole.Serial,
		PCIAddress: whole.PCIAddress, PCIDevice: whole.PCIDevice, NUMANode: whole.NUMANode, VBIOS: whole.VBIOS,
	}
	if p.gpuInstance >= 0 {
		g.Instance = strconv.Itoa(p.gpuInstance)
		g.ComputeInstance = strconv.Itoa(p.computeInstance)
	}
	if _, profile, ok := strings.Cut(g.Name, " MIG "); ok {
		g.Profile = profile
	} else if a, ret := p.handle.GetAttributes(); ret == nvml.SUCCESS {
		g.Profile = profileOf(a)
	}
	for _, node := range whole.Nodes {
		if minor, is := strings.CutPrefix(node, "/dev/nvidia"); is {
			g.Nodes = capabilities(o.Procfs, minor, p)
		}
	}
	return g
}

// profileOf returns the profile as nvidia-smi writes it: 1g.10gb, or 1c.3g.40gb if the compute instance is a part of
// the GPU instance.
func profileOf(a nvml.DeviceAttributes) string {
	gigabytes := (a.MemorySizeMB + 1023) / 1024
	s := fmt.Sprintf("%dg.%dgb", a.GpuInstanceSliceCount, gigabytes)
	if a.ComputeInstanceSliceCount != a.GpuInstanceSliceCount {
		s = fmt.Sprintf("%dc.%s", a.ComputeInstanceSliceCount, s)
	}
	return s
}

// capabilities returns the device nodes that give access to an instance, from
// /proc/driver/nvidia/capabilities/gpuN/mig/giG/ciC/access. The node of giG is also required, but all compute instances
// of the GPU instance share it.
func capabilities(procfs, minor string, p part) []string {
	file := filepath.Join(procfs, "driver/nvidia/capabilities/gpu"+minor, "mig", "gi"+strconv.Itoa(p.gpuInstance),
		"ci"+strconv.Itoa(p.computeInstance), "access")
	var nodes []string
	for line := range strings.Lines(wire.Attribute(file)) {
		number, is := strings.CutPrefix(line, "DeviceFileMinor:")
		if v, err := strconv.Atoi(strings.TrimSpace(number)); is && err == nil {
			nodes = append(nodes, "/dev/nvidia-caps/nvidia-cap"+strconv.Itoa(v))
		}
	}
	return nodes
}

// instancesOf lists the GPU instances of a GPU without a handle, from the directories
// /proc/driver/nvidia/capabilities/gpuN/mig/giG/ciC.
func instancesOf(o wire.Options, g model.GPU) []part {
	var parts []part
	for _, node := range g.Nodes {
		minor, is := strings.CutPrefix(node, "/dev/nvidia")
		if !is {
			continue
		}
		dir := filepath.Join(o.Procfs, "driver/nvidia/capabilities/gpu"+minor, "mig")
		for gi, name := range numbered(dir, "gi") {
			for ci := range numbered(filepath.Join(dir, name), "ci") {
				parts = append(parts, part{uuid: strconv.Itoa(gi) + "/" + strconv.Itoa(ci), gpuInstance: gi, computeInstance: ci})
			}
		}
	}
	return parts[:min(len(parts), partsMax)]
}

// numbered lists the entries of a directory whose name is a prefix and a number, by number.
func numbered(dir, prefix string) map[int]string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	names := make(map[int]string)
	for _, e := range entries {
		number, is := strings.CutPrefix(e.Name(), prefix)
		if n, err := strconv.Atoi(number); is && err == nil {
			names[n] = e.Name()
		}
	}
	return names
}
