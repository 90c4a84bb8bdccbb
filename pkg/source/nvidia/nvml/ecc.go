// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
)

var (
	eccTypes = []struct {
		name string
		kind nvml.MemoryErrorType
	}{
		{"corrected", nvml.MEMORY_ERROR_TYPE_CORRECTED},
		{"uncorrected", nvml.MEMORY_ERROR_TYPE_UNCORRECTED},
	}
	eccScopes = []struct {
		name string
		kind nvml.EccCounterType
	}{
		{"volatile", nvml.VOLATILE_ECC},
		{"aggregate", nvml.AGGREGATE_ECC},
	}
	// The memories on the chip. Chips since Turing report the sum of all as sram.
	eccCaches = []eccBlock{
		{"l1_cache", nvml.MEMORY_LOCATION_L1_CACHE},
		{"l2_cache", nvml.MEMORY_LOCATION_L2_CACHE},
		{"register_file", nvml.MEMORY_LOCATION_REGISTER_FILE},
		{"texture_memory", nvml.MEMORY_LOCATION_TEXTURE_MEMORY},
		{"shared_memory", nvml.MEMORY_LOCATION_TEXTURE_SHM},
		{"cbu", nvml.MEMORY_LOCATION_CBU},
	}
)

type eccBlock struct {
	name string
	kind nvml.MemoryLocation
}

// hasECC reports whether ECC is enabled (nvmlDeviceGetEccMode). Without ECC this saves 36 calls.
func hasECC(d nvml.Device) bool {
	mode, _, ret := d.GetEccMode()
	return ret == nvml.ERROR_FUNCTION_NOT_FOUND || ret == nvml.SUCCESS && mode == nvml.FEATURE_ENABLED
}

// eccErrors reads nvmlDeviceGetMemoryErrorCounter for each location of errors of a type. No error is in two locations:
// if the driver reports sram, the caches are not read. If no location is reported, eccErrors reads the total
// (nvmlDeviceGetTotalEccErrors). For a part of a GPU the driver reports only uncorrected volatile errors on the chip.
func eccErrors(d nvml.Device) []model.GPUErrors {
	var errors []model.GPUErrors
	for _, t := range eccTypes {
		for _, s := range eccScopes {
			before := len(errors)
			ask := func(b eccBlock) bool {
				n, ret := d.GetMemoryErrorCounter(t.kind, s.kind, b.kind)
				if ret != nvml.SUCCESS || n == math.MaxUint64 {
					return false
				}
				errors = append(errors, model.GPUErrors{Type: t.name, Scope: s.name, Block: b.name, Count: n})
				return true
			}
			ask(eccBlock{"dram", nvml.MEMORY_LOCATION_DRAM})
			if !ask(eccBlock{"sram", nvml.MEMORY_LOCATION_SRAM}) {
				for _, b := range eccCaches {
					ask(b)
				}
			}
			if len(errors) > before {
				continue
			}
			if n, ret := d.GetTotalEccErrors(t.kind, s.kind); ret == nvml.SUCCESS && n != math.MaxUint64 {
				errors = append(errors, model.GPUErrors{Type: t.name, Scope: s.name, Block: "all", Count: n})
			}
		}
	}
	return errors
}
