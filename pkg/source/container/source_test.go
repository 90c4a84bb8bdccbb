// SPDX-License-Identifier: Apache-2.0

package container

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// The trees in this file are fakes: directories with the files of another kernel, or with invalid content.
// kernel_test.go reads real trees.

func write(t testing.TB, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func inode(t testing.TB, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Ino
}

func cgroupID(t testing.TB, path string) model.CgroupID {
	t.Helper()
	return model.CgroupID(inode(t, path))
}

func below(dir string, files map[string]string) map[string]string {
	out := map[string]string{}
	for name, text := range files {
		out[dir+"/"+name] = text
	}
	return out
}

// fakeV2 returns the files of a cgroup of version 2, Linux 6.12.
func fakeV2() map[string]string {
	return map[string]string{
		"cgroup.procs": "41\n42\n43\n",
		"cpu.stat": "usage_usec 3000000\nuser_usec 2000000\nsystem_usec 1000000\nnice_usec 0\ncore_sched.force_idle_usec 0\n" +
			"nr_periods 10\nnr_throttled 4\nthrottled_usec 500000\nnr_bursts 0\nburst_usec 0\n",
		"cpu.max": "150000 100000\n", "cpu.weight": "39\n",
		"cpu.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=7000000\n" +
			"full avg10=0.00 avg60=0.00 avg300=0.00 total=6000000\n",
		"memory.current": "1000000\n", "memory.peak": "1500000\n", "memory.max": "2000000\n", "memory.min": "300\n",
		"memory.swap.current": "77\n", "memory.swap.max": "max\n",
		"memory.stat": "anon 400000\nfile 500000\nkernel 9000\nfile_mapped 1234\ninactive_file 200000\n" +
			"pgfault 55\npgmajfault 5\n",
		"memory.events":   "low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\noom_group_kill 0\n",
		"memory.pressure": "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=4\n",
		"io.stat": "8:0 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=512 dios=1\n" +
			"7:0\n253:0 253:1 rbytes=1 wbytes=2 rios=3 wios=4 dbytes=0 dios=0\n",
		"io.pressure":  "some avg10=0.00 avg60=0.00 avg300=0.00 total=3\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=2\n",
		"pids.current": "9\n", "pids.max": "max\n",
	}
}

func usageV2() model.Usage {
	n := model.Some
	none := n(math.Inf(1))
	return model.Usage{
		CPU: model.CPUUsage{
			Total: n(3), User: n(2), System: n(1), Periods: n(10), ThrottledPeriods: n(4), Throttled: n(.5),
			Quota: n(150000), Period: n(100000), Shares: n(998), Waiting: n(7), Stalled: n(6),
		},
		Memory: model.MemoryUsage{
			Usage: n(1e6), Peak: n(1.5e6), WorkingSet: n(8e5), RSS: n(4e5), Cache: n(5e5), Swap: n(77), MappedFile: n(1234),
			Kernel: n(9000), Limit: n(2e6), SwapLimit: none, Reservation: n(300), LimitHits: n(3),
			Faults: n(55), MajorFaults: n(5), FaultsBelow: n(55), MajorFaultsBelow: n(5), OOMKills: n(1),
			Waiting: n(5e-6), Stalled: n(4e-6),
		},
		IO: []model.DeviceIO{
			{
				Device: "/dev/sda", Major: 8, ReadBytes: n(4096), WriteBytes: n(8192), DiscardBytes: n(512),
				Reads: n(1), Writes: n(2),
			},
			{Device: "253:1", Major: 253, Minor: 1, ReadBytes: n(1), WriteBytes: n(2), DiscardBytes: n(0), Reads: n(3), Writes: n(4)},
		},
		IOWaiting: n(3e-6), IOStalled: n(2e-6),
		Processes: n(3), Threads: n(9), ThreadsMax: none,
	}
}

// fakeV1 returns the files of a cgroup of version 1 on Linux 6.12, by controller.
func fakeV1(path string) map[string]string {
	files := map[string]string{}
	for controller, f := range map[string]map[string]string{
		"cpu": {
			"cpu.shares": "512\n", "cpu.cfs_period_us": "100000\n", "cpu.cfs_quota_us": "50000\n",
			"cpu.stat": "nr_periods 10\nnr_throttled 4\nthrottled_time 500000000\n",
		},
		"cpuacct": {"cpuacct.usage": "3000000000\n", "cpuacct.stat": "user 200\nsystem 100\n"},
		"memory": {
			"cgroup.procs": "41\n", "memory.usage_in_bytes": "1000000\n", "memory.max_usage_in_bytes": "1500000\n",
			"memory.failcnt": "3\n", "memory.kmem.usage_in_bytes": "9000\n", "memory.limit_in_bytes": "2000000\n",
			"memory.memsw.limit_in_bytes": "9223372036854771712\n", "memory.soft_limit_in_bytes": "9223372036854771712\n",
			"memory.stat": "cache 1\nrss 2\npgfault 50\npgmajfault 4\nhierarchical_memory_limit 2000000\n" +
				"total_cache 500000\ntotal_rss 400000\ntotal_swap 77\ntotal_mapped_file 1234\ntotal_inactive_file 200000\n" +
				"total_pgfault 55\ntotal_pgmajfault 5\n",
			"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
		},
		"blkio": {
			"blkio.throttle.io_service_bytes_recursive": "8:0 Read 4096\n8:0 Write 8192\n8:0 Sync 12288\n8:0 Async 0\n" +
				"8:0 Discard 512\n8:0 Total 12800\nTotal 12800\n",
			"blkio.throttle.io_serviced_recursive": "8:0 Read 1\n8:0 Write 2\n8:0 Sync 3\n8:0 Async 0\n8:0 Discard 1\n" +
				"8:0 Total 4\nTotal 4\n",
		},
		"pids": {"pids.current": "9\n", "pids.max": "100\n"},
	} {
		maps.Copy(files, below(controller+path, f))
		files[controller+"/cgroup.procs"] = ""
	}
	return files
}

func usageV1() model.Usage {
	u := usageV2()
	n := model.Some
	u.CPU.Quota, u.CPU.Shares, u.CPU.Waiting, u.CPU.Stalled = n(50000), n(512), model.Optional{}, model.Optional{}
	u.Memory.Reservation, u.Memory.Waiting, u.Memory.Stalled = n(math.Inf(1)), model.Optional{}, model.Optional{}
	u.Memory.Faults, u.Memory.MajorFaults = n(50), n(4)
	u.IO = u.IO[:1]
	u.IOWaiting, u.IOStalled = model.Optional{}, model.Optional{}
	u.Processes, u.ThreadsMax = n(1), n(100)
	return u
}

const partitions = "major minor  #blocks  name\n\n   8        0  976762584 sda\n   8        1     524288 sda1\n"

func fake(t testing.TB, mount string, v2 bool, paths ...string) *Source {
	t.Helper()
	procfs := t.TempDir()
	write(t, procfs, map[string]string{"partitions": partitions, "1/ns/net": ""})
	groups := map[model.CgroupID]string{}
	for _, path := range paths {
		groups[cgroupID(t, mount+path)] = path
	}
	s, err := New(Options{Procfs: procfs, Mount: mount, V2: v2, Groups: func() map[model.CgroupID]string { return groups }})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func read(t testing.TB, s *Source) model.Snapshot {
	t.Helper()
	got, err := s.Read(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func only(t testing.TB, s *Source) (model.Usage, []model.DeviceState) {
	t.Helper()
	got := read(t, s)
	if len(got.Usages) != 1 {
		t.Fatalf("%d usages", len(got.Usages))
	}
	return got.Usages[0], got.DeviceStates
}

var noID = cmpopts.IgnoreFields(model.Usage{}, "Cgroup", "Created")

func TestV2(t *testing.T) {
	root := t.TempDir()
	write(t, root, below("/docker/x", fakeV2()))
	write(t, root, map[string]string{"cgroup.controllers": "cpu memory\n"})
	got, states := only(t, fake(t, root, true, "/docker/x"))
	if d := cmp.Diff(usageV2(), got, noID); d != "" || len(states) > 0 {
		t.Errorf("(-want +got)\n%s%v", d, states)
	}
	if got.Cgroup != cgroupID(t, root+"/docker/x") || time.Since(got.Created) > time.Minute {
		t.Errorf("cgroup %d made %s", got.Cgroup, got.Created)
	}
}

func TestV1(t *testing.T) {
	for _, together := range []bool{false, true} {
		root := t.TempDir()
		write(t, root, fakeV1("/docker/x"))
		if together { // as systemd mounts them
			for _, c := range []string{"cpu", "cpuacct"} {
				write(t, root, map[string]string{"cpu,cpuacct/docker/x/none": "", "cpu,cpuacct/cgroup.procs": ""})
				old := filepath.Join(root, c, "docker/x")
				files, err := os.ReadDir(old)
				if err != nil {
					t.Fatal(err)
				}
				for _, f := range files {
					if err := os.Rename(filepath.Join(old, f.Name()), filepath.Join(root, "cpu,cpuacct/docker/x", f.Name())); err != nil {
						t.Fatal(err)
					}
				}
				if err := os.RemoveAll(filepath.Join(root, c)); err != nil {
					t.Fatal(err)
				}
				if err := os.Symlink("cpu,cpuacct", filepath.Join(root, c)); err != nil {
					t.Fatal(err)
				}
			}
		}
		got, states := only(t, fake(t, root+"/memory", false, "/docker/x"))
		if d := cmp.Diff(usageV1(), got, noID); d != "" || len(states) > 0 {
			t.Errorf("together %t: (-want +got)\n%s%v", together, d, states)
		}
	}
}

// TestHybrid: pressure comes from the secondary tree of version 2, except from a cgroup without processes there.
func TestHybrid(t *testing.T) {
	for populated := range 2 {
		root := t.TempDir()
		write(t, root, fakeV1("/docker/x"))
		files := fakeV2()
		files["cgroup.events"] = fmt.Sprintf("populated %d\nfrozen 0\n", populated)
		write(t, root, below("/unified/docker/x", files))
		write(t, root, map[string]string{"unified/cgroup.controllers": "\n", "unified/cgroup.procs": ""})
		got, _ := only(t, fake(t, root+"/memory", false, "/docker/x"))
		want := usageV1()
		if populated == 1 {
			v2 := usageV2()
			want.CPU.Waiting, want.CPU.Stalled = v2.CPU.Waiting, v2.CPU.Stalled
			want.Memory.Waiting, want.Memory.Stalled = v2.Memory.Waiting, v2.Memory.Stalled
			want.IOWaiting, want.IOStalled = v2.IOWaiting, v2.IOStalled
		}
		if d := cmp.Diff(want, got, noID); d != "" {
			t.Errorf("populated %d: (-want +got)\n%s", populated, d)
		}
	}
}

// TestHybridV2 identifies workloads in the tree of version 2, which has some of the controllers.
func TestHybridV2(t *testing.T) {
	root := t.TempDir()
	files := fakeV2()
	write(t, root, below("/unified/docker/x", files))
	write(t, root, map[string]string{
		"unified/cgroup.controllers": "memory\n", "pids/docker/x/pids.current": "5\n", "pids/docker/x/pids.max": "6\n",
		"unified/cgroup.procs": "", "pids/cgroup.procs": "", "memory/none": "", // not mount points
	})
	got, _ := only(t, fake(t, root+"/unified", true, "/docker/x"))
	want := usageV2()
	want.Threads, want.ThreadsMax = model.Some(5), model.Some(6)
	if d := cmp.Diff(want, got, noID); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestMissing removes one file after the other: its values are unknown, the others are unchanged, and there is no
// error.
func TestMissing(t *testing.T) {
	root := t.TempDir()
	write(t, root, below("/docker/x", fakeV2()))
	s := fake(t, root, true, "/docker/x")
	for name, text := range fakeV2() {
		if err := os.Remove(root + "/docker/x/" + name); err != nil {
			t.Fatal(err)
		}
		got, states := only(t, s)
		write(t, root, map[string]string{"docker/x/" + name: text})
		if len(states) > 0 {
			t.Errorf("without %s: %v", name, states)
		}
		want := usageV2()
		lacks(&want, name)
		if d := cmp.Diff(want, got, noID); d != "" {
			t.Errorf("without %s: (-want +got)\n%s", name, d)
		}
	}
	root = t.TempDir()
	write(t, root, map[string]string{"docker/x/cgroup.type": "domain\n"})
	got, states := only(t, fake(t, root, true, "/docker/x"))
	if d := cmp.Diff(model.Usage{}, got, noID); d != "" || len(states) > 0 {
		t.Errorf("without any file: (-want +got)\n%s%v", d, states)
	}
}

// lacks removes the values of a file of version 2 from u.
func lacks(u *model.Usage, file string) {
	none := func(values ...*model.Optional) {
		for _, f := range values {
			*f = model.Optional{}
		}
	}
	c, m := &u.CPU, &u.Memory
	switch file {
	case "cgroup.procs":
		none(&u.Processes)
	case "cpu.stat":
		none(&c.Total, &c.User, &c.System, &c.Periods, &c.ThrottledPeriods, &c.Throttled)
	case "cpu.max":
		none(&c.Quota, &c.Period)
	case "cpu.weight":
		none(&c.Shares)
	case "cpu.pressure":
		none(&c.Waiting, &c.Stalled)
	case "memory.current":
		none(&m.Usage, &m.WorkingSet)
	case "memory.peak":
		none(&m.Peak)
	case "memory.max":
		none(&m.Limit)
	case "memory.min":
		none(&m.Reservation)
	case "memory.swap.current":
		none(&m.Swap)
	case "memory.swap.max":
		none(&m.SwapLimit)
	case "memory.stat":
		none(&m.WorkingSet, &m.RSS, &m.Cache, &m.MappedFile, &m.Kernel, &m.Faults, &m.MajorFaults, &m.FaultsBelow,
			&m.MajorFaultsBelow)
	case "memory.events":
		none(&m.LimitHits, &m.OOMKills)
	case "memory.pressure":
		none(&m.Waiting, &m.Stalled)
	case "io.stat":
		u.IO = nil
	case "io.pressure":
		none(&u.IOWaiting, &u.IOStalled)
	case "pids.current":
		none(&u.Threads)
	case "pids.max":
		none(&u.ThreadsMax)
	}
}

// TestGarbage writes invalid content to one file after the other: it drops at most the values of this file, and is
// reported.
func TestGarbage(t *testing.T) {
	root := t.TempDir()
	write(t, root, below("/docker/x", fakeV2()))
	s := fake(t, root, true, "/docker/x")
	for name, text := range fakeV2() {
		for _, junk := range []string{"", "\n", "garbage", "usage_usec max\n", "1e9\n", "-5\n", "99999999999999999999999\n", "a b c\n", "\x00\xff\n"} {
			write(t, root, map[string]string{"docker/x/" + name: junk})
			got, states := only(t, s)
			write(t, root, map[string]string{"docker/x/" + name: text})
			empty := junk == "" && slices.Contains([]string{
				"cgroup.procs", "cpu.stat", "memory.stat", "memory.events", "io.stat", "cpu.pressure", "memory.pressure", "io.pressure",
			}, name) || junk == "\n" && name == "io.stat"
			if reported := len(states) > 0; reported == empty {
				t.Errorf("%s %q: states %v", name, junk, states)
			}
			want := usageV2()
			lacks(&want, name)
			if name == "io.stat" {
				want.IO = []model.DeviceIO{}
			}
			if name == "cgroup.procs" && junk == "" {
				want.Processes = model.Some(0)
			}
			if d := cmp.Diff(want, got, noID); d != "" {
				t.Errorf("%s %q: (-want +got)\n%s", name, junk, d)
			}
		}
	}
}

// TestBadLine: an invalid line drops only itself, is counted once and quoted, and the cgroup has not failed. The kernel
// writes "(unknown)" for a removed device.
func TestBadLine(t *testing.T) {
	root := t.TempDir()
	files := fakeV2()
	files["cpu.stat"] = strings.Replace(files["cpu.stat"], "user_usec 2000000", "user_usec two", 1)
	files["cgroup.procs"] = "41\nx\n42\n43\n"
	files["io.stat"] = "(unknown) rbytes=1 wbytes=1\n(unknown) " + files["io.stat"]
	write(t, root, below("/docker/x", files))
	s := fake(t, root, true, "/docker/x")
	want := usageV2()
	want.CPU.User, want.Processes = model.Optional{}, model.Optional{} // a partly known number is not shown
	for range 2 {
		got := read(t, s)
		if d := cmp.Diff([]model.Usage{want}, got.Usages, noID); d != "" {
			t.Errorf("(-want +got)\n%s", d)
		}
		states := got.DeviceStates
		if len(states) != 1 || states[0].Device != "/docker/x" || states[0].State != model.StateOK || !strings.Contains(states[0].Reason, `"x"`) {
			t.Errorf("states %v", states)
		}
		counts := map[string]uint64{}
		for _, l := range got.SkippedLines {
			if l.Count > 0 {
				counts[l.File] = l.Count
			}
		}
		if d := cmp.Diff(map[string]uint64{"cpu.stat": 1, "io.stat": 1, "cgroup.procs": 1}, counts); d != "" {
			t.Errorf("lines left out (-want +got)\n%s", d)
		}
	}
}

// TestUnknownDeviceV1 has the line of a removed device in version 1.
func TestUnknownDeviceV1(t *testing.T) {
	root := t.TempDir()
	files := fakeV1("/docker/x")
	for _, name := range []string{"io_service_bytes", "io_serviced"} {
		name = "blkio/docker/x/blkio.throttle." + name + "_recursive"
		files[name] = "(unknown) Read 0\n" + files[name]
	}
	write(t, root, files)
	got, states := only(t, fake(t, root+"/memory", false, "/docker/x"))
	if d := cmp.Diff(usageV1(), got, noID); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if len(states) != 1 || states[0].State != model.StateOK || !strings.Contains(states[0].Reason, "(unknown) Read 0") {
		t.Errorf("states %v", states)
	}
}

func TestHugeNumbers(t *testing.T) {
	root := t.TempDir()
	files := fakeV2()
	files["memory.current"] = "18446744073709551615\n"
	files["cpu.stat"] = "usage_usec 18446744073709551615\n"
	files["cpu.weight"] = "10000\n"
	files["cgroup.procs"] = strings.Repeat("4194303\n", 100000) // longer than the buffer
	write(t, root, below("/docker/x", files))
	got, states := only(t, fake(t, root, true, "/docker/x"))
	if len(states) > 0 {
		t.Error(states)
	}
	for name, pair := range map[string][2]model.Optional{
		"usage":     {got.Memory.Usage, model.Some(math.MaxUint64)},
		"cpu":       {got.CPU.Total, model.Some(math.MaxUint64 / 1e6)},
		"shares":    {got.CPU.Shares, model.Some(262144)},
		"processes": {got.Processes, model.Some(100000)},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s is %v, want %v", name, pair[0], pair[1])
		}
	}
}

// TestGone: a removed cgroup, or a cgroup replaced at the same path, is left out.
func TestGone(t *testing.T) {
	root := t.TempDir()
	write(t, root, below("/docker/x", fakeV2()))
	write(t, root, below("/docker/y", fakeV2()))
	s := fake(t, root, true, "/docker/x", "/docker/y")
	groups := s.opt.Groups()
	groups[1], groups[2] = "/docker/never", "/docker/x"
	got := read(t, s)
	if len(got.Usages) != 2 || len(got.DeviceStates) > 0 {
		t.Errorf("%d usages, states %v", len(got.Usages), got.DeviceStates)
	}
	if err := os.RemoveAll(root + "/docker"); err != nil {
		t.Fatal(err)
	}
	if got = read(t, s); len(got.Usages) != 0 || got.Usages == nil || len(got.DeviceStates) > 0 {
		t.Errorf("%v, states %v", got.Usages, got.DeviceStates)
	}
}

// TestUnreadable: the number of reported failures is limited.
func TestUnreadable(t *testing.T) {
	root := t.TempDir()
	var paths []string
	for i := range 3 * maxFailed {
		paths = append(paths, fmt.Sprintf("/docker/%d", i))
		write(t, root, below(paths[i], fakeV2()))
		if err := errors.Join(os.Remove(root+paths[i]+"/pids.max"), os.Mkdir(root+paths[i]+"/pids.max", 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	got := read(t, fake(t, root, true, paths...))
	if len(got.Usages) != len(paths) || len(got.DeviceStates) != maxFailed {
		t.Errorf("%d usages, %d states", len(got.Usages), len(got.DeviceStates))
	}
	if reason := got.DeviceStates[0].Reason; !strings.Contains(reason, "pids.max") {
		t.Error(reason)
	}
}

// TestNested: processes below the cgroup belong to the workload.
func TestNested(t *testing.T) {
	root := t.TempDir()
	files := fakeV2()
	files["cgroup.procs"] = ""
	files["init.scope/cgroup.procs"] = "0\n7\n"
	files["a/b/c/cgroup.procs"] = "8\n9\n"
	write(t, root, below("/slurm/uid_1/job_2", files))
	s := fake(t, root, true, "/slurm/uid_1/job_2")
	got, _ := only(t, s)
	if got.Processes != model.Some(4) {
		t.Errorf("processes %v", got.Processes)
	}
	if pid := s.known[got.Cgroup].pid; pid != 7 && pid != 8 {
		t.Errorf("process %d", pid)
	}
}

// TestManyNested: the search for processes below a cgroup ends, however many cgroups the container makes.
func TestManyNested(t *testing.T) {
	root := t.TempDir()
	files := fakeV2()
	files["cgroup.procs"] = ""
	for i := range maxBelow + 10 {
		files[fmt.Sprintf("%d/cgroup.procs", i)] = fmt.Sprintf("%d\n", 1000+i)
	}
	write(t, root, below("/slurm/uid_1/job_2", files))
	if got, _ := only(t, fake(t, root, true, "/slurm/uid_1/job_2")); got.Processes != model.Some(float64(maxBelow)) {
		t.Errorf("processes %v, want the processes of %d cgroups", got.Processes, maxBelow)
	}
}

// TestContainersFoundByPath checks containers that are known only by their path.
func TestContainersFoundByPath(t *testing.T) {
	root := t.TempDir()
	for _, path := range []string{"/docker/x", "/my/own", "/other"} {
		write(t, root, below(path, fakeV2()))
	}
	s := fake(t, root, true, "/docker/x")
	s.opt.More = func() []string {
		return []string{"/docker/x", "my/own/", "/../../other", "/gone", "", "/", "/other/cpu.stat"}
	}
	var got []model.CgroupID
	for _, u := range read(t, s).Usages {
		got = append(got, model.CgroupID(u.Cgroup))
	}
	want := []model.CgroupID{cgroupID(t, root+"/docker/x"), cgroupID(t, root+"/my/own"), cgroupID(t, root+"/other")}
	slices.Sort(want)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestCreated: the time stays when the directory changes.
func TestCreated(t *testing.T) {
	root := t.TempDir()
	write(t, root, below("/docker/x", fakeV2()))
	s := fake(t, root, true, "/docker/x")
	before, _ := only(t, s)
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(root+"/docker/x", later, later); err != nil {
		t.Fatal(err)
	}
	if after, _ := only(t, s); !after.Created.Equal(before.Created) {
		t.Errorf("%s, then %s", before.Created, after.Created)
	}
}

// TestSince: a cgroup that is new in a list did not exist at the list before, also if its usage was not wanted then.
// This is unknown for a cgroup of the first list, a cgroup that a runtime reports, and a cgroup older than the list in
// which it was missing.
func TestSince(t *testing.T) {
	root := t.TempDir()
	for _, path := range []string{"/first", "/missed", "/runtime"} {
		write(t, root, below(path, fakeV2()))
	}
	hour := time.Now().Add(-time.Hour)
	if err := os.Chtimes(root+"/missed", hour, hour); err != nil {
		t.Fatal(err)
	}
	s := fake(t, root, true, "/first")
	groups, made, wanted := s.opt.Groups(), model.CgroupID(0), false
	s.opt.Wanted = func(id model.CgroupID) bool { return wanted || id != made }
	before := time.Now()
	read(t, s)
	after := time.Now()
	write(t, root, below("/new", fakeV2()))
	made = cgroupID(t, root+"/new")
	groups[made], groups[cgroupID(t, root+"/missed")] = "/new", "/missed"
	s.opt.More = func() []string { return []string{"/runtime"} }
	read(t, s)
	wanted = true
	for range 2 {
		for _, u := range read(t, s).Usages {
			isNew := u.Cgroup == made
			if isNew != !u.Since.IsZero() || isNew && (u.Since.Before(before) || u.Since.After(after)) {
				t.Errorf("cgroup %d: %v", u.Cgroup, u.Since)
			}
		}
	}
}

func TestNew(t *testing.T) {
	if _, err := New(Options{}); !errors.Is(err, model.ErrAbsent) {
		t.Errorf("without a mount: %v", err)
	}
	s, err := New(Options{Mount: t.TempDir(), V2: true, Procfs: fake(t, t.TempDir(), true).opt.Procfs})
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, s); got.Usages == nil || len(got.Usages) > 0 || got.Namespaces == nil {
		t.Errorf("%v", got)
	}
}

// TestDeadline: values read in time are returned.
func TestDeadline(t *testing.T) {
	root := t.TempDir()
	write(t, root, below("/docker/x", fakeV2()))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	got, err := fake(t, root, true, "/docker/x").Read(ctx)
	if !errors.Is(err, context.Canceled) || len(got.Usages) != 0 {
		t.Errorf("%d usages, %v", len(got.Usages), err)
	}
}
