// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"encoding/binary"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
)

// clocks are the clock domains of NVML.
var clocks = []struct {
	name   string
	domain nvml.ClockType
}{
	{"graphics", nvml.CLOCK_GRAPHICS},
	{"sm", nvml.CLOCK_SM},
	{"memory", nvml.CLOCK_MEM},
	{"video", nvml.CLOCK_VIDEO},
}

// Reasons why clocks are lower than they could be.
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
	hundredth = 1e-2
	milli     = 1e-3
	mega      = 1e6
)

// quick reads the values that are cheap: eleven calls, none of which waits for a measurement.
// It stops at the first call that reports a lost device.
func (d *device) quick(handle nvml.Device, g *model.GPU) {
	use, ret := handle.GetUtilizationRates()
	if d.noted("nvmlDeviceGetUtilizationRates", ret) {
		g.Utilization = model.Some(float64(use.Gpu) * hundredth)
	}
	if d.health.lost {
		return
	}
	if v, ret := handle.GetTemperature(nvml.TEMPERATURE_GPU); d.noted("nvmlDeviceGetTemperature", ret) {
		g.Temperatures = append(g.Temperatures, model.Figure{Name: "gpu", Value: float64(v)})
	}
	if v, known := d.memoryTemperature(handle); known {
		g.Temperatures = append(g.Temperatures, model.Figure{Name: "memory", Value: v})
	}
	if v, ret := handle.GetPowerUsage(); d.noted("nvmlDeviceGetPowerUsage", ret) {
		g.Power = model.Some(float64(v) * milli)
	}
	for _, c := range clocks {
		if v, ret := handle.GetClockInfo(c.domain); d.noted("nvmlDeviceGetClockInfo", ret) {
			g.Clocks = append(g.Clocks, model.Figure{Name: c.name, Value: float64(v) * mega})
		}
	}
	if v, ret := handle.GetPerformanceState(); d.noted("nvmlDeviceGetPerformanceState", ret) && v <= nvml.PSTATE_15 {
		g.PerformanceState = model.Some(float64(v))
	}
	if v, ret := handle.GetFanSpeed(); d.noted("nvmlDeviceGetFanSpeed", ret) {
		g.FanSpeed = model.Some(float64(v) * hundredth)
	}
	g.Throttles = d.throttles(handle)
}

// memoryTemperature returns the HBM temperature, in degrees Celsius; GDDR and old chips have
// none.
func (d *device) memoryTemperature(handle nvml.Device) (float64, bool) {
	field := []nvml.FieldValue{{FieldId: nvml.FI_DEV_MEMORY_TEMP}}
	if !d.noted("nvmlDeviceGetFieldValues", handle.GetFieldValues(field)) ||
		nvml.Return(field[0].NvmlReturn) != nvml.SUCCESS {
		return 0, false
	}
	v := binary.NativeEndian.Uint32(field[0].Value[:])
	return float64(v), v != 0 && v != ^uint32(0) // old drivers return 0 without a sensor
}

// supportedReasons returns the throttle reasons that a device supports: all, if it does not
// report them.
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

// throttles returns each supported throttle reason and whether it is active.
func (d *device) throttles(handle nvml.Device) []model.GPUCondition {
	now, ret := handle.GetCurrentClocksEventReasons()
	if ret == nvml.ERROR_FUNCTION_NOT_FOUND {
		now, ret = handle.GetCurrentClocksThrottleReasons()
	}
	if !d.noted("nvmlDeviceGetCurrentClocksEventReasons", ret) {
		return nil
	}
	conditions := make([]model.GPUCondition, 0, len(reasons))
	for _, r := range reasons {
		if (d.reasons|now)&r.bit != 0 {
			conditions = append(conditions, model.GPUCondition{Name: r.name, Active: now&r.bit != 0})
		}
	}
	return conditions
}
