// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// nvidiaRelease runs accelscope gpu release under a sensor that reads the GPU and has hooks in the driver and in the
// kernel. The driver is unloaded and loaded again. During another release, the kernel log has the faults.
func (n node) nvidiaRelease(t *testing.T) {
	d := newStubDriver(t)
	d.makeNodes()
	d.load("550.1")
	d.kernelLogs(d.xid("48, pid=1, name=init, DBE (double bit error)")) // before the start
	s := start(t, "--collector.gpudriver", "--gpu.nvml-library="+os.Getenv(nvmlVar), "--gpu.process-interval=1s")
	d.read(s, "550.1")
	s.hooked("nvidia_unlocked_ioctl", "ok")
	d.refuses()
	d.release()
	d.unload()
	d.load("551.1") // ends the release
	d.read(s, "551.1")
	s.hooked("nvidia_unlocked_ioctl", "ok")
	d.faults(s)
	d.flood(s)
	s.stop()
	d.unload()
}

// release runs accelscope gpu release. When it has returned, the driver must not be in use: tools look once.
func (d *stubDriver) release() {
	d.t.Helper()
	begin := time.Now()
	out := sh(d.t, os.Getenv(binaryVar), "gpu", "release", "--for=5m")
	users, took := d.users(), time.Since(begin)
	d.t.Logf("%s: reference count %s after %v", strings.TrimSpace(out), users, took.Round(time.Millisecond))
	if users != "0" {
		d.t.Errorf("reference count %s when the release has returned", users)
	}
}

func (d *stubDriver) kernelLogs(texts ...string) {
	d.t.Helper()
	for _, text := range texts {
		d.write("/sys/module/nvidia/parameters/log", text)
	}
}

// xid returns what the driver logs about an XID of the GPU.
func (d *stubDriver) xid(text string) string {
	return "NVRM: Xid (PCI:" + strings.TrimSuffix(d.address, ".0") + "): " + text
}

// faults compares faults that the kernel logs, during a release too, with the metrics of the device and of the container with the
// process that they name. A fault that a program writes to the kernel log does not count.
func (d *stubDriver) faults(s *sensor) {
	t := d.t
	c := enter(t, "faults", "sh", "-c", "echo ready; exec sleep 300")
	c.line(t, "ready")
	process := fmt.Sprintf("pid=%d, name=sleep", c.cmd.Process.Pid)
	counted := func(want map[string]float64) metrics {
		t.Helper()
		var m metrics
		took := eventually(t, 30*time.Second, func() error {
			m = s.scrape()
			got := m.by("gpu_faults_total", "code")
			maps.Copy(got, m.by("rdma_faults_total", "code"))
			if diff := cmp.Diff(want, got); diff != "" {
				return fmt.Errorf("faults (-want +got):\n%s", diff)
			}
			return nil
		})
		t.Logf("counted after %v: %v", took.Round(time.Millisecond), want)
		return m
	}
	eventually(t, 30*time.Second, func() error {
		if len(s.scrape().all("gpu_problem", "problem", "xid")) == 0 {
			return fmt.Errorf("the sensor does not wait for XIDs")
		}
		return nil
	})
	d.gpus.XID("0", 31) // NVML reports the XID, and the driver logs it
	if err := d.gpus.Write(); err != nil {
		t.Fatal(err)
	}
	d.kernelLogs(d.xid("31, " + process + ", Ch 00000010, intr 00000000. MMU Fault: ENGINE GRAPHICS"))
	m := counted(map[string]float64{"48": 0, "31": 1})
	if m.sum("gpu_fault_last_timestamp_seconds", "code", "48") == 0 {
		t.Error("the time of the fault from before the start is missing")
	}
	eventually(t, 30*time.Second, func() error {
		if got := s.scrape().sum("gpu_xid_errors_total", "xid", "31"); got != 1 {
			return fmt.Errorf("%v XIDs of NVML", got)
		}
		return nil
	})

	d.release()
	const none, reset = "0x0 (None)", "0x1 (GPU Reset Required)"
	write(t, "/dev/kmsg", "<3>"+d.xid("79, "+process+", GPU has fallen off the bus.\n")) // by a program, before the others
	d.kernelLogs(
		d.xid("31, "+process+", Ch 00000011, intr 00000000. MMU Fault: ENGINE CE0"),
		d.xid("154, "+process+", GPU recovery action changed from "+none+" to "+reset),
		d.xid("154, "+process+", GPU recovery action changed from "+reset+" to "+none),
		"nvidia-nvswitch0: SXid (PCI:"+d.address+"): 20034, Fatal, Link 30 LTSSM Fault Up",
		"amdgpu "+d.address+": amdgpu: ring gfx_0.0.0 timeout, signaled seq=10, emitted seq=12",
		fmt.Sprintf("amdgpu %s: amdgpu: Process information: process sleep pid %d thread sleep pid %[2]d", d.address, c.cmd.Process.Pid),
		fmt.Sprintf("i915 %s: [drm] GPU HANG: ecode 12:1:84dffffb, in sleep [%d]", d.address, c.cmd.Process.Pid),
		fmt.Sprintf("xe %s: [drm] GT0: Timedout job: seqno=4294967169, lrc_seqno=4294967169, guc_id=2, flags=0x0 in sleep [%d]",
			d.address, c.cmd.Process.Pid),
		// mlx5 logs the running process, which is not a culprit.
		fmt.Sprintf("mlx5_core %s: print_health_info:430:(pid %d): Health issue observed, firmware internal error, severity(3) ERROR:",
			d.address, c.cmd.Process.Pid),
	)
	want := map[string]float64{"48": 0, "31": 2, "154": 1, "20034": 1, "ring_timeout": 1, "hang": 1, "job_timeout": 1, "health": 1}
	counted(want)
	kill(c)
	d.kernelLogs(d.xid("43, " + process + ", Ch 00000011")) // of the process that has ended
	want["43"] = 1
	m = counted(want)
	if got := m.by("accelscope_source_state", "state", "source", "nvidia"); got["released"] != 1 {
		t.Errorf("state %v", got)
	}
	own := map[string]float64{"31": 2, "154": 1, "ring_timeout": 1, "hang": 1, "job_timeout": 1, "43": 1}
	if diff := cmp.Diff(own, m.by("container_gpu_faults_total", "code", "container_id", c.id)); diff != "" {
		t.Errorf("faults of the container (-want +got):\n%s", diff)
	}
	if got := m.sum("gpu_faults_total", "uuid", d.gpus.UUID("0"), "driver", "nvidia"); got != 4 {
		t.Errorf("%v faults have the UUID of the GPU, want 4", got)
	}
	if got := m.sum("gpu_fault_recovered_timestamp_seconds", "code", "154"); time.Since(time.Unix(int64(got), 0)) > time.Minute {
		t.Errorf("the GPU recovered at %v", got)
	}
	if got := m.sum("gpu_xid_errors_total", "xid", "31"); got != 1 {
		t.Errorf("%v XIDs of NVML, want 1", got)
	}
}
