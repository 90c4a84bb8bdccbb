// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// The throttle reasons of a GPU.
const (
	throttlePower   = "power"          // it reaches its power limit
	throttleCurrent = "current"        // a regulator reaches its current limit
	throttleThermal = "thermal"        // the chip is hot
	throttleMemory  = "thermal_memory" // the memory is
	throttleVR      = "thermal_vr"     // a voltage regulator is
	throttleProchot = "prochot"        // an external signal
	throttleCPU     = "cpu"            // the cores of an APU are hot: not a problem of the GPU
	throttleOther   = "other"

	// The mean over the XCCs: the clock is below the limit that the host set.
	throttleBelowLimit        = "below_host_limit"
	throttleBelowLimitPower   = "below_host_limit_power"
	throttleBelowLimitThermal = "below_host_limit_thermal"
)

// reasons are the bits of indep_throttle_status: SMU_THROTTLER_*_BIT of amdgpu_smu.h.
var reasons = []struct {
	name string
	bits uint64
}{
	{throttlePower, bits(0, 15)},
	{throttleCurrent, bits(16, 31)},
	{throttleThermal, bits(32, 32) | bits(35, 37) | bits(42, 43) | bits(48, 55)},
	{throttleMemory, bits(34, 34)},
	{throttleVR, bits(38, 41) | bits(44, 45)},
	{throttleCPU, bits(33, 33) | bits(46, 46)},
	{throttleProchot, bits(47, 47)},
	{throttleOther, bits(56, 63)},
}

func bits(from, to int) uint64 { return (1<<(to-from+1) - 1) << from }

// residencies are the cycle counters that the firmware has instead, on MI300 and later.
var residencies = []struct {
	name string
	id   id
}{
	{throttlePower, cyclesPower},
	{throttleThermal, cyclesThermal},
	{throttleMemory, cyclesMemory},
	{throttleVR, cyclesVR},
	{throttleProchot, cyclesProchot},
	{throttleBelowLimit, cyclesBelowLimit},
	{throttleBelowLimitPower, cyclesBelowLimitPower},
	{throttleBelowLimitThermal, cyclesBelowLimitThermal},
}

func (t *table) takeThrottles(v *values) {
	if s := v.of[throttleStatus]; len(s) > 0 {
		for _, r := range reasons {
			t.throttles = append(t.throttles, model.GPUCondition{Name: r.name, Active: s[0].raw&r.bits != 0})
		}
	}
	if t.cycles = v.of.first(cycles); t.cycles.Known {
		for _, r := range residencies {
			t.throttled = drm.Put(t.throttled, r.name, v.of.average(r.id))
		}
	}
}

// throttling converts the cycles that the firmware counted between two tables to seconds. The
// length of a cycle is unknown but constant.
type throttling struct {
	last    table
	seconds map[string]float64 // since the sensor started
}

// add returns the throttled seconds by reason since the first table, and whether each reason
// was active between the last two tables; nil if the table has no counters.
func (s *throttling) add(t table) (seconds []model.Figure, now []model.GPUCondition) {
	last := s.last
	s.last = t
	if !t.cycles.Known {
		return nil, t.throttles
	}
	if s.seconds == nil {
		s.seconds = map[string]float64{}
	}
	// Most counters have 32 bits; they restart with the driver.
	cycles := uint32(t.cycles.Value) - uint32(last.cycles.Value)
	elapsed := t.clock - last.clock
	for _, r := range t.throttled {
		var n uint32
		if before, ok := find(last.throttled, r.Name); ok && last.cycles.Known && elapsed > 0 {
			n = uint32(uint64(r.Value)) - uint32(uint64(before))
		}
		if n > 0 && n <= cycles {
			s.seconds[r.Name] += elapsed * float64(n) / float64(cycles)
		} else {
			n = 0
		}
		seconds = append(seconds, model.Figure{Name: r.Name, Value: s.seconds[r.Name]})
		now = append(now, model.GPUCondition{Name: r.Name, Active: n > 0})
	}
	return seconds, now
}

func find(values []model.Figure, name string) (float64, bool) {
	for _, f := range values {
		if f.Name == name {
			return f.Value, true
		}
	}
	return 0, false
}
