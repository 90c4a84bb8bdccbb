// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"math"
	"slices"
	"strconv"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
)

// gpmMetric is a metric of GPM: a percentage of the time between two reads, or a rate in MiB/s over that time.
type gpmMetric struct {
	id   nvml.GpmMetricId
	name string
	rate bool
}

// gpmMetrics are the metrics that are read. GPM and other profilers do not disturb each other.
var gpmMetrics = slices.Concat(
	[]gpmMetric{
		{id: nvml.GPM_METRIC_GRAPHICS_UTIL, name: "gr_active"},
		{id: nvml.GPM_METRIC_SM_UTIL, name: "sm_active"},
		{id: nvml.GPM_METRIC_SM_OCCUPANCY, name: "sm_occupancy"},
		{id: nvml.GPM_METRIC_ANY_TENSOR_UTIL, name: "tensor_active"},
		{id: nvml.GPM_METRIC_DRAM_BW_UTIL, name: "dram_active"},
		{id: nvml.GPM_METRIC_FP64_UTIL, name: "fp64_active"},
		{id: nvml.GPM_METRIC_FP32_UTIL, name: "fp32_active"},
		{id: nvml.GPM_METRIC_FP16_UTIL, name: "fp16_active"},
		{id: nvml.GPM_METRIC_INTEGER_UTIL, name: "integer_active"},
		{id: nvml.GPM_METRIC_DFMA_TENSOR_UTIL, name: "tensor_dfma_active"},
		{id: nvml.GPM_METRIC_HMMA_TENSOR_UTIL, name: "tensor_hmma_active"},
		{id: nvml.GPM_METRIC_IMMA_TENSOR_UTIL, name: "tensor_imma_active"},
	},
	gpmEngines(nvml.GPM_METRIC_NVDEC_0_UTIL, 8, "nvdec"),
	gpmEngines(nvml.GPM_METRIC_NVJPG_0_UTIL, 8, "nvjpg"),
	gpmEngines(nvml.GPM_METRIC_NVOFA_0_UTIL, 2, "nvofa"),
	[]gpmMetric{
		{nvml.GPM_METRIC_PCIE_TX_PER_SEC, ratePCIeTransmit, true},
		{nvml.GPM_METRIC_PCIE_RX_PER_SEC, ratePCIeReceive, true},
		{nvml.GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, model.RateNVLinkTransmit, true},
		{nvml.GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC, model.RateNVLinkReceive, true},
		// From here on: metrics that came later than GPM itself.
		{nvml.GPM_METRIC_C2C_TOTAL_TX_PER_SEC, model.RateC2CTransmit, true},
		{nvml.GPM_METRIC_C2C_TOTAL_RX_PER_SEC, model.RateC2CReceive, true},
		{nvml.GPM_METRIC_C2C_DATA_TX_PER_SEC, model.RateC2CTransmitData, true},
		{nvml.GPM_METRIC_C2C_DATA_RX_PER_SEC, model.RateC2CReceiveData, true},
	},
)

const bytesPerMiB = 1 << 20

// laterGPMMetrics is the number of metrics that the first drivers with GPM do not know.
const laterGPMMetrics = 4

const (
	ratePCIeTransmit = "pcie_transmit"
	ratePCIeReceive  = "pcie_receive"
)

// gpmEngines returns the metrics of n engines with consecutive numbers.
func gpmEngines(first nvml.GpmMetricId, n int, name string) (metrics []gpmMetric) {
	for i := range n {
		metrics = append(metrics, gpmMetric{id: first + nvml.GpmMetricId(i), name: name + strconv.Itoa(i) + "_active"})
	}
	return metrics
}

// gpmResult is what GPM reports about the time between two reads.
type gpmResult struct {
	engines []model.Figure // 0 to 1
	rates   []model.Figure // in bytes per second
}

// gpm reads the GPM counters of one device, or of one of its GPU instances. GPM compares two samples of the counters,
// so the previous sample is kept.
type gpm struct {
	l                *Library
	asked, supported bool
	before, after    nvml.GpmSample
	filled           bool
	first            bool // the last read took the first of two samples
	metrics          []gpmMetric
}

// read returns the counters of chips with GPM (Hopper and later) since the previous read. The first read returns no
// counters. take fills a sample with the current state.
func (g *gpm) read(d nvml.Device, take func(nvml.GpmSample) nvml.Return) (result gpmResult) {
	if !g.prepare(d) {
		return result
	}
	compare := g.filled
	g.filled = take(g.after) == nvml.SUCCESS
	g.first = g.filled && !compare
	if !g.filled {
		return result
	}
	g.before, g.after = g.after, g.before
	if !compare {
		return result
	}
	request := nvml.GpmMetricsGetType{NumMetrics: uint32(len(g.metrics)), Sample1: g.after, Sample2: g.before}
	for i, m := range g.metrics {
		request.Metrics[i].MetricId = uint32(m.id)
	}
	switch g.l.GpmMetricsGet(&request) {
	case nvml.SUCCESS:
	case nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NOT_SUPPORTED: // applies to the whole request
		g.metrics = gpmMetrics[:len(gpmMetrics)-laterGPMMetrics]
		return result
	default:
		return result
	}
	for i, m := range g.metrics {
		v := request.Metrics[i]
		switch {
		case nvml.Return(v.NvmlReturn) != nvml.SUCCESS || math.IsNaN(v.Value):
		case m.rate:
			result.rates = append(result.rates, model.Figure{Name: m.name, Value: v.Value * bytesPerMiB})
		default:
			result.engines = append(result.engines, model.Figure{Name: m.name, Value: share(v.Value)})
		}
	}
	return result
}

// share returns a percentage as a ratio. GPM does not take the counters of a sample at one instant. So share accepts
// one percent below 0 and above 100, and clamps it. Any other value is not a percentage, and model.GPU.Bound handles
// it.
func share(v float64) float64 {
	if v >= -1 && v <= percent+1 {
		v = max(0, min(v, percent))
	}
	return v / percent
}

func (g *gpm) prepare(d nvml.Device) bool {
	if g.asked {
		return g.supported
	}
	g.asked = true
	for _, symbol := range []string{
		"nvmlGpmQueryDeviceSupport", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree", "nvmlGpmSampleGet", "nvmlGpmMigSampleGet",
		"nvmlGpmMetricsGet",
	} {
		if !g.l.Has(symbol) {
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
	g.supported, g.metrics = true, gpmMetrics
	return true
}

// close frees the samples. The library must still be open.
func (g *gpm) close() {
	for _, sample := range []*nvml.GpmSample{&g.before, &g.after} {
		if *sample != nil {
			_ = g.l.GpmSampleFree(*sample) // on failure the library keeps the sample
			*sample = nil
		}
	}
	g.supported, g.filled = false, false
}
