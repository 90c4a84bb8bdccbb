// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
)

// deviceEngines are the engines that the driver samples per device. The engines that it also samples per process come
// first.
var deviceEngines = [...]struct {
	name    string
	samples nvml.SamplingType
	newest  func(nvml.Device) (uint32, nvml.Return) // returns only the newest value
}{
	{"sm", nvml.GPU_UTILIZATION_SAMPLES, newestSM},
	{"memory", nvml.MEMORY_UTILIZATION_SAMPLES, newestMemory},
	{"encoder", nvml.ENC_UTILIZATION_SAMPLES, rate(nvml.Device.GetEncoderUtilization)},
	{"decoder", nvml.DEC_UTILIZATION_SAMPLES, rate(nvml.Device.GetDecoderUtilization)},
	{"jpeg", nvml.JPG_UTILIZATION_SAMPLES, rate(nvml.Device.GetJpgUtilization)},
	{"ofa", nvml.OFA_UTILIZATION_SAMPLES, rate(nvml.Device.GetOfaUtilization)},
}

func newestSM(d nvml.Device) (uint32, nvml.Return) {
	u, ret := d.GetUtilizationRates()
	return u.Gpu, ret
}

func newestMemory(d nvml.Device) (uint32, nvml.Return) {
	u, ret := d.GetUtilizationRates()
	return u.Memory, ret
}

func rate(get func(nvml.Device) (uint32, uint32, nvml.Return)) func(nvml.Device) (uint32, nvml.Return) {
	return func(d nvml.Device) (uint32, nvml.Return) {
		u, _, ret := get(d)
		return u, ret
	}
}

type engineUsage struct {
	cursors [len(deviceEngines)]uint64 // newest sample of each engine, in microseconds
}

// read returns the usage of the engines that the driver reports: the mean of the driver's own samples since the
// previous read (nvmlDeviceGetSamples), as for processes. At the first read, or if the driver keeps no samples, the
// usage is the newest value.
func (m *engineUsage) read(d nvml.Device) []model.Figure {
	var engines []model.Figure
	for i, e := range deviceEngines {
		u, known := meanOf(d, e.samples, &m.cursors[i])
		if !known {
			p, ret := e.newest(d)
			u, known = float64(p)/percent, ret == nvml.SUCCESS
		}
		if known {
			engines = append(engines, model.Figure{Name: e.name, Value: u})
		}
	}
	return engines
}

func meanOf(d nvml.Device, kind nvml.SamplingType, after *uint64) (float64, bool) {
	from := *after
	*after = 0
	valueType, samples, ret := d.GetSamples(kind, from)
	if ret != nvml.SUCCESS {
		return 0, false
	}
	sum, n := 0.0, 0
	for _, s := range samples {
		p, ok := integer(valueType, s.SampleValue)
		if !ok || p > 100 || s.TimeStamp <= from {
			continue
		}
		*after = max(*after, s.TimeStamp)
		sum += float64(p)
		n++
	}
	if n == 0 || from == 0 {
		return 0, false
	}
	return sum / float64(n) / 100, true
}
