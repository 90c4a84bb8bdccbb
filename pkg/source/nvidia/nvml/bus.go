// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// onCPU are words in the names of chips that are part of a CPU, or connected with one by C2C.
var onCPU = []string{"GB10", "GH200", "GB200", "GB300", "Thor", "Orin"}

// offPCIe reports whether a GPU is not behind a PCIe link. NVML then has placeholders for the link: one lane of generation 1. No single
// call shows it on all chips: the bus is another one (nvmlDeviceGetBusType), the GPU has links to the CPU (C2C), its memory is that of
// the CPU, or a NUMA node, or its name is known.
func offPCIe(procfs string, handle nvml.Device, name, address string) bool {
	if bus, ret := handle.GetBusType(); ret == nvml.SUCCESS && bus != nvml.BUS_TYPE_UNKNOWN {
		if bus != nvml.BUS_TYPE_PCI && bus != nvml.BUS_TYPE_PCIE {
			return true
		}
	}
	links := new(fieldReader).read(handle, []field{{id: nvml.FI_DEV_C2C_LINK_COUNT}})
	if n, ok := links.count(nvml.FI_DEV_C2C_LINK_COUNT, 0); ok && n > 0 {
		return true
	}
	if _, ret := handle.GetMemoryInfo(); ret == nvml.ERROR_NOT_SUPPORTED {
		return true
	}
	known := func(word string) bool { return slices.Contains(onCPU, word) }
	return hasNUMA(procfs, address) || slices.ContainsFunc(strings.Fields(name), known)
}

// hasNUMA reports whether the kernel manages the memory of a GPU, as of GH200 and GB200: only then the driver makes the file.
func hasNUMA(procfs, address string) bool {
	_, err := os.Stat(filepath.Join(procfs, "driver/nvidia/gpus", address, "numa_status"))
	return err == nil
}
