// SPDX-License-Identifier: Apache-2.0

package model

import (
	"slices"
	"strconv"
	"strings"
)

// Vendor is the manufacturer of a GPU.
type Vendor string

// The vendors.
const (
	NVIDIA Vendor = "nvidia"
	AMD    Vendor = "amd"
	Intel  Vendor = "intel"
)

// The classes of device nodes of one vendor.
const (
	ClassNVIDIA DeviceClass = "nvidia" // /dev/nvidia*
	ClassAMDGPU DeviceClass = "amdgpu" // /dev/kfd
)

// GPUVendor describes the GPUs of a vendor as the kernel, the kubelet and container tools name them.
type GPUVendor struct {
	Vendor Vendor
	Source string // source that reads its GPUs; may be empty

	// Resources are prefixes of kubelet resources that are GPUs or parts of GPUs. A resource that ends in ExceptSuffix
	// stands for all GPUs of the node, for monitoring. IsPartition recognizes other resources that are parts.
	Resources    []string
	ExceptSuffix string
	IsPartition  func(resource string) bool
	DRADriver    string // for resource claims, which the kubelet reports as DRIVER/POOL

	// CDIKinds are the VENDOR/CLASS kinds of its GPUs in the Container Device Interface. A requested GPU is stored as
	// the first kind and its name, or as the bare name if BareNames is set (for at most one vendor).
	CDIKinds      []string
	BareNames     bool
	DriverNumbers bool   // a number in a request is the driver's GPU number
	DockerDriver  string // its driver in Docker's device requests

	SharedAddress bool   // the device plugin uses a GPU's PCI address for the GPU's first part
	NodePrefix    string // device node of a GPU without its number; empty if it has only DRI nodes
	CharDriver    string // prefix of its drivers in /proc/devices; empty if it has only DRI nodes
	DeviceClass   DeviceClass
	Unlisted      *UnlistedNodes // nil if sysfs lists all device nodes

	ProcessEngines []string // engines that the driver reports by process
	IdleIsZero     bool     // an engine that the driver omits for a process with other engines is unused
	GameClocks     bool     // chips boost beyond the highest clock that the driver lists
	HexSerial      bool     // tools show the ASIC's unique ID as serial number: 0x and 16 digits
	LibraryCure    string   // advice if the source fails with ErrLibrary
}

// UnlistedNodes describes device nodes that sysfs does not list.
type UnlistedNodes struct {
	PCIDriver string // driver of the GPUs below /sys/bus/pci/drivers
	// Minors returns the minor numbers of a driver in /proc/devices, given the node's number of GPUs.
	Minors func(driver string, gpus int) []uint32
	Name   func(driver string, minor uint32) string // of the node in /dev
}

// GPUVendors lists the vendors in the order of REST answers. AMD is first, because the Primus Lens node exporter
// reports AMD only.
var GPUVendors = []GPUVendor{
	{
		Vendor: AMD, Source: "amdgpu",
		Resources: []string{"amd.com/gpu"}, IsPartition: isAMDPartition, DRADriver: "gpu.amd.com",
		CDIKinds: []string{"amd.com/gpu"}, DockerDriver: "amd",
		SharedAddress: true, CharDriver: "kfd", DeviceClass: ClassAMDGPU,
		ProcessEngines: []string{"gfx"}, // compute queues are not in gfx
		GameClocks:     true,            // since RDNA 3
		HexSerial:      true,
	},
	{
		Vendor: NVIDIA, Source: "nvidia",
		Resources: []string{"nvidia.com/gpu", "nvidia.com/mig-", "volcano.sh/vgpu-number"}, DRADriver: "gpu.nvidia.com",
		CDIKinds: []string{"nvidia.com/gpu", "runtime.nvidia.com/gpu"}, BareNames: true, DriverNumbers: true, DockerDriver: "nvidia",
		NodePrefix: "/dev/nvidia", CharDriver: "nvidia", DeviceClass: ClassNVIDIA,
		Unlisted:       &UnlistedNodes{PCIDriver: "nvidia", Minors: nvidiaMinors, Name: nvidiaNode},
		ProcessEngines: []string{"sm", "memory", "encoder", "decoder"}, IdleIsZero: true,
		LibraryCure: "make the driver's libnvidia-ml.so.1 visible, and name it with --gpu.nvml-library",
	},
	{
		Vendor: Intel, Source: "intel",
		Resources: []string{"gpu.intel.com/i915", "gpu.intel.com/xe"}, ExceptSuffix: "_monitoring", DRADriver: "gpu.intel.com",
		CDIKinds: []string{"intel.com/gpu"},
	},
}

// FindGPUVendor returns the first vendor for which match is true, or nil.
func FindGPUVendor(match func(*GPUVendor) bool) *GPUVendor {
	for i := range GPUVendors {
		if v := &GPUVendors[i]; match(v) {
			return v
		}
	}
	return nil
}

// Row returns the vendor's row, or an empty row.
func (v Vendor) Row() *GPUVendor {
	if row := FindGPUVendor(func(row *GPUVendor) bool { return row.Vendor == v }); row != nil {
		return row
	}
	return &GPUVendor{Vendor: v}
}

// Owns reports whether a kubelet resource is GPUs of the vendor or parts of them.
func (v *GPUVendor) Owns(resource string) bool {
	if slices.ContainsFunc(v.Resources, func(prefix string) bool { return strings.HasPrefix(resource, prefix) }) {
		return v.ExceptSuffix == "" || !strings.HasSuffix(resource, v.ExceptSuffix)
	}
	return v.IsPartition != nil && v.IsPartition(resource)
}

// isAMDPartition matches the resources of AMD's plugin with resource_naming_strategy=mixed: amd.com/cpx_nps4.
func isAMDPartition(resource string) bool {
	partition, ok := strings.CutPrefix(resource, "amd.com/")
	_, memory, mixed := strings.Cut(partition, "px_nps")
	return ok && mixed && memory != ""
}

// sharesNVIDIAMajor reports whether a driver uses the major number that NVIDIA's GPUs share with two control nodes.
func sharesNVIDIAMajor(driver string) bool {
	switch driver {
	case "nvidia", "nvidia-frontend", "nvidiactl", "nvidia-modeset":
		return true
	}
	return false
}

func nvidiaMinors(driver string, gpus int) (minors []uint32) {
	switch {
	case sharesNVIDIAMajor(driver):
		for i := range min(gpus, 254) {
			minors = append(minors, uint32(i))
		}
		return append(minors, 254, 255)
	case driver == "nvidia-uvm":
		return []uint32{0, 1}
	}
	return nil
}

func nvidiaNode(driver string, minor uint32) string {
	number := strconv.Itoa(int(minor))
	switch {
	case sharesNVIDIAMajor(driver) && minor == 255:
		return "nvidiactl"
	case sharesNVIDIAMajor(driver) && minor == 254:
		return "nvidia-modeset"
	case sharesNVIDIAMajor(driver):
		return "nvidia" + number
	case driver == "nvidia-uvm" && minor == 1:
		return "nvidia-uvm-tools"
	case driver == "nvidia-uvm":
		return driver
	case driver == "nvidia-caps":
		return "nvidia-cap" + number
	case driver == "nvidia-nvswitch" && minor == 255:
		return "nvidia-nvswitchctl"
	}
	return driver + number
}
