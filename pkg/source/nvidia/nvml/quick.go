// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
)

var clocks = []struct {
	name   string
	domain nvml.ClockType
}{
	{"graphics", nvml.CLOCK_GRAPHICS},
	{"sm", nvml.CLOCK_SM},
	{"memory", nvml.CLOCK_MEM},
	{"video", nvml.CLOCK_VIDEO},
}

const (
	reasonThermal    = "hw_thermal_slowdown"
	reasonPowerBrake = "hw_power_brake_slowdown"
)

// reasons are the bits of nvmlClocksEventReasons, by nvidia-smi's names.
var reasons = []struct {
	name string
	bit  uint64
}{
	{"gpu_idle", nvml.ClocksEventReasonGpuIdle},
	{"applications_clocks_setting", nvml.ClocksEventReasonApplicationsClocksSetting},
	{"sw_power_cap", nvml.ClocksEventReasonSwPowerCap},
	{"hw_slowdown", nvml.ClocksThrottleReasonHwSlowdown},
	{"sync_boost", nvml.ClocksEventReasonSyncBoost},
	{"sw_thermal_slowdown", nvml.ClocksEventReasonSwThermalSlowdown},
	{reasonThermal, nvml.ClocksThrottleReasonHwThermalSlowdown},
	{reasonPowerBrake, nvml.ClocksThrottleReasonHwPowerBrakeSlowdown},
	{"display_clocks_setting", nvml.ClocksEventReasonDisplayClockSetting},
}

const (
	percent = 100
	milli   = 1e3 // per unit
	mega    = 1e6
)

var quickFields = []field{{id: nvml.FI_DEV_MEMORY_TEMP}, {id: nvml.FI_DEV_POWER_INSTANT}}

// quickReader reads the quick values of a device for scrapes.
type quickReader struct {
	*caller
	has          func(symbol string) bool // whether the library has a function
	fields       fieldReader
	reasons      uint64 // supported throttle reasons
	temperatureV bool   // nvmlDeviceGetTemperatureV is called
	margin       bool   // nvmlDeviceGetMarginTemperature is called
}

func (q *quickReader) attach(handle nvml.Device) {
	q.reasons, q.temperatureV = supportedReasons(handle), q.has("nvmlDeviceGetTemperatureV")
}

// retry makes the next scrape repeat failed calls.
func (q *quickReader) retry() {
	q.fields.retry()
	q.margin = q.has("nvmlDeviceGetMarginTemperature")
}

// read reads the cheap values: twelve calls that do not wait for a measurement. It stops at the first call that reports
// a lost device.
func (q *quickReader) read(handle nvml.Device, g *model.GPU) {
	use, ret := handle.GetUtilizationRates()
	if q.noted("nvmlDeviceGetUtilizationRates", ret) {
		g.Utilization = model.Some(float64(use.Gpu) / percent)
	}
	if q.health.lost {
		return
	}
	if v, ret := q.temperature(handle); q.noted("nvmlDeviceGetTemperature", ret) {
		g.Temperatures = append(g.Temperatures, model.Figure{Name: "gpu", Value: v})
	}
	g.TemperatureMargin = q.temperatureMargin(handle)
	fields := q.fields.read(handle, quickFields)
	// HBM has a temperature sensor. For GDDR and old chips, which have no sensor, old drivers return 0.
	if v, ok := fields.count(nvml.FI_DEV_MEMORY_TEMP, 0); ok && v != 0 {
		g.Temperatures = append(g.Temperatures, model.Figure{Name: "memory", Value: float64(v)})
	}
	if v, ret := handle.GetPowerUsage(); q.noted("nvmlDeviceGetPowerUsage", ret) {
		g.Power = model.Some(float64(v) / milli)
	}
	g.PowerInstant = fields.scaled(nvml.FI_DEV_POWER_INSTANT, 0, milli)
	for _, c := range clocks {
		if v, ret := handle.GetClockInfo(c.domain); q.noted("nvmlDeviceGetClockInfo", ret) {
			g.Clocks = append(g.Clocks, model.Figure{Name: c.name, Value: float64(v) * mega})
		}
	}
	if v, ret := handle.GetPerformanceState(); q.noted("nvmlDeviceGetPerformanceState", ret) && v <= nvml.PSTATE_15 {
		g.PerformanceState = model.Some(float64(v))
	}
	if v, ret := handle.GetFanSpeed(); q.noted("nvmlDeviceGetFanSpeed", ret) {
		g.FanSpeed = model.Some(float64(v) / percent)
	}
	g.Throttles = q.throttles(handle)
}

// temperature returns the temperature of the GPU, in degrees Celsius, from nvmlDeviceGetTemperatureV. If the library or
// the driver lacks it, temperature calls nvmlDeviceGetTemperature, which is deprecated.
func (q *quickReader) temperature(handle nvml.Device) (float64, nvml.Return) {
	if q.temperatureV {
		v, ret := handle.GetTemperatureV().V1()
		if ret == nvml.SUCCESS || ret == nvml.ERROR_GPU_IS_LOST {
			return float64(v.Temperature), ret
		}
		q.temperatureV = false
	}
	v, ret := handle.GetTemperature(nvml.TEMPERATURE_GPU)
	return float64(v), ret
}

// temperatureMargin reads nvmlDeviceGetMarginTemperature, in degrees Celsius. Old chips do not support it: after a
// failure the next slow round tries again.
func (q *quickReader) temperatureMargin(handle nvml.Device) model.Optional {
	if !q.margin {
		return model.Optional{}
	}
	v, ret := handle.GetMarginTemperature()
	if q.margin = ret == nvml.SUCCESS; !q.margin {
		return model.Optional{}
	}
	return model.Some(float64(v.MarginTemperature))
}

// supportedReasons returns the throttle reasons that a device supports. If the device does not report them, it returns
// all.
func supportedReasons(handle nvml.Device) uint64 {
	known, ret := handle.GetSupportedClocksEventReasons()
	if ret == nvml.ERROR_FUNCTION_NOT_FOUND {
		known, ret = handle.GetSupportedClocksThrottleReasons()
	}
	if ret != nvml.SUCCESS || known == 0 {
		return nvml.ClocksEventReasonAll
	}
	return known
}

func (q *quickReader) throttles(handle nvml.Device) []model.GPUCondition {
	now, ret := handle.GetCurrentClocksEventReasons()
	if ret == nvml.ERROR_FUNCTION_NOT_FOUND {
		now, ret = handle.GetCurrentClocksThrottleReasons()
	}
	if !q.noted("nvmlDeviceGetCurrentClocksEventReasons", ret) {
		return nil
	}
	conditions := make([]model.GPUCondition, 0, len(reasons))
	for _, r := range reasons {
		if (q.reasons|now)&r.bit != 0 {
			conditions = append(conditions, model.GPUCondition{Name: r.name, Active: now&r.bit != 0})
		}
	}
	return conditions
}
