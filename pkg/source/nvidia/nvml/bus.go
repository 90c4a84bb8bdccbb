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

// onCPU are words in the names of chips that are part of a CPU, or connected with a CPU by C2C.
var onCPU = []string{"GB10", "GH200", "GB200", "GB300", "Thor", "Orin"}

// offPCIe reports whether a GPU is not behind a PCIe link. NVML then returns placeholders for the link: one lane of
// generation 1. No single call works on all chips, so offPCIe tries several: another bus (nvmlDeviceGetBusType), links
// to the CPU (C2C), CPU memory, memory in a NUMA node, and the name.
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

// hasNUMA reports whether the kernel manages the memory of a GPU, as on GH200 and GB200: only then the driver makes the
// file.
func hasNUMA(procfs, address string) bool {
	_, err := os.Stat(filepath.Join(procfs, "driver/nvidia/gpus", address, "numa_status"))
	return err == nil
}
