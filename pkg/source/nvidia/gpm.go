// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
)

// gpmEngines are the exported GPM counters, percentages of the time between two reads. GPM and
// other profilers do not disturb each other.
var gpmEngines = [...]struct {
	metric nvml.GpmMetricId
	name   string
}{
	{nvml.GPM_METRIC_GRAPHICS_UTIL, "gr_active"},
	{nvml.GPM_METRIC_SM_UTIL, "sm_active"},
	{nvml.GPM_METRIC_SM_OCCUPANCY, "sm_occupancy"},
	{nvml.GPM_METRIC_ANY_TENSOR_UTIL, "tensor_active"},
	{nvml.GPM_METRIC_DRAM_BW_UTIL, "dram_active"},
	{nvml.GPM_METRIC_FP64_UTIL, "fp64_active"},
	{nvml.GPM_METRIC_FP32_UTIL, "fp32_active"},
	{nvml.GPM_METRIC_FP16_UTIL, "fp16_active"},
	{nvml.GPM_METRIC_INTEGER_UTIL, "integer_active"},
}

// gpm reads the GPM counters of one device, or of one of its GPU instances. GPM compares two
// samples of the counters; the previous one is kept.
type gpm struct {
	l                *library
	asked, supported bool
	before, after    nvml.GpmSample
	filled           bool
}

// read returns the counters of chips with GPM (Hopper and later) since the previous read, and
// nil at the first. take fills a sample with the current state.
func (g *gpm) read(d nvml.Device, take func(nvml.GpmSample) nvml.Return) []model.Figure {
	if !g.prepare(d) {
		return nil
	}
	compare := g.filled
	g.filled = take(g.after) == nvml.SUCCESS
	if !g.filled {
		return nil
	}
	g.before, g.after = g.after, g.before
	if !compare {
		return nil
	}
	request := nvml.GpmMetricsGetType{NumMetrics: uint32(len(gpmEngines)), Sample1: g.after, Sample2: g.before}
	for i, e := range gpmEngines {
		request.Metrics[i].MetricId = uint32(e.metric)
	}
	if g.l.GpmMetricsGet(&request) != nvml.SUCCESS {
		return nil
	}
	var engines []model.Figure
	for i, e := range gpmEngines {
		if v := request.Metrics[i]; nvml.Return(v.NvmlReturn) == nvml.SUCCESS && !math.IsNaN(v.Value) {
			engines = append(engines, model.Figure{Name: e.name, Value: max(0, min(1, v.Value/100))})
		}
	}
	return engines
}

// prepare checks once whether the chip has GPM, and allocates two samples.
func (g *gpm) prepare(d nvml.Device) bool {
	if g.asked {
		return g.supported
	}
	g.asked = true
	for _, symbol := range []string{
		"nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree", "nvmlGpmSampleGet", "nvmlGpmMigSampleGet",
		"nvmlGpmMetricsGet",
	} {
		if !g.l.has(symbol) {
			return false
		}
	}
	if support, ret := d.GpmQueryDeviceSupport(); ret != nvml.SUCCESS || support.IsSupportedDevice == 0 {
		return false
	}
	for _, sample := range []*nvml.GpmSample{&g.before, &g.after} {
		made, ret := g.l.GpmSampleAlloc()
		if ret != nvml.SUCCESS {
			g.close()
			return false
		}
		*sample = made
	}
	g.supported = true
	return true
}

// close frees the samples. The library must still be open.
func (g *gpm) close() {
	for _, sample := range []*nvml.GpmSample{&g.before, &g.after} {
		if *sample != nil {
			_ = g.l.GpmSampleFree(*sample) // on failure the library keeps it
			*sample = nil
		}
	}
	g.supported, g.filled = false, false
}
