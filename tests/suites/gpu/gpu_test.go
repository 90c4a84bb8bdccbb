// SPDX-License-Identifier: Apache-2.0

//go:build gpu

package gpu

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/tests/tools/child"
)

func TestGPU(t *testing.T) {
	program := build(t)
	s := start(t, "--gpu.process-interval=1s", "--gpu.detail=full", "--metrics.compat=lens,dcgm", "--gpu.allocation-failures",
		"--collector.gpudriver")
	t.Run("device", s.device)
	t.Run("memory", func(t *testing.T) { s.memory(t, program) })
	t.Run("utilization", func(t *testing.T) { s.utilization(t, program) })
	t.Run("driver", func(t *testing.T) { s.driver(t, program) })
	t.Run("allocations", func(t *testing.T) { s.allocations(t, program) })
	t.Run("pytorch", s.pytorch)
	t.Run("faults", func(t *testing.T) { s.faults(t, program) })
	t.Run("mps", func(t *testing.T) { s.mps(t, program) })
	t.Run("child", s.childKilled)
	t.Run("release", s.release)
}

// device: the figures of the GPU equal nvidia-smi's.
func (s *sensor) device(t *testing.T) {
	want := query(t, "uuid", "name", "vbios_version", "driver_version", "memory.total", "memory.reserved", "power.limit",
		"clocks.max.sm", "clocks.max.memory", "pcie.link.gen.max", "pcie.link.width.max", "pcie.link.width.current",
		"ecc.errors.corrected.volatile.total", "ecc.errors.uncorrected.volatile.total",
		"ecc.errors.corrected.aggregate.total", "ecc.errors.uncorrected.aggregate.total",
		"temperature.gpu", "temperature.memory", "power.draw", "memory.used")
	m := s.scrape()
	uuid := fmt.Sprintf("uuid=%q", want["uuid"])
	for _, labels := range [][]string{
		{"gpu_info", uuid, fmt.Sprintf("name=%q", want["name"]), fmt.Sprintf("vbios=%q", want["vbios_version"])},
		{"gpu_driver_info", fmt.Sprintf("version=%q", want["driver_version"])},
	} {
		if len(m.all(labels[0], labels[1:]...)) != 1 {
			t.Errorf("no series %v in %v", labels, m.all(labels[0]))
		}
	}
	const mib, mega = 1 << 20, 1e6
	for _, x := range []struct {
		field     string
		unit      float64
		tolerance float64 // of nvidia-smi's rounded numbers, and of values that change
		metric    string
		labels    []string
	}{
		{"memory.total", mib, 0, "gpu_memory_total_bytes", nil},
		{"memory.reserved", mib, 1, "gpu_memory_reserved_bytes", nil},
		{"memory.used", mib, 1, "gpu_memory_used_bytes", nil},
		{"power.limit", 1, 0, "gpu_power_limit_watts", nil},
		{"clocks.max.sm", mega, 0, "gpu_clock_max_hertz", []string{`clock="sm"`}},
		{"clocks.max.memory", mega, 0, "gpu_clock_max_hertz", []string{`clock="memory"`}},
		{"pcie.link.gen.max", 1, 0, "gpu_pcie_link_max_generation", nil},
		{"pcie.link.width.max", 1, 0, "gpu_pcie_link_max_width_lanes", nil},
		{"pcie.link.width.current", 1, 0, "gpu_pcie_link_width_lanes", nil},
		{"ecc.errors.corrected.volatile.total", 1, 0, "gpu_ecc_errors_total", []string{`type="corrected"`, `scope="volatile"`}},
		{"ecc.errors.uncorrected.volatile.total", 1, 0, "gpu_ecc_errors_total", []string{`type="uncorrected"`, `scope="volatile"`}},
		{"ecc.errors.corrected.aggregate.total", 1, 0, "gpu_ecc_errors_total", []string{`type="corrected"`, `scope="aggregate"`}},
		{"ecc.errors.uncorrected.aggregate.total", 1, 0, "gpu_ecc_errors_total", []string{`type="uncorrected"`, `scope="aggregate"`}},
		{"temperature.gpu", 1, 3, "gpu_temperature_celsius", []string{`sensor="gpu"`}},
		{"temperature.memory", 1, 3, "gpu_temperature_celsius", []string{`sensor="memory"`}},
		{"power.draw", 1, 25, "gpu_power_watts", nil},
	} {
		got := m.sum(t, x.metric, append(x.labels, uuid)...) / x.unit
		if w := number(t, want[x.field]); math.Abs(got-w) > x.tolerance {
			t.Errorf("%s %v: %v, nvidia-smi has %v %s", x.metric, x.labels, got, w, x.field)
		}
	}
}

// memory: memory by process equals nvidia-smi's, and the shares add up to the GPU.
func (s *sensor) memory(t *testing.T, program string) {
	loads := []*load{enter(t, "large", program), enter(t, "small", program), outside(t, program)}
	for i, l := range loads {
		l.OK("start")
		l.OK("allocate %d", 4<<(30-i))
	}
	m := s.scrape()
	want := memoryByPID(t)
	for _, l := range loads[:2] {
		got := m.sum(t, "container_gpu_memory_used_bytes", l.container)
		if got != want[l.Process.Pid] || got < 1<<30 {
			t.Errorf("memory of %s: %v, nvidia-smi has %v", l.container, got, want)
		}
		if n := m.sum(t, "container_gpu_processes", l.container); n != 1 {
			t.Errorf("%v processes in %s", n, l.container)
		}
	}
	// The program outside belongs to the system, or to a workload if its cgroup has one.
	shares := total(m.all("container_gpu_memory_used_bytes"))
	if used := m.sum(t, "gpu_memory_used_bytes"); shares != used {
		t.Errorf("the shares of memory add up to %v, the GPU has %v", shares, used)
	}
	if n, w := m.sum(t, "gpu_processes"), float64(len(want)); n != w {
		t.Errorf("%v processes, nvidia-smi has %v", n, w)
	}
	t.Logf("%v", m.all("container_gpu_memory_used_bytes"))
}

// utilization: the busy processes of ten seconds, by the sensor and by nvidia-smi.
func (s *sensor) utilization(t *testing.T, program string) {
	busy, pausing, idle := enter(t, "busy", program), enter(t, "pausing", program), enter(t, "idle", program)
	for _, l := range []*load{busy, pausing, idle} {
		l.OK("start")
	}
	busy.OK("busy 20 0")
	pausing.OK("busy 50 50")
	time.Sleep(2 * time.Second)
	const seconds = 10
	wait := startPmon(t, seconds)
	got := map[*load]float64{}
	for range seconds {
		text, err := s.get("/metrics")
		if err != nil {
			t.Fatal(err)
		}
		if all := total(metrics(text).all("container_gpu_utilization_ratio", `engine="sm"`)); all > 1 {
			t.Errorf("the shares of the multiprocessors add up to %v", all)
		}
		for _, l := range []*load{busy, pausing, idle} {
			got[l] += metrics(text).sum(t, "container_gpu_utilization_ratio", l.container, `engine="sm"`) / seconds
		}
		time.Sleep(time.Second)
	}
	want := wait()
	for name, l := range map[string]*load{"busy": busy, "pausing": pausing, "idle": idle} {
		t.Logf("SM of the program that is %s: %.3f, nvidia-smi has %.3f", name, got[l], want[l.Process.Pid])
		if math.Abs(got[l]-want[l.Process.Pid]) > 0.15 {
			t.Errorf("SM of the program that is %s: %v, nvidia-smi has %v", name, got[l], want[l.Process.Pid])
		}
	}
	if got[idle] != 0 || got[pausing] == 0 || got[busy] < 2*got[pausing] {
		t.Error("the busy program is not the busy one")
	}
	if m := s.scrape(); m.sum(t, "gpu_engine_utilization_ratio", `engine="sm_active"`) < 0.9 {
		t.Errorf("engines: %v", m.all("gpu_engine_utilization_ratio"))
	}
}

// driver: ioctls, opens and open files of the device nodes equal the program's counts.
func (s *sensor) driver(t *testing.T, program string) {
	l := enter(t, "driver", program)
	l.OK("start")
	l.OK("allocate %d", 64<<20)
	want := l.counts()
	t.Logf("the program counts %+v", want)
	eventually(t, func() error { // open files are listed every 5 seconds
		m := s.scrape()
		if got := m.all("container_device_handles", l.container, `class="nvidia"`); total(got) != want.handles || want.handles == 0 {
			return fmt.Errorf("%v open files, the program counts %v: %v, %v", total(got), want.handles, got, nodes(t, l.Process.Pid))
		}
		return nil
	})
	t.Run("probes", func(t *testing.T) { s.counted(t, l, want) })
}

// counted: ioctls and opens, which need kprobes.
func (s *sensor) counted(t *testing.T, l *load, want counts) {
	const kprobes = "/sys/bus/event_source/devices/kprobe"
	if _, err := os.Stat(kprobes); err != nil {
		t.Skip("ioctls and opens are not counted: ", err)
	}
	m := s.scrape()
	for driver, n := range want.ioctls {
		got := m.sum(t, "container_gpu_driver_ioctl_duration_seconds_count", l.container, fmt.Sprintf("driver=%q", driver))
		if got != n || n == 0 {
			t.Errorf("%v ioctls of %s, the program counts %v", got, driver, n)
		}
	}
	if got := m.sum(t, "container_device_opens_total", l.container, `class="nvidia"`, `result="allowed"`); got != want.opens || got == 0 {
		t.Errorf("%v opens, the program counts %v: %v", got, want.opens, m.all("container_device_opens_total", l.container))
	}
}

// allocations: exactly the calls that fail for lack of memory are counted, with functions from the library and from
// cuGetProcAddress.
func (s *sensor) allocations(t *testing.T, program string) {
	const failures, bytes, tib = "container_gpu_allocation_failures_total", "container_gpu_allocation_failed_bytes_total", 1 << 40
	first := enter(t, "first", program) // the library is probed once a process has it
	first.OK("start")
	time.Sleep(3 * time.Second)
	for _, through := range []string{"library", "driver"} {
		l := enter(t, "allocations through "+through, program)
		l.OK("start")
		l.OK("through %s", through)
		for function, api := range map[string]string{
			"cuMemAlloc_v2": "cuMemAlloc", "cuMemAllocPitch_v2": "cuMemAllocPitch", "cuMemAllocAsync": "cuMemAllocAsync",
			"cuMemAllocFromPoolAsync": "cuMemAllocFromPoolAsync", "cuMemCreate": "cuMemCreate",
		} {
			for _, c := range []struct{ count, size, failures uint64 }{{3, tib, 3}, {2, 8 << 20, 0}} {
				if n := l.Failures("call %s %d %d", function, c.count, c.size); n != c.failures {
					t.Errorf("%s of %d bytes: %d failures", function, c.size, n)
				}
			}
			m := s.scrape()
			label := fmt.Sprintf("api=%q", api)
			if n := m.sum(t, failures, l.container, label); n != 3 {
				t.Errorf("%s through the %s: %v failures, want 3", api, through, n)
			}
			if n := m.sum(t, bytes, l.container, label); n != 3*tib {
				t.Errorf("%s through the %s: %v bytes, want 3 TiB", api, through, n)
			}
		}
	}
}

// With memory in its cache, PyTorch frees the cache and retries.
const pytorch = `import sys, torch
for line in sys.stdin:
    try:
        torch.empty(int(line), dtype=torch.uint8, device="cuda")
        print("ok", flush=True)
    except torch.OutOfMemoryError:
        print("out of memory", flush=True)`

// pytorch: a failed allocation counts as often as PyTorch asks CUDA's runtime.
func (s *sensor) pytorch(t *testing.T) {
	if err := child.Command(t.Context(), "python3", "-c", "import torch").Run(); err != nil {
		t.Skip("without PyTorch: ", err)
	}
	l := enter(t, "pytorch", "python3", "-c", pytorch)
	l.OK("%d", 1<<30)
	time.Sleep(3 * time.Second)
	if answer := l.Do("%d", 1<<40); answer != "out of memory" {
		t.Fatal(answer)
	}
	m := s.scrape()
	t.Logf("%v", m.all("container_gpu_allocation_failures_total", l.container))
	if n := m.sum(t, "container_gpu_allocation_failures_total", l.container, `api="cuMemAlloc"`); n != 2 {
		t.Errorf("%v failures, want 2", n)
	}
}

var xidLine = regexp.MustCompile(`NVRM: Xid \(.*\): (\d+), (?:pid=(\d+))?`)

// faults: failing kernels appear by XID, from NVML and from the kernel log, where they count for the container.
func (s *sensor) faults(t *testing.T, program string) {
	for _, kind := range []string{"write", "misaligned", "trap"} {
		l := enter(t, "fault "+kind, program)
		l.OK("start")
		log := kernelLog(t)
		before := s.scrape()
		t.Logf("%s: %s", kind, l.Do("fault %s", kind))
		after := s.scrape()
		var logged []string
		xids, named := map[string]int{}, map[string]int{} // records, and records with the process
		for {
			record := make([]byte, 8192)
			n, err := unix.Read(log, record)
			if err != nil {
				break
			}
			if m := xidLine.FindSubmatch(record[:n]); m != nil {
				logged = append(logged, string(bytes.TrimSpace(record[:n])))
				xids[string(m[1])]++
				switch string(m[2]) {
				case strconv.Itoa(l.Process.Pid):
					named[string(m[1])]++
				case "":
				default:
					t.Errorf("the log names another process than %d: %s", l.Process.Pid, m[0])
				}
			}
		}
		t.Logf("%s:\n%s", kind, strings.Join(logged, "\n"))
		if len(xids) == 0 {
			t.Errorf("%s: no XID in the kernel log", kind)
		}
		for xid, lines := range xids {
			grown := func(name string, labels ...string) (n float64) {
				for series, v := range after.all(name, labels...) {
					n += v - before.all(name)[series]
				}
				return n
			}
			nvml := grown("gpu_xid_errors_total", fmt.Sprintf("xid=%q", xid))
			device := grown("gpu_faults_total", fmt.Sprintf("code=%q", xid))
			mine := grown("container_gpu_faults_total", fmt.Sprintf("code=%q", xid), l.container)
			t.Logf("%s: XID %s: %d lines, NVML %v, kernel log %v, of the container %v", kind, xid, lines, nvml, device, mine)
			if nvml != 1 || int(device) != lines || int(mine) != named[xid] || mine == 0 {
				t.Errorf("%s: XID %s is counted otherwise", kind, xid)
			}
		}
	}
}

// kernelLog opens the kernel log at its end.
func kernelLog(t *testing.T) int {
	t.Helper()
	fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if _, err := unix.Seek(fd, 0, unix.SEEK_END); err != nil {
		t.Fatal(err)
	}
	return fd
}

// childKilled: another child replaces it, and no counter falls.
func (s *sensor) childKilled(t *testing.T) {
	before := s.scrape()
	pids := children(t)
	if len(pids) != 1 {
		t.Fatalf("processes that read NVML: %v", pids)
	}
	t.Logf("it has open: %v", nodes(t, pids[0]))
	if err := unix.Kill(pids[0], unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	eventually(t, func() error {
		text, err := s.get("/metrics")
		if err == nil && (len(metrics(text).all("gpu_power_watts")) == 0 || len(children(t)) == 0 || children(t)[0] == pids[0]) {
			err = fmt.Errorf("no figures of the GPU: %v", metrics(text).all("accelscope_source_state", `source="nvidia"`))
		}
		return err
	})
	t.Logf("figures again after %v", time.Since(begin).Round(10*time.Millisecond))
	after := s.scrape()
	if n := after.sum(t, "accelscope_child_ends_total", `reason="crash"`); n != 1 {
		t.Errorf("%v crashes", n)
	}
	for _, name := range []string{"gpu_xid_errors_total", "gpu_faults_total", "gpu_energy_joules_total", "gpu_ecc_errors_total"} {
		for series, v := range before.all(name) {
			if now, ok := after.all(name)[series]; !ok || now < v {
				t.Errorf("%s%s fell from %v to %v (%v)", name, series, v, now, ok)
			}
		}
	}
}

// release: no process of the sensor has a device node open, and figures return afterwards.
func (s *sensor) release(t *testing.T) {
	binary, socket := os.Getenv("ACCELSCOPE_BINARY"), "--gpu.control-socket="+s.socket
	if pids := children(t); len(pids) != 1 || len(nodes(t, pids[0])) == 0 {
		t.Fatalf("processes that read NVML: %v", pids)
	}
	t.Logf("%s", run(t, binary, "gpu", "release", "--for=1m", socket))
	if pids := children(t); len(pids) != 0 {
		t.Errorf("still there: %v", pids)
	}
	if open := nodes(t, s.cmd.Process.Pid); len(open) != 0 {
		t.Errorf("still open: %v", open)
	}
	m := s.scrape()
	if len(m.all("gpu_info")) != 1 || len(m.all("gpu_power_watts")) != 0 {
		t.Errorf("released: %v %v", m.all("gpu_info"), m.all("gpu_power_watts"))
	}
	t.Logf("%s", run(t, binary, "gpu", "resume", socket))
	if m := s.scrape(); len(m.all("gpu_power_watts")) != 1 {
		t.Error("no figures after the end of the release")
	}
}

// children returns the processes that read NVML.
func children(t *testing.T) (pids []int) {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		comm, _ := os.ReadFile(name) // a process may have ended
		if strings.HasPrefix(string(comm), "accelscope-nvml") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
			pids = append(pids, pid)
		}
	}
	return pids
}

// nodes returns how often a process has each of NVIDIA's device nodes open.
func nodes(t *testing.T, pid int) map[string]int {
	t.Helper()
	open := map[string]int{}
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if to, _ := os.Readlink(link); strings.HasPrefix(to, "/dev/nvidia") {
			open[to]++
		}
	}
	return open
}
