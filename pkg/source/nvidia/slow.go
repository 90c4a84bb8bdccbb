// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvidia

import (
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
)

// slowly reads values that need many calls, of a GPU or of a part: memory errors, energy,
// limits. Values that the driver does not report are absent. A part has only errors: the other
// values belong to the whole GPU.
func slowly(d nvml.Device, g *model.GPU) {
	if g.Errors = nil; g.Parent != "" || hasECC(d) { // ECC may have been disabled
		g.Errors = eccErrors(d)
	}
	if g.Parent != "" {
		return
	}
	g.Energy, g.PCIe.Replays = model.Optional{}, model.Optional{}
	// Millijoules since the driver was loaded.
	if mj, ret := d.GetTotalEnergyConsumption(); ret == nvml.SUCCESS && mj != math.MaxUint64 {
		g.Energy = model.Some(float64(mj) / 1e3)
	}
	if n, ret := d.GetPcieReplayCounter(); ret == nvml.SUCCESS && n >= 0 && n != math.MaxUint32 {
		g.PCIe.Replays = model.Some(float64(n))
	}
	g.TemperatureLimits = temperatureLimits(d)
	g.Throttled = throttled(d)
	g.RemappedRows = remappedRows(d)
	g.RetiredPages = retiredPages(d)
}

// memory reads nvmlDeviceGetMemoryInfo_v2 (bytes). Its used memory excludes the part that
// driver and firmware reserve: total is used, reserved and free. An older library has only
// nvmlDeviceGetMemoryInfo, which includes the reserve in the used memory.
func memory(d nvml.Device) model.VideoMemory {
	if m, ret := d.GetMemoryInfo_v2(); ret == nvml.SUCCESS {
		return model.VideoMemory{Total: some(m.Total), Used: some(m.Used), Free: some(m.Free), Reserved: some(m.Reserved)}
	}
	if m, ret := d.GetMemoryInfo(); ret == nvml.SUCCESS {
		return model.VideoMemory{Total: some(m.Total), Used: some(m.Used), Free: some(m.Free)}
	}
	return model.VideoMemory{}
}

// throughput reads nvmlDeviceGetPcieThroughput, in KB/s over the 20 ms for which it blocks.
// nvml.h uses KB for 1000 and KiB for 1024 bytes.
func throughput(d nvml.Device, counter nvml.PcieUtilCounter) model.Optional {
	kb, ret := d.GetPcieThroughput(counter)
	if ret != nvml.SUCCESS || kb == math.MaxUint32 {
		return model.Optional{}
	}
	return model.Some(float64(kb) * 1e3)
}

// temperatureLimits reads nvmlDeviceGetTemperatureThreshold, in degrees Celsius. It does not
// read the relative limits of newer chips (T.Limit).
func temperatureLimits(d nvml.Device) []model.Figure {
	var limits []model.Figure
	for _, t := range []struct {
		name string
		kind nvml.TemperatureThresholds
	}{
		{"shutdown", nvml.TEMPERATURE_THRESHOLD_SHUTDOWN},
		{"slowdown", nvml.TEMPERATURE_THRESHOLD_SLOWDOWN},
		{"memory_max", nvml.TEMPERATURE_THRESHOLD_MEM_MAX},
		{"gpu_max", nvml.TEMPERATURE_THRESHOLD_GPU_MAX},
	} {
		if c, ret := d.GetTemperatureThreshold(t.kind); ret == nvml.SUCCESS && c != 0 && c < 1000 {
			limits = append(limits, model.Figure{Name: t.name, Value: float64(c)})
		}
	}
	return limits
}

// violations are the counters that throttled reads, by throttle reason where one matches. The
// field is read if there is no policy, or if the library lacks the function for policies,
// which CUDA 14 removes.
var violations = []struct {
	name   string
	policy nvml.PerfPolicyType
	field  uint32
}{
	{"sw_power_cap", nvml.PERF_POLICY_POWER, nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP},
	{"sw_thermal_slowdown", nvml.PERF_POLICY_THERMAL, nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN},
	{"sync_boost", nvml.PERF_POLICY_SYNC_BOOST, nvml.FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST},
	{"board_limit", nvml.PERF_POLICY_BOARD_LIMIT, nvml.FI_DEV_PERF_POLICY_BOARD_LIMIT},
	{"low_utilization", nvml.PERF_POLICY_LOW_UTILIZATION, nvml.FI_DEV_PERF_POLICY_LOW_UTILIZATION},
	{"reliability", nvml.PERF_POLICY_RELIABILITY, nvml.FI_DEV_PERF_POLICY_RELIABILITY},
	{"hw_thermal_slowdown", nvml.PERF_POLICY_COUNT, nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN},
	{"hw_power_brake_slowdown", nvml.PERF_POLICY_COUNT, nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN},
}

// throttled reads nvmlDeviceGetViolationStatus, and NVML_FI_DEV_CLOCKS_EVENT_REASON_* for the
// others. Both are in nanoseconds since the driver was loaded.
func throttled(d nvml.Device) []model.Figure {
	values := make([]nvml.FieldValue, len(violations))
	for i, v := range violations {
		values[i].FieldId = v.field
	}
	fieldsRead := d.GetFieldValues(values) == nvml.SUCCESS
	var seconds []model.Figure
	for i, v := range violations {
		ns, ok := uint64(0), false
		if v.policy != nvml.PERF_POLICY_COUNT {
			t, ret := d.GetViolationStatus(v.policy)
			ns, ok = t.ViolationTime, ret == nvml.SUCCESS && t.ViolationTime != math.MaxUint64
		}
		if !ok && fieldsRead {
			ns, ok = unsigned(values[i])
		}
		if ok {
			seconds = append(seconds, model.Figure{Name: v.name, Value: float64(ns) / 1e9})
		}
	}
	return seconds
}

// remappedRows reads nvmlDeviceGetRemappedRows: rows that were replaced by spare rows since
// the GPU was manufactured.
func remappedRows(d nvml.Device) []model.Figure {
	corrected, uncorrected, _, _, ret := d.GetRemappedRows()
	if ret != nvml.SUCCESS {
		return nil
	}
	return []model.Figure{
		{Name: "correctable", Value: float64(corrected)},
		{Name: "uncorrectable", Value: float64(uncorrected)},
	}
}

// retiredPages reads nvmlDeviceGetRetiredPages: pages that chips before Ampere no longer use,
// because of repeated corrected errors or of uncorrected ones.
func retiredPages(d nvml.Device) []model.Figure {
	var pages []model.Figure
	for _, c := range []struct {
		name  string
		cause nvml.PageRetirementCause
	}{
		{"correctable", nvml.PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS},
		{"uncorrectable", nvml.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR},
	} {
		if addresses, ret := d.GetRetiredPages(c.cause); ret == nvml.SUCCESS {
			pages = append(pages, model.Figure{Name: c.name, Value: float64(len(addresses))})
		}
	}
	return pages
}

func some(n uint64) model.Optional {
	if n == math.MaxUint64 { // NVML_VALUE_NOT_AVAILABLE
		return model.Optional{}
	}
	return model.Some(float64(n))
}
