// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// describe returns the constant properties of a device.
func describe(o wire.Options, handle nvml.Device, address string, index int) model.GPU {
	g := model.GPU{Vendor: model.NVIDIA, PCIAddress: address}
	if v, ret := handle.GetIndex(); ret == nvml.SUCCESS {
		index = v
	}
	g.ID = strconv.Itoa(index)
	g.Name = known(handle.GetName())
	g.Serial = known(handle.GetSerial())
	g.VBIOS = known(handle.GetVbiosVersion())
	if v, ret := handle.GetPciInfo(); ret == nvml.SUCCESS {
		if g.PCIAddress == "" {
			g.PCIAddress = pciAddress(v)
		}
		g.PCIDevice = fmt.Sprintf("%#04x", v.PciDeviceId>>16)
	}
	if v, ret := handle.GetMinorNumber(); ret == nvml.SUCCESS {
		g.Nodes = append(g.Nodes, "/dev/nvidia"+strconv.Itoa(v))
	}
	locate(o.Sysfs, &g)
	for _, c := range clocks {
		if v, ret := handle.GetMaxClockInfo(c.domain); ret == nvml.SUCCESS {
			g.MaxClocks = append(g.MaxClocks, model.Figure{Name: c.name, Value: float64(v) * mega})
		}
	}
	return g
}

func known(v string, ret nvml.Return) string {
	if ret != nvml.SUCCESS {
		return ""
	}
	return strings.ToValidUTF8(strings.TrimSpace(v), "")
}

// pciAddress returns the address in the kernel's format: NVML uses domains of eight digits.
func pciAddress(p nvml.PciInfo) string {
	if p.BusId[0] == 0 {
		return ""
	}
	return fmt.Sprintf("%04x:%02x:%02x.0", p.Domain, p.Bus, p.Device)
}

// locate reads properties of the PCI function from sysfs: numa_node and the DRM device nodes
// (drm/cardN, drm/renderDN).
func locate(sysfs string, g *model.GPU) {
	if g.PCIAddress == "" {
		return
	}
	dir := filepath.Join(sysfs, "bus/pci/devices", g.PCIAddress)
	if v := wire.Attribute(filepath.Join(dir, "numa_node")); v != "-1" {
		g.NUMANode = v
	}
	if g.PCIDevice == "" {
		g.PCIDevice = wire.Attribute(filepath.Join(dir, "device"))
	}
	entries, err := os.ReadDir(filepath.Join(dir, "drm"))
	if err != nil {
		return // nvidia-drm is not loaded
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "card") || strings.HasPrefix(e.Name(), "renderD") {
			g.Nodes = append(g.Nodes, "/dev/dri/"+e.Name())
		}
	}
}

// suspended reports whether runtime power management has suspended a PCI function
// (power/runtime_status).
func suspended(sysfs, address string) bool {
	return address != "" &&
		wire.Attribute(filepath.Join(sysfs, "bus/pci/devices", address, "power/runtime_status")) == "suspended"
}

// recall returns the identity at an address without a call of NVML, from /proc/driver/nvidia/gpus/ADDRESS/information.
func recall(o wire.Options, address string, index int) model.GPU {
	g := model.GPU{Vendor: model.NVIDIA, ID: strconv.Itoa(index), UUID: address, PCIAddress: address}
	text := wire.Attribute(filepath.Join(o.Procfs, "driver/nvidia/gpus", address, "information"))
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		switch value = strings.TrimSpace(value); key {
		case "Model":
			g.Name = value
		case "GPU UUID":
			if !strings.Contains(value, "?") { // unknown before its first use
				g.UUID = value
			}
		case "Video BIOS":
			if !strings.Contains(value, "?") {
				g.VBIOS = value
			}
		case "Device Minor":
			g.Nodes = append(g.Nodes, "/dev/nvidia"+value)
		}
	}
	locate(o.Sysfs, &g)
	return g
}
