// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package nvml

import (
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/accelscope/accelscope/pkg/model"
)

// A slow round comes slowRounds after the previous slow round: 30 s with the default interval.
const slowRounds = 6

// rarely decides which rounds read what changes rarely: the first round, and then every sixth. A round that began
// without a handle, or during which the device was suspended, does not count.
type rarely struct {
	due    bool // the round in progress is slow
	left   int  // rounds until the next slow round
	counts bool // the round in progress counts
}

func (r *rarely) begin(attached bool) { r.due, r.counts = r.left == 0, attached }

func (r *rarely) end() {
	switch {
	case !r.counts:
	case r.due:
		r.left = slowRounds - 1
	default:
		r.left--
	}
}

// again makes the rest of this round, and the next round, slow.
func (r *rarely) again() { *r = rarely{due: true} }

// readCounters reads the counters of a round: energy, replays, throttled time.
func readCounters(d nvml.Device, values fieldValues, g *model.GPU, slow bool) {
	// Millijoules since the driver was loaded.
	g.Energy = values.scaled(nvml.FI_DEV_TOTAL_ENERGY_CONSUMPTION, 0, milli)
	if !g.Energy.Known {
		if mj, ret := d.GetTotalEnergyConsumption(); ret == nvml.SUCCESS && mj != math.MaxUint64 {
			g.Energy = model.Some(float64(mj) / milli)
		}
	}
	if n := values.scaled(nvml.FI_DEV_PCIE_REPLAY_COUNTER, 0, 1); n.Known {
		g.PCIe.Replays = n
	} else if slow {
		g.PCIe.Replays = model.Optional{}
		if n, ret := d.GetPcieReplayCounter(); ret == nvml.SUCCESS && n >= 0 && n != math.MaxUint32 {
			g.PCIe.Replays = model.Some(float64(n))
		}
	}
	g.Throttled = throttled(values)
}

// slowly reads what changes rarely, or needs many calls: memory errors and repairs, limits. Values that the driver does
// not report are absent.
func slowly(d nvml.Device, values fieldValues, g *model.GPU) {
	if g.Errors = nil; hasECC(d) { // ECC may have been disabled
		g.Errors = eccErrors(d)
	}
	g.TemperatureLimits = temperatureLimits(d)
	g.TemperatureMarginLimits = nil
	for _, l := range marginLimits {
		if c, ok := values.signed(l.field, 0); ok {
			g.TemperatureMarginLimits = append(g.TemperatureMarginLimits, model.Figure{Name: l.name, Value: c})
		}
	}
	g.RetiredPages = retiredPages(d)
}

// memory reads nvmlDeviceGetMemoryInfo_v2 (bytes). Its used memory excludes the part that driver and firmware reserve:
// total is used, reserved and free. An older library has only nvmlDeviceGetMemoryInfo, which includes the reserve in
// the used memory.
func memory(d nvml.Device) model.VideoMemory {
	if m, ret := d.GetMemoryInfo_v2(); ret == nvml.SUCCESS {
		return model.VideoMemory{Total: some(m.Total), Used: some(m.Used), Free: some(m.Free), Reserved: some(m.Reserved)}
	}
	if m, ret := d.GetMemoryInfo(); ret == nvml.SUCCESS {
		return model.VideoMemory{Total: some(m.Total), Used: some(m.Used), Free: some(m.Free)}
	}
	return model.VideoMemory{}
}

// throughput reads nvmlDeviceGetPcieThroughput, in KB/s over the 20 ms for which it blocks. nvml.h uses KB for 1000 and
// KiB for 1024 bytes.
func throughput(d nvml.Device, counter nvml.PcieUtilCounter) model.Optional {
	kb, ret := d.GetPcieThroughput(counter)
	if ret != nvml.SUCCESS || kb == math.MaxUint32 {
		return model.Optional{}
	}
	return model.Some(float64(kb) * 1e3)
}

// temperatureLimits reads nvmlDeviceGetTemperatureThreshold, in degrees Celsius.
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
		if c, ret := d.GetTemperatureThreshold(t.kind); ret == nvml.SUCCESS && c != 0 {
			limits = append(limits, model.Figure{Name: t.name, Value: float64(c)})
		}
	}
	return limits
}

// marginLimits are the T.Limit temperatures of newer chips: margins, in degrees Celsius.
var marginLimits = []struct {
	field uint32
	name  string
}{
	{nvml.FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, "shutdown"},
	{nvml.FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT, "slowdown"},
	{nvml.FI_DEV_TEMPERATURE_MEM_MAX_TLIMIT, "memory_max"},
	{nvml.FI_DEV_TEMPERATURE_GPU_MAX_TLIMIT, "gpu_max"},
}

// violations are the counters that throttled reads, named after the matching throttle reason if there is one. The first
// field that the driver reports counts. The first fields are those behind nvmlDeviceGetViolationStatus, which CUDA 14
// removes.
var violations = []struct {
	name   string
	fields []uint32
}{
	{"sw_power_cap", []uint32{nvml.FI_DEV_PERF_POLICY_POWER}},
	{"sw_thermal_slowdown", []uint32{nvml.FI_DEV_PERF_POLICY_THERMAL, nvml.FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN}},
	{"sync_boost", []uint32{nvml.FI_DEV_PERF_POLICY_SYNC_BOOST}},
	{"board_limit", []uint32{nvml.FI_DEV_PERF_POLICY_BOARD_LIMIT}},
	{"low_utilization", []uint32{nvml.FI_DEV_PERF_POLICY_LOW_UTILIZATION}},
	{"reliability", []uint32{nvml.FI_DEV_PERF_POLICY_RELIABILITY}},
	{"hw_thermal_slowdown", []uint32{nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN}},
	{"hw_power_brake_slowdown", []uint32{nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN}},
}

// throttled returns the time since the driver was loaded in which the GPU was slowed down. The fields are in
// nanoseconds.
func throttled(values fieldValues) (seconds []model.Figure) {
	for _, v := range violations {
		for _, id := range v.fields {
			if ns, ok := values.count(id, 0); ok {
				seconds = append(seconds, model.Figure{Name: v.name, Value: float64(ns) / 1e9})
				break
			}
		}
	}
	return seconds
}

// readRemappedRows reads nvmlDeviceGetRemappedRows: rows that were replaced by spare rows since the GPU was
// manufactured, and whether a replacement is pending or has failed.
func readRemappedRows(d nvml.Device, g *model.GPU, h *health) {
	g.RemappedRows, h.remapPending, h.remapFailure = nil, nil, nil
	corrected, uncorrected, pending, failed, ret := d.GetRemappedRows()
	if ret != nvml.SUCCESS {
		return
	}
	h.remapPending, h.remapFailure = &pending, &failed
	g.RemappedRows = []model.Figure{
		{Name: "correctable", Value: float64(corrected)},
		{Name: "uncorrectable", Value: float64(uncorrected)},
	}
}

// retiredPages reads nvmlDeviceGetRetiredPages: pages that chips before Ampere no longer use, because of repeated
// corrected errors or of uncorrected errors.
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
