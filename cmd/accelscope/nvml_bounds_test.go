// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
)

// TestNVMLImpossibleValues lets a fake driver report success with what is no value, as drivers did: all ones, text in place of a number,
// and DCGM's numbers for no value.
func TestNVMLImpossibleValues(t *testing.T) {
	t.Parallel()
	binary, library := buildNVML(t)
	const ones = uint32(math.MaxUint32)
	n := startGPUs(t, binary, library, time.Second, func(n *gpuNode) {
		n.Set("1", "nvmlDeviceGetUtilizationRates", 808334905, ones)
		for _, function := range []string{
			"nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetClockInfo.0", "nvmlDeviceGetFanSpeed",
			"nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkWidth",
		} {
			n.Set("1", function, ones)
		}
		n.Set("1", "nvmlDeviceGetMemoryInfo", 85520809984, uint64(18446744073709551000), 4839178240)
		n.Set("1", "memory_v2", 85520809984, 577765376, uint64(18446744073709551000), 4261412864)
		n.Set("1", "gpm.1", 140737488355328)
		n.Set("1", "gpm.20", 9223372036854775792)
	})
	defer ends(t, n.stop)
	n.listening(t)
	bad, good := nvml.UUID(1), nvml.UUID(0)
	values := func(e exposition) map[string]float64 {
		return e.by("accelscope_values_dropped_total", "source", "value")
	}
	e := n.until(t, "values of the first rounds are left out", func(e exposition) bool {
		v := values(e)
		return v["nvidia pcie_rate"] > 0 && v["nvidia engine"] > 0 && v["nvidia memory_free"] > 0 && v["nvidia power_limit"] > 0 &&
			e.by("gpu_pcie_receive_bytes_per_second", "uuid")[bad] > 0
	})
	for _, family := range []string{
		"gpu_utilization", "gpu_power_watts", "gpu_power_limit_watts", "gpu_fan_speed_ratio", "gpu_pcie_link_generation",
		"gpu_pcie_link_max_width_lanes", "gpu_memory_free_bytes", "gpu_pcie_transmit_bytes_per_second",
	} {
		got := e.by(family, "uuid")
		if v, there := got[bad]; there {
			t.Errorf("%s is %v", family, v)
		}
		if _, there := got[good]; !there && family != "gpu_fan_speed_ratio" {
			t.Errorf("%s of another GPU is absent", family)
		}
	}
	if v, there := e.by("gpu_clock_hertz", "uuid", "clock")[bad+" graphics"]; there {
		t.Errorf("the clock is %v", v)
	}
	if problems := problemsOf(e, bad); healthOf(e, bad) != 1 {
		t.Errorf("the GPU has %v", problems)
	}
	if report := n.doctor(t, binary, library); !strings.Contains(report, "left out because it cannot be: utilization 8.08335e+06") ||
		!strings.Contains(report, "left out because it cannot be: power 4.29497e+06 W") {
		t.Errorf("doctor:\n%s", report)
	}
}
