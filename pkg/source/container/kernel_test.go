// SPDX-License-Identifier: Apache-2.0

package container

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/child"
)

func TestMain(m *testing.M) {
	if what := os.Getenv("CONTAINER_TEST_HELPER"); what != "" {
		if err := helper(what); err != nil {
			fmt.Fprintln(os.Stderr, "helper:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// helper joins the cgroups, works, reports that it is ready, and waits until its standard input ends.
func helper(what string) error {
	for dir := range strings.SplitSeq(os.Getenv("CONTAINER_TEST_CGROUPS"), ":") {
		if dir == "" {
			continue
		}
		if err := os.WriteFile(dir+"/cgroup.procs", []byte("0"), 0); err != nil {
			return err
		}
	}
	switch what {
	case "hog":
		for {
			touch(1 << 20)
		}
	case "work":
		if err := work(); err != nil {
			return err
		}
	}
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

func touch(size int) {
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return
	}
	for i := 0; i < size; i += 4096 {
		b[i] = 1
	}
}

// work uses some of each resource that is counted.
func work() error {
	touch(8 << 20)
	// On a busy machine the quota may last long.
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		var used unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
			return err
		}
		if throttled() && used.Utime.Nano() > 5e7 && used.Stime.Nano() > 5e7 {
			break
		}
		for range 100000 {
			_ = bytes.Count([]byte("accelscope"), []byte("s"))
		}
		for range 1000 {
			_, _ = os.Stat("/")
		}
	}
	f, err := os.CreateTemp("", "container-test")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if _, err := f.Write(make([]byte, 4<<20)); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	b, err := unix.Mmap(int(f.Fd()), 0, 1<<20, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	sum := byte(0)
	for i := 0; i < len(b); i += 4096 {
		sum += b[i]
	}
	_, err = fmt.Fprint(io.Discard, sum)
	return err
}

// throttled reports whether a throttled period of the process's cgroups is over.
func throttled() bool {
	for dir := range strings.SplitSeq(os.Getenv("CONTAINER_TEST_CGROUPS"), ":") {
		b, err := os.ReadFile(dir + "/cpu.stat")
		if err != nil {
			continue
		}
		f := strings.Fields(string(b))
		for i := 0; i+1 < len(f); i += 2 {
			if (f[i] == "throttled_time" || f[i] == "throttled_usec") && f[i+1] != "0" {
				return true
			}
		}
	}
	return false
}

// mounts returns the mount points of cgroups, from mountinfo.
func mounts(t testing.TB) (v2 string, v1 map[string]string) {
	t.Helper()
	v1 = map[string]string{}
	for line := range strings.Lines(readFile(t, "/proc/self/mountinfo")) {
		left, right, _ := strings.Cut(line, " - ")
		f, g := strings.Fields(left), strings.Fields(right)
		switch g[0] {
		case "cgroup2":
			v2 = f[4]
		case "cgroup":
			for o := range strings.SplitSeq(g[2], ",") {
				v1[o] = f[4]
			}
		}
	}
	return v2, v1
}

// A kernelValue is a value and the kernel's file with which it is compared: the number after key, or the only number.
type kernelValue struct {
	controller string // of version 1
	file, key  string
	unit       float64
	of         func(*model.Usage) model.Optional
	less       string // subtracted field of memory.stat
}

func (f kernelValue) id() string { return f.file + " " + f.key + " " + f.less }

var (
	v1Values = []kernelValue{
		{"cpu", "cpu.shares", "", 1, func(u *model.Usage) model.Optional { return u.CPU.Shares }, ""},
		{"cpu", "cpu.cfs_period_us", "", 1, func(u *model.Usage) model.Optional { return u.CPU.Period }, ""},
		{"cpu", "cpu.cfs_quota_us", "", 1, func(u *model.Usage) model.Optional { return u.CPU.Quota }, ""},
		{"cpu", "cpu.stat", "nr_periods", 1, func(u *model.Usage) model.Optional { return u.CPU.Periods }, ""},
		{"cpu", "cpu.stat", "nr_throttled", 1, func(u *model.Usage) model.Optional { return u.CPU.ThrottledPeriods }, ""},
		{"cpu", "cpu.stat", "throttled_time", 1e-9, func(u *model.Usage) model.Optional { return u.CPU.Throttled }, ""},
		{"cpuacct", "cpuacct.usage", "", 1e-9, func(u *model.Usage) model.Optional { return u.CPU.Total }, ""},
		{"cpuacct", "cpuacct.stat", "user", .01, func(u *model.Usage) model.Optional { return u.CPU.User }, ""},
		{"cpuacct", "cpuacct.stat", "system", .01, func(u *model.Usage) model.Optional { return u.CPU.System }, ""},
		{"memory", "memory.usage_in_bytes", "", 1, func(u *model.Usage) model.Optional { return u.Memory.Usage }, ""},
		{"memory", "memory.usage_in_bytes", "", 1, workingSetOf, "total_inactive_file"},
		{"memory", "memory.max_usage_in_bytes", "", 1, func(u *model.Usage) model.Optional { return u.Memory.Peak }, ""},
		{"memory", "memory.failcnt", "", 1, func(u *model.Usage) model.Optional { return u.Memory.LimitHits }, ""},
		{"memory", "memory.kmem.usage_in_bytes", "", 1, func(u *model.Usage) model.Optional { return u.Memory.Kernel }, ""},
		{"memory", "memory.limit_in_bytes", "", 1, func(u *model.Usage) model.Optional { return u.Memory.Limit }, ""},
		{"memory", "memory.memsw.limit_in_bytes", "", 1, func(u *model.Usage) model.Optional { return u.Memory.SwapLimit }, ""},
		{"memory", "memory.soft_limit_in_bytes", "", 1, func(u *model.Usage) model.Optional { return u.Memory.Reservation }, ""},
		{"memory", "memory.stat", "pgfault", 1, func(u *model.Usage) model.Optional { return u.Memory.Faults }, ""},
		{"memory", "memory.stat", "pgmajfault", 1, func(u *model.Usage) model.Optional { return u.Memory.MajorFaults }, ""},
		{"memory", "memory.stat", "total_pgfault", 1, func(u *model.Usage) model.Optional { return u.Memory.FaultsBelow }, ""},
		{"memory", "memory.stat", "total_pgmajfault", 1, func(u *model.Usage) model.Optional { return u.Memory.MajorFaultsBelow }, ""},
		{"memory", "memory.stat", "total_rss", 1, func(u *model.Usage) model.Optional { return u.Memory.RSS }, ""},
		{"memory", "memory.stat", "total_cache", 1, func(u *model.Usage) model.Optional { return u.Memory.Cache }, ""},
		{"memory", "memory.stat", "total_swap", 1, func(u *model.Usage) model.Optional { return u.Memory.Swap }, ""},
		{"memory", "memory.stat", "total_mapped_file", 1, func(u *model.Usage) model.Optional { return u.Memory.MappedFile }, ""},
		{"memory", "memory.oom_control", "oom_kill", 1, func(u *model.Usage) model.Optional { return u.Memory.OOMKills }, ""},
		{"pids", "pids.current", "", 1, func(u *model.Usage) model.Optional { return u.Threads }, ""},
		{"pids", "pids.max", "", 1, func(u *model.Usage) model.Optional { return u.ThreadsMax }, ""},
	}
	v2Values = []kernelValue{
		{"cpu", "cpu.stat", "usage_usec", 1e-6, func(u *model.Usage) model.Optional { return u.CPU.Total }, ""},
		{"cpu", "cpu.stat", "user_usec", 1e-6, func(u *model.Usage) model.Optional { return u.CPU.User }, ""},
		{"cpu", "cpu.stat", "system_usec", 1e-6, func(u *model.Usage) model.Optional { return u.CPU.System }, ""},
		{"cpu", "cpu.stat", "nr_periods", 1, func(u *model.Usage) model.Optional { return u.CPU.Periods }, ""},
		{"cpu", "cpu.stat", "nr_throttled", 1, func(u *model.Usage) model.Optional { return u.CPU.ThrottledPeriods }, ""},
		{"cpu", "cpu.stat", "throttled_usec", 1e-6, func(u *model.Usage) model.Optional { return u.CPU.Throttled }, ""},
		{"cpu", "cpu.max", "", 1, func(u *model.Usage) model.Optional { return u.CPU.Quota }, ""},
		{"memory", "memory.current", "", 1, func(u *model.Usage) model.Optional { return u.Memory.Usage }, ""},
		{"memory", "memory.current", "", 1, workingSetOf, "inactive_file"},
		{"memory", "memory.peak", "", 1, func(u *model.Usage) model.Optional { return u.Memory.Peak }, ""},
		{"memory", "memory.max", "", 1, func(u *model.Usage) model.Optional { return u.Memory.Limit }, ""},
		{"memory", "memory.min", "", 1, func(u *model.Usage) model.Optional { return u.Memory.Reservation }, ""},
		{"memory", "memory.swap.current", "", 1, func(u *model.Usage) model.Optional { return u.Memory.Swap }, ""},
		{"memory", "memory.swap.max", "", 1, func(u *model.Usage) model.Optional { return u.Memory.SwapLimit }, ""},
		{"memory", "memory.stat", "anon", 1, func(u *model.Usage) model.Optional { return u.Memory.RSS }, ""},
		{"memory", "memory.stat", "file", 1, func(u *model.Usage) model.Optional { return u.Memory.Cache }, ""},
		{"memory", "memory.stat", "file_mapped", 1, func(u *model.Usage) model.Optional { return u.Memory.MappedFile }, ""},
		{"memory", "memory.stat", "kernel", 1, func(u *model.Usage) model.Optional { return u.Memory.Kernel }, ""},
		{"memory", "memory.stat", "pgfault", 1, func(u *model.Usage) model.Optional { return u.Memory.FaultsBelow }, ""},
		{"memory", "memory.stat", "pgmajfault", 1, func(u *model.Usage) model.Optional { return u.Memory.MajorFaultsBelow }, ""},
		{"memory", "memory.events", "max", 1, func(u *model.Usage) model.Optional { return u.Memory.LimitHits }, ""},
		{"memory", "memory.events", "oom_kill", 1, func(u *model.Usage) model.Optional { return u.Memory.OOMKills }, ""},
		{"pids", "pids.current", "", 1, func(u *model.Usage) model.Optional { return u.Threads }, ""},
		{"pids", "pids.max", "", 1, func(u *model.Usage) model.Optional { return u.ThreadsMax }, ""},
	}
	pressureValues = []kernelValue{
		{"", "cpu.pressure", "some", 1e-6, func(u *model.Usage) model.Optional { return u.CPU.Waiting }, ""},
		{"", "cpu.pressure", "full", 1e-6, func(u *model.Usage) model.Optional { return u.CPU.Stalled }, ""},
		{"", "memory.pressure", "some", 1e-6, func(u *model.Usage) model.Optional { return u.Memory.Waiting }, ""},
		{"", "memory.pressure", "full", 1e-6, func(u *model.Usage) model.Optional { return u.Memory.Stalled }, ""},
		{"", "io.pressure", "some", 1e-6, func(u *model.Usage) model.Optional { return u.IOWaiting }, ""},
		{"", "io.pressure", "full", 1e-6, func(u *model.Usage) model.Optional { return u.IOStalled }, ""},
	}
)

func workingSetOf(u *model.Usage) model.Optional { return u.Memory.WorkingSet }

// truth reads a value without the package, with the scanner of fmt.
func (f kernelValue) truth(t *testing.T, dir string) (model.Optional, string) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, f.file))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP) {
		return model.Optional{}, ""
	} else if err != nil {
		t.Fatal(err)
	}
	word := strings.Fields(string(b))[0]
	if f.key != "" {
		word = ""
		for line := range strings.SplitSeq(string(b), "\n") {
			if w := strings.Fields(line); len(w) > 1 && w[0] == f.key {
				word = strings.TrimPrefix(w[len(w)-1], "total=")
			}
		}
	}
	switch word {
	case "":
		return model.Optional{}, string(b)
	case "max", "-1", "9223372036854771712":
		return model.Some(math.Inf(1)), string(b)
	}
	var v uint64
	if _, err := fmt.Sscan(word, &v); err != nil {
		t.Fatalf("%s: %v", f.file, err)
	}
	if f.less != "" {
		less, _ := kernelValue{file: "memory.stat", key: f.less, unit: 1}.truth(t, dir)
		v -= min(v, uint64(less.Value))
	}
	return model.Some(float64(v) * f.unit), string(b)
}

// zeros returns the values that are zero but must not be, so that zeros are not compared.
func zeros(u *model.Usage) map[string]model.Optional {
	values := map[string]model.Optional{
		"cpu": u.CPU.Total, "user": u.CPU.User, "periods": u.CPU.Periods, "throttled": u.CPU.Throttled,
		"throttled periods": u.CPU.ThrottledPeriods, "memory": u.Memory.Usage, "rss": u.Memory.RSS,
		"working set": u.Memory.WorkingSet, "limit hits": u.Memory.LimitHits, "oom kills": u.Memory.OOMKills,
		"faults": u.Memory.FaultsBelow, "kernel": u.Memory.Kernel, "cache": u.Memory.Cache,
		"mapped": u.Memory.MappedFile, "threads": u.Threads, "shares": u.CPU.Shares,
	}
	maps.DeleteFunc(values, func(_ string, v model.Optional) bool { return v.Value > 0 })
	return values
}

// TestKernel makes a cgroup in the hierarchies of this machine, runs a real process in it that uses each resource, with
// a quota, a limit and an OOM kill, and compares each value with the file of the kernel.
func TestKernel(t *testing.T) {
	v2, v1 := mounts(t)
	top := fmt.Sprintf("/container-test-%d", os.Getpid())
	path := top + "/workload"
	mount := v2
	if v1["memory"] != "" {
		mount = v1["memory"]
	}
	t.Logf("v2 %q, v1 %v, identity %s", v2, v1, mount)
	var dirs []string
	make1 := func(root string) {
		if slices.Contains(dirs, root+path) {
			return
		}
		dirs = append(dirs, root+path)
		t.Cleanup(func() {
			for _, dir := range []string{root + path + "/below", root + path, root + top} {
				for range 100 {
					if err := os.Remove(dir); err == nil || errors.Is(err, fs.ErrNotExist) {
						break
					}
					time.Sleep(20 * time.Millisecond)
				}
			}
		})
		if err := os.MkdirAll(root+path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if v2 != "" {
		if err := os.MkdirAll(v2+top, 0o755); err != nil {
			t.Fatal(err)
		}
		for c := range strings.FieldsSeq(readFile(t, v2+"/cgroup.controllers")) {
			_ = os.WriteFile(v2+"/cgroup.subtree_control", []byte("+"+c), 0)
			_ = os.WriteFile(v2+top+"/cgroup.subtree_control", []byte("+"+c), 0)
		}
		make1(v2)
	}
	for _, c := range []string{"cpu", "cpuacct", "memory", "blkio", "pids"} {
		if v1[c] != "" {
			make1(v1[c])
		}
	}
	set := func(root, file, value string) {
		t.Helper()
		if err := os.WriteFile(root+path+"/"+file, []byte(value), 0); err != nil {
			t.Fatal(err)
		}
	}
	// Some kernels have the memory controller only in version 2.
	var all []kernelValue
	for _, f := range v1Values {
		if v1[f.controller] != "" {
			all = append(all, f)
		}
	}
	for _, f := range v2Values {
		if v1[f.controller] == "" {
			all = append(all, f)
		}
	}
	if v2 != "" {
		all = append(all, pressureValues...)
	}
	if root := v1["cpu"]; root != "" {
		set(root, "cpu.cfs_quota_us", "5000")
		set(root, "cpu.shares", "333")
	} else {
		set(v2, "cpu.max", "5000 100000")
		set(v2, "cpu.weight", "39")
	}
	if root := v1["memory"]; root != "" {
		set(root, "memory.limit_in_bytes", fmt.Sprint(64<<20))
	} else {
		set(v2, "memory.max", fmt.Sprint(64<<20))
		set(v2, "memory.min", "4096")
	}
	set(cmp.Or(v1["pids"], v2), "pids.max", "100")
	if root := v1["blkio"]; root != "" {
		// Since 6.10 the kernel counts when something is throttled.
		var st unix.Stat_t
		if err := unix.Stat(t.TempDir(), &st); err == nil {
			value := fmt.Sprintf("%d:%d %d", unix.Major(st.Dev), unix.Minor(st.Dev), 10<<30)
			_ = os.WriteFile(root+path+"/blkio.throttle.read_bps_device", []byte(value), 0)
			_ = os.WriteFile(root+path+"/blkio.throttle.write_bps_device", []byte(value), 0)
		}
	}
	hog := child.Command(context.Background(), "/proc/self/exe")
	hog.Env = append(os.Environ(), "CONTAINER_TEST_HELPER=hog", "CONTAINER_TEST_CGROUPS="+strings.Join(dirs, ":"))
	if err := hog.Run(); err == nil || hog.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the kernel did not kill: %v", err)
	}
	p := startHelper(t, "work", dirs, 0)

	s, err := New(Options{Mount: mount, V2: mount == v2, Groups: func() map[model.CgroupID]string {
		return map[model.CgroupID]string{cgroupID(t, mount+path): path}
	}})
	if err != nil {
		t.Fatal(err)
	}
	dirOf := func(f kernelValue) string {
		if root := v1[f.controller]; root != "" {
			return root + path
		}
		return v2 + path
	}
	equal := map[string]bool{}
	var got model.Usage
	// The time of a throttled period counts when it is over.
	waits := func() bool { return len(equal) < len(all) || len(zeros(&got)) > 0 }
	for end := time.Now().Add(30 * time.Second); waits() && time.Now().Before(end); time.Sleep(time.Millisecond) {
		before := make([]model.Optional, len(all))
		for i, f := range all {
			before[i], _ = f.truth(t, dirOf(f))
		}
		var states []model.DeviceState
		got, states = only(t, s)
		if len(states) > 0 {
			t.Fatal(states)
		}
		for i, f := range all {
			after, text := f.truth(t, dirOf(f))
			ours := f.of(&got)
			switch {
			case before[i] != after || equal[f.id()]: // it changed meanwhile
			case same(ours, after):
				equal[f.id()] = true
			default:
				t.Fatalf("%s: %v, but the kernel says %v\n%s", f.id(), ours, after, text)
			}
		}
	}
	for _, f := range all {
		if !equal[f.id()] {
			t.Errorf("%s keeps changing", f.id())
		}
	}
	if zero := zeros(&got); len(zero) > 0 {
		t.Errorf("zero: %v", zero)
	}
	if got.Processes != model.Some(1) || s.known[got.Cgroup].pid != p.Process.Pid {
		t.Errorf("processes %v, the first %d", got.Processes, s.known[got.Cgroup].pid)
	}
	if want := sharesIn(t, v1["cpu"] == ""); got.CPU.Shares.Value != want {
		t.Errorf("shares %v", got.CPU.Shares)
	}
	if age := time.Since(got.Created); age < -time.Second || age > time.Hour {
		t.Errorf("made %s ago", age)
	}
	checkIO(t, s, v1, v2, path)
	if len(v1) == 0 || v1["memory"] != "" { // the library cannot read some of each
		checkLibrary(t, s, v1, v2, path)
	}
	checkBelow(t, s, mount, path)
}

func checkLibrary(t *testing.T, s *Source, v1 map[string]string, v2, path string) {
	t.Helper()
	type row struct {
		name   string
		ours   model.Optional
		theirs float64
	}
	unequal := ""
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		got, _ := only(t, s)
		var rows []row
		if v1["memory"] == "" {
			m, err := cgroup2.Load(path, cgroup2.WithMountpoint(v2))
			if err != nil {
				t.Fatal(err)
			}
			their, err := m.Stat()
			if err != nil {
				t.Fatal(err)
			}
			rows = []row{
				{"cpu", got.CPU.Total, float64(their.CPU.UsageUsec) / 1e6},
				{"throttled", got.CPU.Throttled, float64(their.CPU.ThrottledUsec) / 1e6},
				{"memory", got.Memory.Usage, float64(their.Memory.Usage)},
				{"rss", got.Memory.RSS, float64(their.Memory.Anon)},
				{"limit", got.Memory.Limit, float64(their.Memory.UsageLimit)},
				{"faults", got.Memory.FaultsBelow, float64(their.Memory.Pgfault)},
				{"oom kills", got.Memory.OOMKills, float64(their.MemoryEvents.OomKill)},
				{"threads", got.Threads, float64(their.Pids.Current)},
				{"threads max", got.ThreadsMax, float64(their.Pids.Limit)},
			}
			for i, d := range their.Io.Usage {
				rows = append(rows, row{"read", got.IO[i].ReadBytes, float64(d.Rbytes)},
					row{"writes", got.IO[i].Writes, float64(d.Wios)})
			}
		} else {
			root := filepath.Dir(v1["memory"])
			c, err := cgroup1.Load(cgroup1.StaticPath(path), cgroup1.WithHierarchy(func() ([]cgroup1.Subsystem, error) {
				return []cgroup1.Subsystem{
					cgroup1.NewCpu(root), cgroup1.NewCpuacct(root), cgroup1.NewPids(root),
					cgroup1.NewMemory(root, cgroup1.OptionalSwap()),
				}, nil
			}))
			if err != nil {
				t.Fatal(err)
			}
			their, err := c.Stat()
			if err != nil {
				t.Fatal(err)
			}
			rows = []row{
				{"cpu", got.CPU.Total, float64(their.CPU.Usage.Total) / 1e9},
				{"user", got.CPU.User, float64(their.CPU.Usage.User) / 1e9},
				{"throttled", got.CPU.Throttled, float64(their.CPU.Throttling.ThrottledTime) / 1e9},
				{"memory", got.Memory.Usage, float64(their.Memory.Usage.Usage)},
				{"rss", got.Memory.RSS, float64(their.Memory.TotalRSS)},
				{"limit", got.Memory.Limit, float64(their.Memory.Usage.Limit)},
				{"faults", got.Memory.FaultsBelow, float64(their.Memory.TotalPgFault)},
				{"oom kills", got.Memory.OOMKills, float64(their.MemoryOomControl.OomKill)},
				{"threads", got.Threads, float64(their.Pids.Current)},
				{"threads max", got.ThreadsMax, float64(their.Pids.Limit)},
			}
		}
		unequal = ""
		for _, r := range rows {
			if !same(r.ours, model.Some(r.theirs)) {
				unequal += fmt.Sprintf("%s is %v, the library says %v\n", r.name, r.ours, r.theirs)
			}
		}
		if unequal == "" {
			return
		}
	}
	t.Error(unequal)
}

// TestVanishes reads real cgroups that come and go meanwhile: each is read or left out, without an error.
func TestVanishes(t *testing.T) {
	v2, v1 := mounts(t)
	mount := v2
	if v1["memory"] != "" {
		mount = v1["memory"]
	}
	top := fmt.Sprintf("/container-test-%d-churn", os.Getpid())
	if err := os.Mkdir(mount+top, 0o755); err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	groups := map[model.CgroupID]string{}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			path := fmt.Sprintf("%s/%d", top, i%20)
			var st unix.Stat_t
			if os.Mkdir(mount+path, 0o755) == nil && unix.Stat(mount+path, &st) == nil {
				mu.Lock()
				groups[model.CgroupID(st.Ino)] = path // earlier cgroups stay in the list
				mu.Unlock()
			}
			_ = os.Remove(mount + fmt.Sprintf("%s/%d", top, (i+10)%20))
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	defer func() {
		close(stop)
		<-done
		for i := range 20 {
			_ = os.Remove(mount + fmt.Sprintf("%s/%d", top, i))
		}
		if err := os.Remove(mount + top); err != nil {
			t.Error(err)
		}
	}()
	s, err := New(Options{Mount: mount, V2: mount == v2, Groups: func() map[model.CgroupID]string {
		mu.Lock()
		defer mu.Unlock()
		list := maps.Clone(groups)
		if len(groups) > 200 {
			clear(groups)
		}
		return list
	}})
	if err != nil {
		t.Fatal(err)
	}
	seen, lost := 0, 0
	begin := time.Now()
	for took := time.Duration(0); took < 300*time.Millisecond || (seen == 0 || lost == 0) && took < 30*time.Second; took = time.Since(begin) {
		got := read(t, s)
		seen += len(got.Usages)
		lost += len(s.list()) - len(got.Usages)
		if len(got.DeviceStates) > 0 {
			t.Fatal(got.DeviceStates)
		}
		for _, u := range got.Usages {
			if !u.Processes.Known || u.Processes.Value != 0 {
				t.Fatalf("processes %v", u.Processes)
			}
		}
	}
	if seen == 0 || lost == 0 {
		t.Errorf("%d seen, %d lost", seen, lost)
	}
}

func sharesIn(t *testing.T, v2 bool) float64 {
	t.Helper()
	if v2 {
		return 998
	}
	return 333
}

// same ignores rounding differences of floating point operations.
func same(a, b model.Optional) bool {
	return a == b || a.Known && b.Known && math.Abs(a.Value-b.Value) <= 1e-9*math.Abs(b.Value)
}

// checkIO compares the block devices with the kernel's file, word for word.
func checkIO(t *testing.T, s *Source, v1 map[string]string, v2, path string) {
	t.Helper()
	before, lines := map[string]string(nil), map[string]string{}
	add := func(text string) {
		for line := range strings.SplitSeq(text, "\n") {
			if f := strings.Fields(line); len(f) > 1 && strings.Contains(f[0], ":") {
				lines[f[0]] += " " + strings.Join(f[1:], " ")
			}
		}
	}
	format := "rbytes=%.0f wbytes=%.0f rios=%.0f wios=%.0f dbytes=%.0f"
	var got []model.DeviceIO
	for range 100 { // until it stops changing
		usage, _ := only(t, s)
		got, before, lines = usage.IO, lines, map[string]string{}
		if root := v1["blkio"]; root != "" {
			add(readFile(t, root+path+"/blkio.throttle.io_service_bytes_recursive"))
			add(readFile(t, root+path+"/blkio.throttle.io_serviced_recursive"))
		} else {
			add(readFile(t, v2+path+"/io.stat"))
		}
		if maps.Equal(before, lines) {
			break
		}
	}
	t.Logf("block devices: %v", lines)
	if len(got) != len(lines) {
		t.Errorf("%d devices of %d", len(got), len(lines))
	}
	for _, d := range got {
		line := lines[fmt.Sprintf("%d:%d", d.Major, d.Minor)]
		var want string
		if v1["blkio"] != "" {
			w := strings.Fields(line) // bytes: Read 1 Write 2 … Total 6, then the operations
			n := map[string]string{}
			for i := 0; i+1 < len(w); i += 2 {
				key := w[i]
				if n[key] != "" {
					key = "operations " + key
				}
				n[key] = w[i+1]
			}
			want = fmt.Sprintf("rbytes=%s wbytes=%s rios=%s wios=%s dbytes=%s", n["Read"], n["Write"],
				n["operations Read"], n["operations Write"], n["Discard"])
		} else {
			w := strings.Fields(line)
			want = strings.Join(w[:5], " ")
		}
		ours := fmt.Sprintf(format, d.ReadBytes.Value, d.WriteBytes.Value, d.Reads.Value, d.Writes.Value, d.DiscardBytes.Value)
		if ours != want {
			t.Errorf("%s: %s, but the kernel says %s", d.Device, ours, want)
		}
		if !strings.HasPrefix(d.Device, "/dev/") {
			t.Errorf("device %s", d.Device)
		}
	}
}

// checkBelow starts a process in a cgroup below, which also belongs to the workload.
func checkBelow(t *testing.T, s *Source, mount, path string) {
	t.Helper()
	if err := os.MkdirAll(mount+path+"/below", 0o755); err != nil {
		t.Fatal(err)
	}
	startHelper(t, "wait", []string{mount + path + "/below"}, 0)
	if got, _ := only(t, s); got.Processes != model.Some(2) {
		t.Errorf("processes with the one below: %v", got.Processes)
	}
}
