// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
)

// The tests of these files, nvml_*_test.go, run the program with a fake of NVIDIA's library, which it opens like the
// real one. The fake is enough to check attribution, the number of calls, and that a failing device affects only
// itself.

// cheap are the functions that a scrape may call, for each device once per scrape or as often as given.
var cheap = map[string]uint64{
	"nvmlDeviceGetUtilizationRates": 1, "nvmlDeviceGetTemperature": 1, "nvmlDeviceGetTemperatureV": 1,
	"nvmlDeviceGetMarginTemperature": 1, "nvmlDeviceGetPowerUsage": 1, "nvmlDeviceGetClockInfo": 4, "nvmlDeviceGetPerformanceState": 1,
	"nvmlDeviceGetFanSpeed": 1, "nvmlDeviceGetFieldValues": 1,
	"nvmlDeviceGetCurrentClocksEventReasons": 1, "nvmlDeviceGetCurrentClocksThrottleReasons": 1,
}

func TestNVML(t *testing.T) {
	binary, library := buildNVML(t)
	old, err := nvml.Build(t.Context(), t.TempDir(), true)
	if err != nil {
		t.Fatal(err)
	}

	t.Run("who uses what", func(t *testing.T) {
		t.Parallel()
		n := startGPUs(t, binary, library, time.Second, nil)
		defer ends(t, n.stop)
		n.listed(t)
		n.listening(t)
		// Utilization needs two samples.
		e := n.until(t, "utilization by containers", func(e exposition) bool {
			return len(e.used()) == nvml.GPUs-2 &&
				e.sum("gpu_engine_utilization_ratio", "engine", "sm_active") >= nvml.GPUs*0.5525+6*0.125-1e-9 // sum over GPUs and MIG devices
		})
		n.owners(t, e)
		conserved(t, e)
		golden(t, "gpu_node.txt", normalised(e))
		want := map[string]float64{}
		for _, p := range n.Processes {
			if !strings.Contains(p.Device, ":") { // the driver does not report it with MIG
				want[n.UUID(p.Device)] += float64(p.SM) / 100
			}
		}
		if diff := cmp.Diff(want, e.used(), cmpopts.EquateApprox(0, 1e-6)); diff != "" {
			t.Errorf("utilization by containers (-want +got):\n%s", diff)
		}

		// Processes start and end; one is unattributed, one has no value.
		gone := n.Processes[0]
		n.Processes = append(n.Processes[1:],
			nvml.Process{Device: "1", PID: 200, Memory: 1 << 30, SM: 10},            // of a service
			nvml.Process{Device: "2", PID: 99999, Memory: 1 << 30, SM: 10},          // of another pid namespace
			nvml.Process{Device: "7:3", PID: gone.PID, Memory: 1 << 28, Kinds: "G"}, // on another device now
		)
		n.Balance()
		n.write(t)
		next := n.until(t, "processes that came are shown", func(e exposition) bool {
			return e.sum("container_gpu_processes", "", "") == float64(len(n.Processes))
		})
		conserved(t, next)
		rising(t, e, next)
		// All values of a scrape are of the same time, while everything changes.
		for i := range 5 {
			for j := range n.Processes {
				n.Processes[j].Memory = uint64(i*j+1) << 20
			}
			n.Balance()
			n.write(t)
			time.Sleep(1100 * time.Millisecond)
			after := scrape(t, n.url)
			conserved(t, after)
			rising(t, next, after)
			next = after
		}
	})

	t.Run("what a scrape calls", func(t *testing.T) {
		t.Parallel()
		n := startGPUs(t, binary, library, time.Hour, nil)
		defer ends(t, n.stop)
		n.listed(t)
		for before := n.called(t); ; { // until the first round has ended
			time.Sleep(time.Second)
			now := n.called(t)
			if len(now.Since(before)) == 0 || onlyWaits(now.Since(before)) {
				break
			}
			before = now
		}
		const scrapes = 5
		before := n.called(t)
		for range scrapes {
			scrape(t, n.url)
			time.Sleep(1100 * time.Millisecond) // values are reused for 1 s
		}
		since := n.called(t).Since(before)
		total := uint64(0)
		for call, times := range since {
			device, function, _ := strings.Cut(call, " ")
			if strings.HasPrefix(function, "nvmlEventSetWait") {
				continue // called by a separate goroutine
			}
			total += times
			if most := cheap[function] * scrapes; device == nvml.System || times > most {
				t.Errorf("%d scrapes call %s %d times, want at most %d", scrapes, call, times, most)
			}
		}
		if total == 0 {
			t.Error("a scrape calls nothing at all")
		}
		t.Logf("%.1f calls per GPU and scrape", float64(total)/scrapes/nvml.GPUs)
	})

	t.Run("a library of 2020", func(t *testing.T) {
		t.Parallel()
		n := startGPUs(t, binary, old, time.Second, func(n *gpuNode) { n.Driver("450.80.02") })
		defer ends(t, n.stop)
		e := n.listed(t)
		n.owners(t, e)
		conserved(t, e)
		for _, family := range []string{
			"gpu_utilization", "gpu_temperature_celsius", "gpu_power_watts", "gpu_clock_hertz", "gpu_throttled",
			"gpu_memory_used_bytes", "gpu_energy_joules_total", "gpu_ecc_errors_total", "gpu_nvlink_up",
		} {
			if _, reported := e.by(family, "uuid")[nvml.UUID(0)]; !reported {
				t.Errorf("no %s", family)
			}
		}
		if got := e.by("gpu_driver_info", "version"); got["450.80.02"] != 1 {
			t.Errorf("driver: %v", got)
		}
	})

	t.Run("MIG is changed", func(t *testing.T) {
		t.Parallel()
		n := startGPUs(t, binary, library, time.Second, nil)
		defer ends(t, n.stop)
		e := n.listed(t)
		want := map[string]float64{}
		for _, d := range n.Devices() {
			id, parent := n.UUID(d), ""
			if gpu, _, is := strings.Cut(d, ":"); is {
				parent = n.UUID(gpu)
			}
			want[id+" "+d+" "+parent] = 1
		}
		if diff := cmp.Diff(want, e.by("gpu_info", "uuid", "gpu_id", "parent_uuid")); diff != "" {
			t.Errorf("devices (-want +got):\n%s", diff)
		}
		gone := n.UUID("7:3")
		n.SplitGPU(7, nvml.Profile3g)
		pid := n.Containers[0].PIDs[0]
		n.Processes = append(n.Processes, nvml.Process{Device: "7:0", PID: pid, Memory: 1 << 30})
		n.Balance()
		n.write(t)
		n.until(t, "the new MIG device", func(e exposition) bool { return e.by("gpu_info", "uuid", "profile")[n.UUID("7:0")+" 3g.40gb"] == 1 })
		e = n.listed(t)
		n.owners(t, e)
		conserved(t, e)
		if _, still := e.by("gpu_info", "uuid")[gone]; still {
			t.Error("a removed MIG device is still reported")
		}
	})
}

// used returns the utilization of the SMs of each GPU by containers.
func (e exposition) used() map[string]float64 {
	used := map[string]float64{}
	for _, m := range e.families["container_gpu_utilization_ratio"].GetMetric() {
		if label(m, "engine") == "sm" && label(m, "container_id") != "" && number(m) > 0 {
			used[label(m, "uuid")] += number(m)
		}
	}
	return used
}

// onlyWaits reports whether only events were requested.
func onlyWaits(c nvml.Calls) bool {
	for call := range c {
		if !strings.Contains(call, " nvmlEventSetWait") {
			return false
		}
	}
	return true
}

// normalised returns the series of a GPU and of one with MIG devices, without most of the links, and with ratios
// rounded to the accuracy of the samples.
func normalised(e exposition) string {
	shown := []string{nvml.UUID(0), nvml.UUID(5), nvml.UUID(6), "MIG-00ac0006-0000-5000-8000-000000000002"}
	var lines []string
	for name, f := range e.families {
		if !strings.HasPrefix(name, "gpu_") && !strings.HasPrefix(name, "container_gpu_") && !strings.HasPrefix(name, "DCGM_") {
			continue
		}
		lines = append(lines, fmt.Sprintf("# %s %s", name, strings.ToLower(f.GetType().String())))
		for _, m := range f.GetMetric() {
			id := label(m, "uuid") + label(m, "UUID")
			if link := label(m, "link"); id != "" && !slices.Contains(shown, id) || link != "" && link != "0" && link != "17" {
				continue
			}
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			v := number(m)
			if ago := float64(time.Now().Unix()) - v; name == "gpu_listed_timestamp_seconds" && ago < 30 {
				v = 0 // recently
			}
			if math.Abs(v) < 1000 {
				v = math.Round(v*1e6) / 1e6
			}
			lines = append(lines, fmt.Sprintf("%s{%s} %s", name, strings.Join(labels, ","), strconv.FormatFloat(v, 'g', -1, 64)))
		}
	}
	slices.SortFunc(lines, func(a, b string) int {
		return strings.Compare(strings.TrimPrefix(a, "# "), strings.TrimPrefix(b, "# "))
	})
	return strings.Join(lines, "\n") + "\n"
}

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares with testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}
