// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"encoding/binary"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestOffPCIe: what is reported of a busy GPU with one lane of generation 1, which its driver could extend: placeholders of a GPU that is
// not behind PCIe, and a broken link of any other GPU.
func TestOffPCIe(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		set func(*driver, *gpu)
		off bool
	}{
		"a slot":                  {func(*driver, *gpu) {}, false},
		"PCIe":                    {func(_ *driver, g *gpu) { g.GetBusTypeFunc = answer(g, nvml.BusType(nvml.BUS_TYPE_PCIE)) }, false},
		"an unknown bus":          {func(_ *driver, g *gpu) { g.GetBusTypeFunc = answer(g, nvml.BusType(nvml.BUS_TYPE_UNKNOWN)) }, false},
		"another bus":             {func(_ *driver, g *gpu) { g.GetBusTypeFunc = answer(g, nvml.BusType(nvml.BUS_TYPE_FPCI)) }, true},
		"no C2C":                  {func(_ *driver, g *gpu) { g.GetFieldValuesFunc = c2c(0) }, false},
		"C2C":                     {func(_ *driver, g *gpu) { g.GetFieldValuesFunc = c2c(10) }, true},
		"the memory of the CPU":   {func(_ *driver, g *gpu) { g.GetMemoryInfoFunc = memoryInfo(nvml.ERROR_NOT_SUPPORTED) }, true},
		"memory that fails":       {func(_ *driver, g *gpu) { g.GetMemoryInfoFunc = memoryInfo(nvml.ERROR_UNKNOWN) }, false},
		"a name":                  {func(_ *driver, g *gpu) { g.GetNameFunc = answer(g, "NVIDIA GH200 480GB") }, true},
		"a name that contains it": {func(_ *driver, g *gpu) { g.GetNameFunc = answer(g, "NVIDIA GB10000") }, false},
		"a NUMA node": {func(d *driver, _ *gpu) {
			d.write(filepath.Join(d.options.Procfs, "driver/nvidia/gpus", address, "numa_status"), "Node: 1\n")
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDriver(t)
			g := d.plug(address, "GPU-1", 0)
			g.GetCurrPcieLinkWidthFunc, g.GetCurrPcieLinkGenerationFunc = answer(g, 1), answer(g, 1)
			c.set(d, g)
			got := until(t, d.source(), func(s model.Snapshot) bool {
				return len(s.GPUs) == 1 && s.GPUs[0].Engines != nil && (c.off || s.GPUs[0].PCIe.Width.Known)
			}).GPUs[0]
			if got.OffPCIe != c.off || got.PCIe.Generation.Known == c.off || has(got.Problems, model.ProblemPCIeDegraded) == c.off ||
				c.off && got.PCIe != (model.GPUPCIe{}) {
				t.Errorf("%v, %+v, %+v", got.OffPCIe, got.PCIe, got.Problems)
			}
		})
	}
}

func c2c(links uint64) func([]nvml.FieldValue) nvml.Return {
	return func(values []nvml.FieldValue) nvml.Return {
		for i := range values {
			v := &values[i]
			if v.NvmlReturn = uint32(nvml.ERROR_NOT_SUPPORTED); v.FieldId == nvml.FI_DEV_C2C_LINK_COUNT {
				v.NvmlReturn, v.ValueType = uint32(nvml.SUCCESS), uint32(nvml.VALUE_TYPE_UNSIGNED_LONG_LONG)
				binary.NativeEndian.PutUint64(v.Value[:], links)
			}
		}
		return nvml.SUCCESS
	}
}

func memoryInfo(ret nvml.Return) func() (nvml.Memory, nvml.Return) {
	return func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, ret }
}
