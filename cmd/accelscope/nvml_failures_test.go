// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/tests/fakes/nvml"
)

// TestNVMLFailures simulates failures of the driver and its library: each affects only its own device or function, and
// recovers without a restart.
func TestNVMLFailures(t *testing.T) {
	binary, library := buildNVML(t)

	t.Run("XIDs, and a GPU falls off the bus", func(t *testing.T) {
		t.Parallel()
		n := startGPUs(t, binary, library, time.Second, func(n *gpuNode) { n.XID("1", 13) }) // before the sensor reads
		defer ends(t, n.stop)
		n.listed(t)
		before := n.listening(t)
		n.XID("1", 31)
		n.XID("1", 31)
		n.XID("2", 43)
		n.XID("6:1", 94) // of a MIG instance
		n.write(t)
		e := n.until(t, "XIDs are counted", func(e exposition) bool { return e.sum("gpu_xid_errors_total", "", "") >= 4 })
		want := map[string]float64{nvml.UUID(1) + " 31": 2, nvml.UUID(2) + " 43": 1, n.UUID("6:1") + " 94": 1}
		got := e.by("gpu_xid_errors_total", "uuid", "xid")
		maps.DeleteFunc(got, func(_ string, v float64) bool { return v == 0 })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("XIDs (-want +got):\n%s", diff)
		}
		last := e.by("gpu_xid_last_timestamp_seconds", "uuid", "xid")[nvml.UUID(1)+" 31"]
		if age := time.Since(time.Unix(int64(last), 0)); age < -time.Second || age > time.Minute {
			t.Errorf("the last XID was %v ago", age)
		}
		if healthOf(e, nvml.UUID(1)) != 1 {
			t.Errorf("XID 31 is an error of a program, the GPU is reported as %v", problemsOf(e, nvml.UUID(1)))
		}

		n.XID("3", 79)
		n.Fail("3", "*", nvml.GPUIsLost)
		n.write(t)
		lost := nvml.UUID(3)
		e = n.until(t, "the GPU is reported as lost", func(e exposition) bool { return slices.Contains(problemsOf(e, lost), "lost") })
		if healthOf(e, lost) != 0 {
			t.Error("a GPU that is lost is healthy")
		}
		for _, family := range []string{"gpu_utilization", "gpu_temperature_celsius", "gpu_memory_used_bytes", "gpu_power_watts"} {
			if _, still := e.by(family, "uuid")[lost]; still {
				t.Errorf("%s of a GPU that is lost", family)
			}
		}
		if _, still := e.by("gpu_info", "uuid")[lost]; !still {
			t.Error("a GPU that is lost is not listed any more")
		}
		others(t, before, e, lost)
		rising(t, before, e)
		// The driver still reports events of the other GPUs, and the source does not poll.
		calls, began := n.called(t), time.Now()
		n.XID("4", 94)
		n.write(t)
		n.until(t, "an XID after that", func(e exposition) bool {
			return e.by("gpu_xid_errors_total", "uuid", "xid")[nvml.UUID(4)+" 94"] == 1
		})
		time.Sleep(2 * time.Second)
		waits, took := n.called(t).Since(calls).Of(nvml.System, "nvmlEventSetWait"), time.Since(began)
		if float64(waits) > 40*took.Seconds() { // two per GPU and second are correct
			t.Errorf("%d waits for events in %v", waits, took)
		}
	})

	t.Run("a call blocks for ever", func(t *testing.T) {
		t.Parallel()
		for _, function := range []string{"nvmlDeviceGetPowerUsage", "nvmlDeviceGetComputeRunningProcesses"} {
			t.Run(function, func(t *testing.T) {
				t.Parallel()
				n := startGPUs(t, binary, library, time.Second, nil)
				defer ends(t, n.stop)
				before := n.listed(t)
				n.Block("2", function)
				n.write(t)
				stuck := nvml.UUID(2)
				e := n.until(t, "the GPU is reported as stuck", func(e exposition) bool { return slices.Contains(problemsOf(e, stuck), "stuck") })
				others(t, before, e, stuck)
				for range 3 {
					time.Sleep(1100 * time.Millisecond)
					e = scrape(t, n.url)
					if e.nvidia() == "stuck" {
						t.Error("the source is reported as stuck")
					}
					others(t, before, e, stuck)
					conserved(t, e)
				}
				if _, still := e.by("gpu_utilization", "uuid")[stuck]; still {
					t.Error("the utilization of a GPU that is stuck")
				}
				bounded(t, n.url)
				if c := n.called(t); c.Blocked() > 0 {
					t.Errorf("a GPU is asked %d times though a call for it has not returned", c.Blocked())
				}
				n.Heal("2", function)
				n.write(t)
				e = n.until(t, "the GPU is reported when the call has returned", func(e exposition) bool {
					return healthOf(e, stuck) == 1 && e.sum("container_gpu_processes", "", "") == float64(len(n.Processes))
				})
				n.owners(t, e)
				// A call that blocks does not keep the sensor from ending.
				n.Block("2", function)
				n.write(t)
				time.Sleep(2 * time.Second)
			})
		}
	})

	t.Run("a GPU hangs, and then all calls wait", func(t *testing.T) {
		t.Parallel()
		var log *fakeLog
		n := startGPUs(t, binary, library, time.Second, func(n *gpuNode) { log = newFakeLog(t, n.Dir) })
		defer ends(t, n.stop)
		n.listed(t)
		only := func(gpu int) func(exposition) bool { // is stuck
			return func(e exposition) bool {
				blocked := e.by("accelscope_device_state", "source", "state")["nvidia blocked"]
				return slices.Equal(problemsOf(e, nvml.UUID(gpu)), []string{"stuck"}) && blocked == nvml.GPUs-1
			}
		}
		n.Block("2", "nvmlDeviceGetPowerUsage")
		n.write(t)
		n.until(t, "the GPU is reported as stuck", func(e exposition) bool { return slices.Contains(problemsOf(e, nvml.UUID(2)), "stuck") })
		n.Block(nvml.System, "*")
		n.write(t)
		e := n.until(t, "the GPU is reported as stuck, and the others as blocked", only(2))
		for i := range nvml.GPUs {
			_, reported := e.by("gpu_health", "uuid")[nvml.UUID(i)]
			if problems := problemsOf(e, nvml.UUID(i)); i != 2 && (reported || problems != nil) {
				t.Errorf("GPU %d waits for GPU 2: its health is reported, with the problems %v", i, problems)
			}
		}
		log.xid(4, 5, "119, pid=2, name=kworker/0:1, Timeout after 6s of waiting for RPC response from GPU5 GSP!")
		e = n.until(t, "the GPU is reported as stuck for which the driver waits", only(5))
		if got := e.by("gpu_faults_total", "uuid", "code")[nvml.UUID(5)+" 119"]; got != 1 {
			t.Errorf("%v faults of the kernel log are counted while NVML hangs", got)
		}
	})

	t.Run("the driver is reloaded", func(t *testing.T) {
		t.Parallel()
		n := startGPUs(t, binary, library, time.Second, nil)
		defer ends(t, n.stop)
		before := n.listed(t)
		// The driver is unloaded: this works only if no process has the library open.
		for i := range nvml.GPUs {
			if err := nvml.Unbind(n.SysFS(), n.ProcFS(), i); err != nil {
				t.Fatal(err)
			}
		}
		n.Fail(nvml.System, "*", nvml.DriverNotLoaded)
		n.write(t)
		n.until(t, "the GPUs are gone, and the library is given back", func(e exposition) bool {
			return len(e.families["gpu_utilization"].GetMetric()) == 0 && len(n.held(t)) == 0
		})
		// The driver is loaded again: a newer version, with one GPU less.
		n.Heal(nvml.System, "*")
		n.Driver("560.35.03")
		n.Remove("7")
		n.bind(t, nvml.GPUs-1)
		n.Balance()
		n.write(t)
		n.until(t, "the new driver", func(e exposition) bool { return e.by("gpu_driver_info", "version")["560.35.03"] == 1 })
		e := n.listed(t)
		n.owners(t, e)
		conserved(t, e)
		rising(t, before, e)
		if got := e.by("gpu_info", "uuid"); got[nvml.UUID(7)] != 0 || got[nvml.UUID(6)] != 1 {
			t.Errorf("GPUs: %v", got)
		}
		if got := n.called(t)["- dlopen"]; got < 2 {
			t.Errorf("the library was opened %d times", got)
		}
	})

	t.Run("a driver that comes later", func(t *testing.T) {
		t.Parallel()
		n := startGPUs(t, binary, library, time.Second, func(n *gpuNode) { n.Fail(nvml.System, "*", nvml.VersionMismatch) })
		defer ends(t, n.stop)
		e := scrape(t, n.url)
		if state := e.nvidia(); state == "ok" {
			t.Error("a library that does not match the driver is no failure")
		}
		n.Heal(nvml.System, "*")
		n.write(t)
		n.owners(t, n.listed(t))
	})

	t.Run("a GPU sleeps", func(t *testing.T) {
		t.Parallel()
		n := startGPUs(t, binary, library, time.Second, func(n *gpuNode) {
			if err := nvml.Suspend(n.SysFS(), 4, "suspended"); err != nil {
				t.Fatal(err)
			}
			n.Processes = slices.DeleteFunc(n.Processes, func(p nvml.Process) bool { return p.Device == "4" })
			n.Balance()
		})
		defer ends(t, n.stop)
		n.listed(t)
		time.Sleep(2 * time.Second)
		e := scrape(t, n.url)
		if c := n.called(t); c.Of("4", "nvml") != 0 {
			t.Errorf("a GPU that sleeps is asked: %v", c)
		}
		if got := e.by("gpu_suspended", "uuid"); got[nvml.UUID(4)] != 1 || got[nvml.UUID(0)] != 0 {
			t.Errorf("gpu_suspended: %v", got)
		}
		if err := nvml.Suspend(n.SysFS(), 4, "active"); err != nil {
			t.Fatal(err)
		}
		n.until(t, "a GPU that woke up", func(e exposition) bool {
			_, reported := e.by("gpu_utilization", "uuid")[nvml.UUID(4)]
			return reported
		})
		if err := nvml.Suspend(n.SysFS(), 4, "suspended"); err != nil {
			t.Fatal(err)
		}
		var before nvml.Calls
		n.until(t, "a GPU that went to sleep is left alone", func(exposition) bool { // calls in progress end
			before = n.called(t)
			time.Sleep(1500 * time.Millisecond)
			return n.called(t).Since(before).Of("4", "nvml") == 0
		})
		time.Sleep(2 * time.Second)
		scrape(t, n.url)
		if c := n.called(t).Since(before); c.Of("4", "nvml") != 0 {
			t.Errorf("a GPU that went to sleep is asked: %v", c)
		}
	})

	t.Run("a driver without persistence mode", func(t *testing.T) {
		t.Parallel()
		withoutPersistence(t, binary, library)
	})

	t.Run("XIDs during a release", func(t *testing.T) {
		t.Parallel()
		faultsDuringRelease(t, binary, library)
	})

	t.Run("a GPU hangs and another is lost", func(t *testing.T) {
		t.Parallel()
		n := startGPUs(t, binary, library, time.Second, nil)
		defer ends(t, n.stop)
		n.listed(t)
		before := n.listening(t)
		n.Block("2", "*")
		n.write(t)
		n.until(t, "the GPU is reported as stuck", func(e exposition) bool { return slices.Contains(problemsOf(e, nvml.UUID(2)), "stuck") })
		n.Fail("3", "*", nvml.GPUIsLost)
		n.write(t)
		n.until(t, "the GPU is reported as lost", func(e exposition) bool { return slices.Contains(problemsOf(e, nvml.UUID(3)), "lost") })
		time.Sleep(2 * time.Second) // the sensor registers for the events of the other GPUs again
		n.XID("4", 94)
		n.write(t)
		e := n.until(t, "an XID after that", func(e exposition) bool {
			return e.by("gpu_xid_errors_total", "uuid", "xid")[nvml.UUID(4)+" 94"] == 1
		})
		others(t, before, e, nvml.UUID(2), nvml.UUID(3))
		conserved(t, e)
	})

	t.Run("a GPU hangs from the start", func(t *testing.T) {
		t.Parallel()
		n := startGPUs(t, binary, library, time.Second, func(n *gpuNode) { n.Block("2", "nvmlDeviceGetName") })
		defer ends(t, n.stop)
		e := n.until(t, "the other GPUs", func(e exposition) bool { return len(e.by("gpu_utilization", "uuid")) == nvml.GPUs-3 })
		if healthOf(e, nvml.UUID(2)) == 1 {
			t.Error("a GPU that never answered is healthy")
		}
		// The first response of a GPU may take long.
		n.until(t, "the GPU is reported as stuck", func(e exposition) bool {
			return slices.Contains(problemsOf(e, nvml.UUID(2)), "stuck")
		})
		n.Heal("2", "nvmlDeviceGetName")
		n.write(t)
		n.owners(t, n.listed(t))
	})

	t.Run("the library hangs when it is opened", func(t *testing.T) {
		t.Parallel()
		n := startGPUs(t, binary, library, time.Second, func(n *gpuNode) { n.Block(nvml.System, "nvmlInit") })
		defer ends(t, n.stop)
		for range 2 {
			n.until(t, "the source answers for itself", func(e exposition) bool {
				if e.nvidia() == "ok" {
					t.Error("a library that hangs is reported as ok")
				}
				return e.nvidia() == "failed" // not stuck
			})
			time.Sleep(1100 * time.Millisecond)
		}
		n.Heal(nvml.System, "nvmlInit")
		n.write(t)
		n.owners(t, n.listed(t))
		n.Block(nvml.System, "nvmlEventSetWait")
		n.write(t)
		time.Sleep(time.Second) // the sensor shall end now
	})

	t.Run("no library, no driver", func(t *testing.T) {
		t.Parallel()
		n := startGPUs(t, binary, "/does/not/exist.so", time.Second, nil)
		n.until(t, "/readyz says which library is missing", func(e exposition) bool {
			return e.nvidia() == "failed" && strings.Contains(ready(t, n.url), "/does/not/exist.so")
		})
		ends(t, n.stop)
		n = startGPUs(t, binary, "", time.Second, func(n *gpuNode) {
			for _, dir := range []string{"bus/pci/drivers/nvidia", "../proc/driver/nvidia"} {
				if err := os.RemoveAll(filepath.Join(n.SysFS(), dir)); err != nil {
					t.Fatal(err)
				}
			}
		})
		defer ends(t, n.stop)
		n.until(t, "there is no driver", func(e exposition) bool { return e.nvidia() == "absent" })
		if calls := n.called(t); len(calls) > 0 {
			t.Errorf("the library is opened without a driver: %v", calls)
		}
	})

	t.Run("what is wrong with GPUs", func(t *testing.T) {
		t.Parallel()
		want := map[string][]string{
			"0": {"ecc_uncorrected"}, "1": {"row_remap_pending"}, "2": {"row_remap_failure"}, "3": {"thermal_slowdown"},
			"4": {"pcie_degraded", "sram_threshold"}, "5": {"xid"}, "6": {"fabric", "recovery_action"}, "7": {"power_brake"},
		}
		n := startGPUs(t, binary, library, time.Second, func(n *gpuNode) {
			n.Set("0", "nvmlDeviceGetMemoryErrorCounter.1.0.2", 1)
			n.Set("1", "nvmlDeviceGetRemappedRows", 0, 1, 1, 0)
			n.Set("2", "nvmlDeviceGetRemappedRows", 0, 9, 0, 1)
			n.Set("3", "nvmlDeviceGetCurrentClocksEventReasons", 0x40|0x8)
			n.Set("4", "nvmlDeviceGetCurrPcieLinkWidth", 8)
			n.Set("4", "nvmlDeviceGetSramEccErrorStatus", strings.Repeat("0 ", 11)+"1")
			n.Unset("5", "field.230")                              // a driver that reports no recovery action
			n.Set("6", "nvmlDeviceGetGpuFabricInfoV", 3, 0, 0x4aa) // not in a partition
			n.Set("7", "nvmlDeviceGetCurrentClocksEventReasons", 0x80|0x8)
		})
		defer ends(t, n.stop)
		n.listed(t)
		n.listening(t)
		n.XID("5", 48)
		n.XID("7", 119) // the driver asks for no action
		n.Recovery("6", 1)
		n.write(t)
		e := n.until(t, "XIDs and the recovery action", func(e exposition) bool {
			return e.sum("gpu_xid_errors_total", "", "") == 2 && e.by("gpu_recovery_action", "uuid", "action")[nvml.UUID(6)+" reset"] == 1
		})
		for d, problems := range want {
			if got := problemsOf(e, n.UUID(d)); !slices.Equal(got, problems) {
				t.Errorf("GPU %s has the problems %v, want %v", d, got, problems)
			}
			if got := e.by("gpu_recovery_action", "uuid", "action"); d != "6" && d != "5" && got[n.UUID(d)+" none"] != 1 {
				t.Errorf("GPU %s: %v", d, got)
			}
			if healthy := healthOf(e, n.UUID(d)) == 1; healthy != (problems == nil) {
				t.Errorf("GPU %s is healthy: %v", d, healthy)
			}
		}
	})
}
