// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestDCGMNames compares the names that the program exports for a fake GPU that reports everything with docs/gpus.md, which a
// test of pkg/metrics compares with the recorded names of dcgm-exporter.
func TestDCGMNames(t *testing.T) {
	t.Parallel()
	binary, library := buildNVML(t)
	page, err := os.ReadFile("../../docs/gpus.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	exported := regexp.MustCompile("(?m)^- [^;:`\n]+(?:; approximated)?: `(DCGM_\\w+(?:`, `DCGM_\\w+)*)`")
	for _, list := range exported.FindAllStringSubmatch(string(page), -1) {
		documented = append(documented, strings.Split(list[1], "`, `")...)
	}
	slices.Sort(documented)
	n := startGPUs(t, binary, library, time.Second, func(n *gpuNode) {
		// What an H100 lacks: a field or a metric of other chips, and what only a defective one has.
		for id, v := range map[int]int{37: 1, 47: 1, 51: 1, 100: 10, 101: 11, 102: 8, 103: 9} {
			n.Set("0", fmt.Sprint("gpm.", id), v)
		}
		// Payload of all NVLinks, sent and received: KiB per second.
		n.Set("0", fmt.Sprint("field.138.", uint32(math.MaxUint32)), "r", 1_500_000)
		n.Set("0", fmt.Sprint("field.139.", uint32(math.MaxUint32)), "r", 1_000_000)
		n.Set("0", "nvmlDeviceGetRetiredPages.0", 3)
		n.Set("0", "nvmlDeviceGetRetiredPages.1", 2)
		n.Set("0", "nvmlDeviceGetRetiredPagesPendingStatus", 1)
	})
	defer ends(t, n.stop)
	names := func(e exposition) (exported []string) {
		for name := range e.families {
			if strings.HasPrefix(name, "DCGM_") {
				exported = append(exported, name)
			}
		}
		slices.Sort(exported)
		return exported
	}
	n.listening(t)
	e := n.until(t, "rates and engines of GPM, which need two rounds", func(e exposition) bool {
		return e.sum("DCGM_FI_PROF_NVLINK_TX_BYTES", "gpu", "0") > 0 && len(e.families["DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"].GetMetric()) > 0
	})
	if diff := cmp.Diff(documented, names(e)); diff != "" {
		t.Errorf("names (-documented +exported):\n%s", diff)
	}
	const mib = 1 << 20
	for name, want := range map[string]float64{
		"PROF_PCIE_TX_BYTES": 100 * mib, "PROF_PCIE_RX_BYTES": 200 * mib, "PROF_NVLINK_RX_BYTES": 300 * mib, "PROF_NVLINK_TX_BYTES": 400 * mib,
		"PROF_C2C_TX_ALL_BYTES": 10 * mib, "PROF_C2C_RX_ALL_BYTES": 11 * mib, "PROF_C2C_TX_DATA_BYTES": 8 * mib, "PROF_C2C_RX_DATA_BYTES": 9 * mib,
		"PROF_SM_ACTIVE": 0.5525, "PROF_SM_OCCUPANCY": 0.3, "PROF_PIPE_INT_ACTIVE": 0.035, "PROF_PIPE_TENSOR_HMMA_ACTIVE": 0.18,
		"PROF_NVDEC6_ACTIVE": 0.06, "PROF_NVJPG6_ACTIVE": 0.16, "PROF_NVOFA0_ACTIVE": 0.05,
		"DEV_RELIABILITY_VIOLATION": 5e9, "DEV_LOW_UTIL_VIOLATION": 4e9, "DEV_RETIRED_SBE": 3, "DEV_RETIRED_DBE": 2, "DEV_RETIRED_PENDING": 1,
		"DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": 1, "DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": 2,
	} {
		if got, ok := e.by("DCGM_FI_"+name, "gpu")["0"]; !ok || got < want-1e-9 || got > want+1e-9 {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	n.XID("5", 31)
	n.write(t)
	n.until(t, "the XID", func(e exposition) bool { return e.by("DCGM_FI_DEV_XID_ERRORS", "gpu", "err_code")["5 31"] == 31 })
	// The difference of the clocks of library and sensor is an error of the rate, larger on a busy machine.
	n.until(t, "the rate of all NVLinks in MB/s, as DCGM counts them", func(e exposition) bool {
		got := e.by("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "gpu")
		return math.Abs(got["0"]-2500) < 10 && got["5"] == 0
	})
}
