// SPDX-License-Identifier: Apache-2.0

//go:build vm

package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/tests/machines/vm/guest"
)

// kernelValues are the values in the kernel's files, by the text of the series that must have the same value.
type kernelValues map[string]float64

type kernel struct {
	kernelValues
	dir func(controller string) string
	err error
}

func (k *kernel) text(controller, file string) string {
	text, err := os.ReadFile(filepath.Join(k.dir(controller), file))
	if err != nil {
		k.err = errors.Join(k.err, err)
	}
	return strings.TrimSpace(string(text))
}

// number reads a file with one number, or a word that stands for "no limit".
func (k *kernel) number(controller, file string) float64 {
	return k.parse(k.text(controller, file))
}

func (k *kernel) parse(text string) float64 {
	if text == "max" || text == "-1" || text == "9223372036854771712" {
		return 0 // as cAdvisor exports it
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		k.err = errors.Join(k.err, err)
	}
	return v
}

func (k *kernel) pairs(controller, file string) map[string]float64 {
	out := map[string]float64{}
	for line := range strings.Lines(k.text(controller, file)) {
		if f := strings.Fields(line); len(f) == 2 {
			out[f[0]] = k.parse(f[1])
		}
	}
	return out
}

// total returns the time in a pressure file after "some" or "full", in seconds.
func (k *kernel) total(file, kind string) float64 {
	for line := range strings.Lines(k.text("", file)) {
		f := strings.Fields(line)
		if len(f) == 5 && f[0] == kind {
			return k.parse(strings.TrimPrefix(f[4], "total=")) / 1e6
		}
	}
	k.err = errors.Join(k.err, fmt.Errorf("%s has no line %s", file, kind))
	return 0
}

func readV2(cgroup string) (kernelValues, error) {
	k := &kernel{kernelValues: kernelValues{}, dir: func(string) string { return filepath.Join("/sys/fs/cgroup", cgroup) }}
	f := k.kernelValues
	cpu := k.pairs("", "cpu.stat")
	f["container_cpu_usage_seconds_total"] = cpu["usage_usec"] / 1e6
	f["container_cpu_user_seconds_total"] = cpu["user_usec"] / 1e6
	f["container_cpu_system_seconds_total"] = cpu["system_usec"] / 1e6
	if limit := strings.Fields(k.text("", "cpu.max")); len(limit) == 2 && limit[0] != "max" {
		f["container_spec_cpu_quota"], f["container_spec_cpu_period"] = k.parse(limit[0]), k.parse(limit[1])
		f["container_cpu_cfs_periods_total"] = cpu["nr_periods"]
		f["container_cpu_cfs_throttled_periods_total"] = cpu["nr_throttled"]
		f["container_cpu_cfs_throttled_seconds_total"] = cpu["throttled_usec"] / 1e6
	}
	memory, events := k.pairs("", "memory.stat"), k.pairs("", "memory.events")
	f["container_memory_usage_bytes"] = k.number("", "memory.current")
	if _, err := os.Stat(filepath.Join(k.dir(""), "memory.peak")); err == nil { // exists since 5.19
		f["container_memory_max_usage_bytes"] = k.number("", "memory.peak")
	}
	f["container_memory_working_set_bytes"] = f["container_memory_usage_bytes"] - memory["inactive_file"]
	f["container_memory_rss"] = memory["anon"]
	f["container_memory_cache"] = memory["file"]
	f["container_memory_mapped_file"] = memory["file_mapped"]
	f["container_spec_memory_limit_bytes"] = k.number("", "memory.max")
	f["container_oom_events_total"] = events["oom_kill"]
	f["container_memory_failcnt"] = events["max"]
	f["container_threads"] = k.number("", "pids.current")
	f["container_threads_max"] = k.number("", "pids.max")
	f["container_processes"] = float64(len(strings.Fields(k.text("", "cgroup.procs"))))
	for _, what := range []string{"cpu", "memory", "io"} {
		f["container_pressure_"+what+"_waiting_seconds_total"] = k.total(what+".pressure", "some")
		if strings.Contains(k.text("", what+".pressure"), "full ") { // exists for the CPU since 5.13
			f["container_pressure_"+what+"_stalled_seconds_total"] = k.total(what+".pressure", "full")
		}
	}
	for line := range strings.Lines(k.text("", "io.stat")) {
		device, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		if device != nullDevice() {
			continue
		}
		for pair := range strings.FieldsSeq(rest) {
			name, value, _ := strings.Cut(pair, "=")
			if metric, ok := map[string]string{
				"rbytes": "container_fs_reads_bytes_total", "wbytes": "container_fs_writes_bytes_total",
				"rios": "container_fs_reads_total", "wios": "container_fs_writes_total",
			}[name]; ok {
				f[metric] = k.parse(value)
			}
		}
	}
	return f, k.err
}

func readV1(cgroup string) (kernelValues, error) {
	k := &kernel{kernelValues: kernelValues{}, dir: func(controller string) string {
		return filepath.Join("/sys/fs/cgroup", controller, cgroup)
	}}
	f := k.kernelValues
	f["container_cpu_usage_seconds_total"] = k.number("cpuacct", "cpuacct.usage") / 1e9
	if quota := k.number("cpu", "cpu.cfs_quota_us"); quota != 0 {
		cpu := k.pairs("cpu", "cpu.stat")
		f["container_spec_cpu_quota"], f["container_spec_cpu_period"] = quota, k.number("cpu", "cpu.cfs_period_us")
		f["container_cpu_cfs_periods_total"] = cpu["nr_periods"]
		f["container_cpu_cfs_throttled_periods_total"] = cpu["nr_throttled"]
		f["container_cpu_cfs_throttled_seconds_total"] = cpu["throttled_time"] / 1e9
	}
	memory := k.pairs("memory", "memory.stat")
	f["container_memory_usage_bytes"] = k.number("memory", "memory.usage_in_bytes")
	f["container_memory_max_usage_bytes"] = k.number("memory", "memory.max_usage_in_bytes")
	f["container_memory_working_set_bytes"] = f["container_memory_usage_bytes"] - memory["total_inactive_file"]
	f["container_memory_rss"] = memory["total_rss"]
	f["container_memory_cache"] = memory["total_cache"]
	f["container_memory_mapped_file"] = memory["total_mapped_file"]
	f["container_spec_memory_limit_bytes"] = k.number("memory", "memory.limit_in_bytes")
	f["container_oom_events_total"] = k.pairs("memory", "memory.oom_control")["oom_kill"]
	f["container_memory_failcnt"] = k.number("memory", "memory.failcnt")
	f["container_threads"] = k.number("pids", "pids.current")
	f["container_threads_max"] = k.number("pids", "pids.max")
	f["container_processes"] = float64(len(strings.Fields(k.text("memory", "cgroup.procs"))))
	for _, files := range [][3]string{
		{"blkio.throttle.io_service_bytes", "container_fs_reads_bytes_total", "container_fs_writes_bytes_total"},
		{"blkio.throttle.io_serviced", "container_fs_reads_total", "container_fs_writes_total"},
	} {
		for line := range strings.Lines(k.text("blkio", files[0])) {
			p := strings.Fields(line)
			if len(p) == 3 && p[0] == nullDevice() {
				switch p[1] {
				case "Read":
					f[files[1]] = k.parse(p[2])
				case "Write":
					f[files[2]] = k.parse(p[2])
				}
			}
		}
	}
	return f, k.err
}

// nullDevice is MAJOR:MINOR of the guest's block device, which discards writes.
func nullDevice() string {
	text, err := os.ReadFile("/sys/class/block/nullb0/dev")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

func interfaces(pid int) (kernelValues, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/net/dev", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		if strings.TrimSpace(name) != "eth0" {
			continue
		}
		k, n := &kernel{}, strings.Fields(rest)
		return kernelValues{
			"container_network_receive_bytes_total":            k.parse(n[0]),
			"container_network_receive_packets_total":          k.parse(n[1]),
			"container_network_receive_errors_total":           k.parse(n[2]),
			"container_network_receive_packets_dropped_total":  k.parse(n[3]),
			"container_network_transmit_bytes_total":           k.parse(n[8]),
			"container_network_transmit_packets_total":         k.parse(n[9]),
			"container_network_transmit_errors_total":          k.parse(n[10]),
			"container_network_transmit_packets_dropped_total": k.parse(n[11]),
		}, k.err
	}
	return nil, errors.New("no eth0")
}

// between returns an error for each series whose value is not between the files' values before and after the scrape.
func between(m metrics, before, after kernelValues, labels ...string) error {
	var wrong error
	for name, low := range before {
		high, also := after[name]
		if !also {
			continue // a device is listed after its first use
		}
		low, high = min(low, high), max(low, high)
		series := m.all(name, labels...)
		if len(series) == 0 {
			wrong = errors.Join(wrong, fmt.Errorf("no %s of %v", name, labels))
			continue
		}
		got := m.sum(name, labels...)
		if slack := 1e-9 * math.Abs(high); got < low-slack || got > high+slack {
			wrong = errors.Join(wrong, fmt.Errorf("%s of %v is %v, the kernel reports %v to %v", name, labels, got, low, high))
		}
	}
	return wrong
}

// usage: the usage of containers equals the files of their cgroups and the interfaces of their pods.
func (w *world) usage(t *testing.T) {
	ctx := t.Context()
	sh(t, "modprobe", "null_blk")
	v1, read := strings.HasSuffix(cgroupRoot(), "/memory"), readV2
	if v1 {
		read = readV1
	}
	p := w.runPod(t, &guest.Pod{Namespace: "default", Name: "busy"})
	other := w.runPod(t, &guest.Pod{Namespace: "default", Name: "quiet"})
	pod := func(o *guest.Pod, id string) string { return "/kubepods/burstable/pod" + o.UID + "/" + id }
	run := func(o *guest.Pod, m guest.PodMember, script string) string {
		m.Command = []string{"/bin/sh", "-c", script}
		return w.run(t, o, m)
	}
	cgroups := map[string]string{}
	throttled := run(p, guest.PodMember{Name: "throttled", CPU: 100}, "while :; do :; done")
	killed := run(p, guest.PodMember{Name: "killed", Memory: 24 << 20}, "tail /dev/zero; tail /dev/zero; sleep 1000")
	disk := run(p, guest.PodMember{Name: "disk", Devices: []string{"/dev/nullb0"}},
		"while :; do /usr/bin/dd if=/dev/nullb0 of=/dev/null bs=64k count=8 iflag=direct; "+
			"/usr/bin/dd if=/dev/zero of=/dev/nullb0 bs=4k count=5 oflag=direct; sleep 0.5; done 2>/dev/null")
	ping := run(p, guest.PodMember{Name: "ping"}, "ping -q 10.88.0.1")
	quiet := run(other, guest.PodMember{Name: "quiet"}, "sleep 999 & sleep 1000 & wait")
	for _, id := range []string{throttled, killed, disk, ping} {
		cgroups[id] = pod(p, id)
	}
	cgroups[quiet] = pod(other, quiet)
	solo := w.runDocker(t, []string{"--name=limits", "--network=none", "--memory=48m", "--pids-limit=77", "--cpus=0.5"}, "/bin/busybox", "sleep", "1000")
	cgroups[solo] = "/docker/" + solo

	for _, op := range []string{"read", "write"} { // version 1 counts only if a rule exists
		if !v1 {
			break
		}
		rule := filepath.Join("/sys/fs/cgroup/blkio", cgroups[disk], "blkio.throttle."+op+"_bps_device")
		if err := os.WriteFile(rule, []byte(nullDevice()+" 1000000000000"), 0); err != nil {
			t.Fatal(err)
		}
	}

	s := start(t)
	nets := map[string]int{}
	for o, id := range map[*guest.Pod]string{p: ping, other: quiet} {
		pid, err := w.cri.PID(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		nets["default/"+o.Name] = pid
	}
	eventually(t, 60*time.Second, func() error {
		f, err := read(cgroups[killed])
		if err != nil {
			return err
		}
		if f["container_oom_events_total"] != 2 {
			return fmt.Errorf("%v processes were killed so far, want 2", f["container_oom_events_total"])
		}
		return nil
	})
	// Values that rose and fell meanwhile cannot be compared, so the check is repeated.
	took := eventually(t, 60*time.Second, func() error {
		all := func() (map[string]kernelValues, error) {
			out := map[string]kernelValues{}
			var wrong error
			for id, cgroup := range cgroups {
				f, err := read(cgroup)
				out[id], wrong = f, errors.Join(wrong, err)
			}
			for name, pid := range nets {
				f, err := interfaces(pid)
				out[name], wrong = f, errors.Join(wrong, err)
			}
			return out, wrong
		}
		before, err := all()
		if err != nil {
			return err
		}
		m := s.fresh()
		after, err := all()
		if err != nil {
			return err
		}
		var wrong error
		for id := range cgroups {
			wrong = errors.Join(wrong, between(m, before[id], after[id], "container_id", id))
		}
		for name := range nets {
			wrong = errors.Join(wrong, between(m, before[name], after[name], "workload", name, "interface", "eth0"))
		}
		// Equal values prove nothing if they are zero.
		least := map[string]float64{
			throttled + " container_cpu_cfs_throttled_periods_total": 3, killed + " container_oom_events_total": 2,
			disk + " container_fs_reads_bytes_total": 1 << 19,
			disk + " container_fs_writes_total":      5, "default/busy container_network_receive_packets_total": 2,
			quiet + " container_processes": 3, solo + " container_threads_max": 77,
			solo + " container_spec_memory_limit_bytes": 48 << 20, killed + " container_spec_memory_limit_bytes": 24 << 20,
		}
		if !v1 { // in version 1 the limit of memory and swap together, which has the same value, is hit first
			least[killed+" container_memory_failcnt"] = 1
		}
		for name, least := range least {
			who, what, _ := strings.Cut(name, " ")
			if got := before[who][what]; got < least {
				wrong = errors.Join(wrong, fmt.Errorf("the test has no case of %s: the kernel reports %v", what, got))
			}
		}
		if v := m.all("container_network_receive_bytes_total", "container_id", solo); len(v) != 0 {
			wrong = errors.Join(wrong, fmt.Errorf("a container without a network has %v", v))
		}
		return wrong
	})
	count := 0
	for id := range cgroups {
		f, _ := read(cgroups[id])
		count += len(f)
	}
	t.Logf("%d values of %d containers equal those of the kernel after %v", count, len(cgroups), took.Round(time.Millisecond))
	s.stop()
}
