// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hang"
	"github.com/accelscope/accelscope/pkg/model"
)

// The trees of files in this file stand for a machine. A test in cmd/accelscope compares the real
// procfs and sysfs with node_exporter.
func write(t testing.TB, root string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func newSource(t testing.TB, root string, log *zap.Logger, now func() time.Time) *Source {
	t.Helper()
	s, err := New(Options{
		Procfs: filepath.Join(root, "proc"), Sysfs: filepath.Join(root, "sys"), Root: filepath.Join(root, "root"),
		Logger: log, Now: now,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustRead(t testing.TB, s *Source) model.Snapshot {
	t.Helper()
	got, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// TestThisMachine reads this machine: the kernel has all parts that need no hardware, and nothing fails.
func TestThisMachine(t *testing.T) {
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	got := mustRead(t, s)
	for end := time.Now().Add(30 * time.Second); len(got.DeviceStates) > 0; got = mustRead(t, s) { // a busy machine may be late
		if time.Now().After(end) {
			t.Fatalf("%+v", got.DeviceStates)
		}
		time.Sleep(100 * time.Millisecond)
	}
	n := reflect.ValueOf(*got.Node)
	for i := range n.NumField() {
		switch name := n.Type().Field(i).Name; name {
		case "Chips", "Throttles", "Pressure", "Clocksources", "Disks", "Energy", "EnergyRead": // not on every machine
		default:
			if f := n.Field(i); f.IsZero() || f.Kind() == reflect.Slice && f.Len() == 0 {
				t.Errorf("%s is empty", name)
			}
		}
	}
}

// TestMissingPart: a missing part is left out, and a malformed file drops only its own part and is logged once.
func TestMissingPart(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{
		"proc/loadavg": "1 2 3 4/5 6\n", "proc/meminfo": "MemTotal: many kB\n", "proc/diskstats": "8 0 sda x\n",
		"proc/net/dev": "a\nb\neth0: 1 2 3\n", "proc/1/mountinfo": "nothing\n", "proc/stat": "cpu0 -1\n", "proc/vmstat": "oom_kill x\n",
		"proc/net/netstat": "TcpExt: A\nIpExt: 1\n", "proc/sys/fs/file-nr": "1 2\n", "proc/pressure/cpu": "some avg10=x\n",
		"sys/class/x": "",
	})
	core, logs := observer.New(zap.WarnLevel)
	s := newSource(t, root, zap.New(core), nil)
	want := []string{
		"stat", "meminfo", "pressure", "filefd", "vmstat", "netstat", "diskstats", "filesystem", "netdev",
	}
	for range 2 {
		got := mustRead(t, s)
		var failed []string
		for _, d := range got.DeviceStates {
			failed = append(failed, d.Device)
			if d.State != model.StateFailed || d.Source != "node" {
				t.Errorf("%+v", d)
			}
		}
		if !reflect.DeepEqual(failed, want) {
			t.Errorf("failed: %q, want %q", failed, want)
		}
		if got.Node.Load == nil || got.Node.Load.Five != 2 || got.Node.Memory != nil || got.Node.NetDevs != nil {
			t.Errorf("%+v", got.Node)
		}
	}
	if logs.Len() != len(want) {
		t.Errorf("%d warnings in two reads, want %d: %v", logs.Len(), len(want), logs.All())
	}
	write(t, root, map[string]string{"proc/stat": "cpu0 1\n"})
	for _, d := range mustRead(t, s).DeviceStates {
		if d.Device == "stat" {
			t.Error("stat still fails")
		}
	}
	empty := t.TempDir()
	write(t, empty, map[string]string{"proc/x": ""})
	if _, err := newSource(t, empty, nil, nil).Read(t.Context()); !errors.Is(err, model.ErrAbsent) {
		t.Errorf("an empty procfs: %v", err)
	}
}

func TestNoProcfs(t *testing.T) {
	if _, err := New(Options{Procfs: t.TempDir() + "/none"}); err == nil {
		t.Error("no error")
	}
}

// TestCounterNeverFalls lets the idle time of a CPU fall: only a replugged CPU starts from a lower value.
func TestCounterNeverFalls(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{"sys/x": "", "proc/stat": "cpu0 100 0 0 5000 700\ncpu1 1 1 1 1 1\n"})
	s := newSource(t, root, nil, nil)
	mustRead(t, s)
	for _, step := range []struct {
		stat               string
		user, idle, iowait float64
	}{
		{"cpu  1 1 1 1 1\ncpu0 101 0 0 4990 650\n", 1.01, 50, 7},
		{"cpu  1 1 1 1 1\ncpu0 101 0 0 5100 800\n", 1.01, 51, 8},
		{"cpu  1 1 1 1 1\ncpu0 3 0 0 200 1\n", .03, 2, .01}, // a new CPU
	} {
		write(t, root, map[string]string{"proc/stat": step.stat})
		cpus := mustRead(t, s).Node.CPUs
		if len(cpus) != 2 || cpus[0].ID != "" || cpus[0].Seconds[0] != .01 {
			t.Errorf("%+v, want the sum and one CPU", cpus)
		}
		c := cpus[1]
		if c.Seconds[0] != step.user || c.Seconds[3] != step.idle || c.Seconds[4] != step.iowait {
			t.Errorf("%q: %v", step.stat, c.Seconds)
		}
	}
}

// TestInterfaces: attributes are read again after a link change, after a replacement of the interface, and after a
// minute.
func TestInterfaces(t *testing.T) {
	root := t.TempDir()
	now := time.Unix(1e9, 0)
	set := func(files map[string]string) { write(t, filepath.Join(root, "sys/class/net/eth0"), files) }
	write(t, root, map[string]string{"proc/loadavg": "1 2 3\n", "sys/class/net/bonding_masters": "x", "proc/1/ns/x": ""})
	if err := os.Symlink("/proc/self/ns/net", root+"/proc/1/ns/net"); err != nil {
		t.Fatal(err)
	}
	set(map[string]string{"mtu": "1500\n", "operstate": "up\n", "carrier_changes": "1\n", "flags": "0x1003\n"})
	s := newSource(t, root, nil, func() time.Time { return now })
	mtu := func() int64 {
		t.Helper()
		c := mustRead(t, s).Node.NetClasses
		if len(c) != 1 || c[0].MTU == nil {
			t.Fatalf("%+v", c)
		}
		return *c[0].MTU
	}
	check := func(when string, want int64) {
		t.Helper()
		if got := mtu(); got != want {
			t.Errorf("%s: %d, want %d", when, got, want)
		}
	}
	check("first", 1500)
	set(map[string]string{"mtu": "9000\n"})
	check("kept", 1500)
	set(map[string]string{"carrier_changes": "2\n"})
	check("the link moved", 9000)
	set(map[string]string{"mtu": "1400\n"})
	now = now.Add(coldAge)
	check("a minute later", 1400)
	set(map[string]string{"mtu": "1300\n"})
	if err := os.Rename(root+"/sys/class/net/eth0", root+"/old"); err != nil { // so that its inode is not reused
		t.Fatal(err)
	}
	set(map[string]string{"mtu": "1200\n", "operstate": "up\n", "carrier_changes": "2\n", "flags": "0x1003\n"})
	check("another one", 1200)
	if err := os.RemoveAll(root + "/sys/class/net/eth0"); err != nil {
		t.Fatal(err)
	}
	if c := mustRead(t, s).Node.NetClasses; c == nil || len(c) != 0 {
		t.Errorf("gone: %+v", c)
	}
}

// TestForeignInterfaces: the sysfs of a pod is not mistaken for the node's. The network namespace of the node is unknown.
func TestForeignInterfaces(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{
		"proc/loadavg": "1 2 3\n", "proc/1/net/dev": "a\nb\n lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n",
		"sys/class/net/lo/mtu": "1\n",
	})
	s := newSource(t, root, nil, nil)
	if got := mustRead(t, s); len(got.DeviceStates) > 0 || len(got.Node.NetClasses) != 1 {
		t.Errorf("the node's own sysfs: %+v", got.DeviceStates)
	}
	write(t, root, map[string]string{"sys/class/net/eth0/mtu": "1\n"})
	got := mustRead(t, s)
	if len(got.DeviceStates) != 1 || got.DeviceStates[0].Device != "netclass" || got.Node.NetClasses != nil {
		t.Errorf("that of a pod: %+v, %+v", got.DeviceStates, got.Node.NetClasses)
	}
	if len(got.Node.NetDevs) != 1 {
		t.Errorf("%+v", got.Node.NetDevs)
	}
}

// TestSensors: values are read each time, limits once a minute.
func TestSensors(t *testing.T) {
	root := t.TempDir()
	now := time.Unix(1e9, 0)
	write(t, root, map[string]string{
		"proc/loadavg": "1 2 3\n", "sys/class/hwmon/hwmon0/name": "x\n",
		"sys/class/hwmon/hwmon0/temp1_input": "1\n", "sys/class/hwmon/hwmon0/temp1_max": "1\n",
	})
	s := newSource(t, root, nil, func() time.Time { return now })
	figures := func() string { return fmt.Sprint(mustRead(t, s).Node.Chips[0].Sensors[0].Figures) }
	if got := figures(); got != "[{input 1} {max 1}]" {
		t.Error(got)
	}
	write(t, root, map[string]string{"sys/class/hwmon/hwmon0/temp1_input": "2\n", "sys/class/hwmon/hwmon0/temp1_max": "2\n"})
	if got := figures(); got != "[{input 2} {max 1}]" {
		t.Error(got)
	}
	now = now.Add(coldAge)
	if got := figures(); got != "[{input 2} {max 2}]" {
		t.Error(got)
	}
	if err := os.Remove(root + "/sys/class/hwmon/hwmon0/temp1_input"); err != nil {
		t.Fatal(err)
	}
	if got := figures(); got != "[{max 2}]" {
		t.Error(got)
	}
}

// TestSameChips: chips of a device have distinct ids, even if their names are equal as labels.
func TestSameChips(t *testing.T) {
	for _, c := range []struct{ names, want []string }{
		{[]string{"nvme", "temp"}, []string{"platform_dev_0_nvme", "platform_dev_0_temp"}},
		{[]string{"nvme-1", "nvme_1"}, []string{"platform_dev_0_hwmon0", "platform_dev_0_hwmon1"}},
		{[]string{"nvme", "nvme", "Nvme!"}, []string{"platform_dev_0_hwmon0", "platform_dev_0_hwmon1", "platform_dev_0_hwmon2"}},
		{[]string{"+", "nvme", "-"}, []string{"platform_dev_0_hwmon0", "platform_dev_0_nvme", "platform_dev_0_hwmon2"}},
		{[]string{"a", "hwmon0", "a"}, []string{"platform_dev_0_hwmon0_hwmon0", "platform_dev_0_hwmon0_hwmon1", "platform_dev_0_hwmon2"}},
	} {
		root := t.TempDir()
		write(t, root, map[string]string{"proc/loadavg": "1 2 3\n", "sys/devices/platform/dev.0/x": "", "sys/devices/platform/dev-0/x": ""})
		for i, name := range c.names {
			dir := fmt.Sprintf("sys/class/hwmon/hwmon%d/", i)
			write(t, root, map[string]string{dir + "name": name + "\n", dir + "temp1_input": "1\n", dir + "temp1_label": "a\nb\n"})
			device := root + "/sys/devices/platform/dev" + []string{".", "-"}[i%2] + "0" // different devices, too
			if err := os.Symlink(device, filepath.Join(root, dir, "device")); err != nil {
				t.Fatal(err)
			}
		}
		var got []string
		for _, chip := range mustRead(t, newSource(t, root, nil, nil)).Node.Chips {
			got = append(got, chip.ID)
			if label := *chip.Sensors[0].Label; label != "a\nb" {
				t.Errorf("label %q", label)
			}
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %q, want %q", c.names, got, c.want)
		}
	}
}

// TestSerial checks a virtio disk, which has only ID_SERIAL.
func TestSerial(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{
		"proc/diskstats": "254 0 vda 1 2 3\n", "sys/x": "", "proc/loadavg": "1 2 3\n",
		"root/run/udev/data/b254:0": "E:ID_SERIAL=a\xff b\nE:ID_FS_TYPE=\n",
	})
	d := mustRead(t, newSource(t, root, nil, nil)).Node.Disks[0]
	if d.Serial != "a\uFFFD b" || d.Filesystem != nil || !reflect.DeepEqual(d.Stats, []uint64{1, 2, 3}) {
		t.Errorf("%+v", d)
	}
}

const twoMounts = "20 1 259:2 / / rw shared:1 - ext4 /dev/nvme0n1p2 rw\n21 1 0:63 / /mnt/nfs rw - nfs4 10.0.0.1:/export rw\n"

// TestHungMount: a mount point that hangs delays only one read by a second, lacks only its own values, and is read
// again when it answers.
func TestHungMount(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{"proc/1/mountinfo": twoMounts, "proc/loadavg": "1 2 3\n"})
	synctest.Test(t, func(t *testing.T) {
		s := newSource(t, root, nil, nil)
		m := newMountReader(root+"/proc", root+"/root")
		s.slow = []*slowPart{{part: part{"filesystem", m.read}}}
		release := make(chan struct{})
		var calls atomic.Int64
		m.statfs = func(path string, st *unix.Statfs_t) error {
			if strings.HasSuffix(path, "nfs") {
				calls.Add(1)
				<-release
			}
			st.Bsize, st.Frsize, st.Blocks = 1<<20, 4096, 10
			return nil
		}
		began := time.Now()
		check := func(when string, took time.Duration, wrong int) {
			t.Helper()
			got := mustRead(t, s)
			f := got.Node.Filesystems
			if len(f) != 2 || f[0].Size != 40960 || f[0].Error != "" {
				t.Fatalf("%s: %+v", when, f)
			}
			if hangs := f[1].Error != ""; hangs != (wrong > 0) || len(got.DeviceStates) != wrong {
				t.Errorf("%s: %+v, %+v", when, f[1], got.DeviceStates)
			}
			if d := time.Since(began); d != took {
				t.Errorf("%s: took %s, want %s", when, d, took)
			}
			began = time.Now()
		}
		check("it hangs", callTimeout, 1)
		check("it still hangs", 0, 1)
		// It still hangs after the table of mounts changed.
		write(t, root, map[string]string{"proc/1/mountinfo": twoMounts + "22 1 0:99 / /proc rw - proc proc rw\n"})
		check("another table", 0, 1)
		if n := calls.Load(); n != 1 {
			t.Errorf("%d calls of statfs while it hung", n)
		}
		close(release)
		synctest.Wait()
		check("it answers", 0, 0)
	})
}

// Many servers or disks that never answer occupy few threads, and the others are read nevertheless. The first read waits
// for disks until there is no time left for servers.
func TestManyHungMounts(t *testing.T) {
	t.Run("servers", func(t *testing.T) { manyHungMounts(t, false) })
	t.Run("disks", func(t *testing.T) { manyHungMounts(t, true) })
}

func manyHungMounts(t *testing.T, disksHang bool) {
	var table strings.Builder
	for i := range 40 {
		fmt.Fprintf(&table, "%d 1 259:%d / /mnt/disk%d rw - ext4 /dev/nvme%dn1 rw\n", 100+i, i, i, i)
	}
	for i := range 300 {
		fmt.Fprintf(&table, "%d 1 0:%d / /mnt/nfs%d rw - nfs4 10.0.0.%d:/export rw\n", 200+i, 60+i, i, i%150)
		fmt.Fprintf(&table, "%d 1 0:%d / /mnt/fuse%d rw - fuse.sshfs sshfs rw\n", 600+i, 460+i, i)
	}
	root := t.TempDir()
	write(t, root, map[string]string{"proc/1/mountinfo": table.String()})
	synctest.Test(t, func(t *testing.T) {
		m := newMountReader(root+"/proc", root+"/root")
		release := make(chan struct{})
		var hung atomic.Int64
		m.statfs = func(path string, st *unix.Statfs_t) error {
			if strings.Contains(path, "disk") == disksHang {
				hung.Add(1)
				<-release
			}
			st.Bsize, st.Frsize, st.Blocks = 1<<20, 4096, 10
			return nil
		}
		for round := range 3 {
			time.Sleep(time.Second)
			var n reading
			if err := m.read(time.Time{}, &n); err != nil {
				t.Fatal(err)
			}
			for _, f := range n.Filesystems {
				hangs := strings.Contains(f.MountPoint, "disk") == disksHang
				if (hangs || !disksHang || round > 0) && (hangs != (f.Error != "") || hangs != (f.Size == 0)) {
					t.Fatalf("read %d: %+v", round, f)
				}
			}
		}
		if n := hung.Load(); n > hang.MaxHanging/2 {
			t.Errorf("%d calls hang, want at most %d", n, hang.MaxHanging/2)
		}
		close(release)
		synctest.Wait()
		var n reading
		if err := m.read(time.Time{}, &n); err != nil {
			t.Fatal(err)
		}
		for _, f := range n.Filesystems {
			if f.Error != "" {
				t.Errorf("when all answer: %+v", f)
			}
		}
	})
}

// The mount points of a device or server are called one after the other.
func TestAnsweringOf(t *testing.T) {
	for want, f := range map[string]model.Filesystem{
		"8:1":              {Device: "/dev/sda1", Type: "ext4", Major: "8", Minor: "1"},
		"0:40":             {Device: "tmpfs", Type: "tmpfs", Major: "0", Minor: "40"},
		"remote 10.0.0.1":  {Device: "10.0.0.1:/export", Type: "nfs4", Major: "0", Minor: "41"},
		"remote [fe80::1]": {Device: "[fe80::1]:/", Type: "nfs", Major: "0", Minor: "42"},
		"remote files":     {Device: "//files/share", Type: "cifs", Major: "0", Minor: "43"},
		"remote u@h":       {Device: "u@h:/home", Type: "fuse.sshfs", Major: "0", Minor: "44"},
		"remote 0:45":      {Device: "gpfs0", Type: "gpfs", Major: "0", Minor: "45"},
	} {
		got, isRemote := answeringOf(&f)
		if isRemote {
			got = "remote " + got
		}
		if got != want {
			t.Errorf("%s: %s, want %s", f.Device, got, want)
		}
	}
}

// TestHungDriver: a part that hangs or panics drops only itself.
func TestHungDriver(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{"proc/loadavg": "1 2 3\n"})
	synctest.Test(t, func(t *testing.T) {
		s := newSource(t, root, nil, nil)
		release := make(chan struct{})
		s.slow = []*slowPart{
			{part: part{"hwmon", func(_ time.Time, n *reading) error {
				<-release
				n.Chips = []model.Chip{{ID: "x"}}
				return nil
			}}},
			{part: part{"netdev", func(time.Time, *reading) error { panic("driver") }}},
		}
		states := func() string {
			got, out := mustRead(t, s), ""
			for _, d := range got.DeviceStates {
				out += fmt.Sprint(d.Device, " ", d.State, ";")
			}
			return out + fmt.Sprint(len(got.Node.Chips))
		}
		began := time.Now()
		for range 3 {
			if got := states(); got != "hwmon stuck;netdev failed;0" {
				t.Error(got)
			}
		}
		if took := time.Since(began); took > 2*callTimeout {
			t.Errorf("three reads took %s", took)
		}
		close(release)
		synctest.Wait()
		states() // so that the recovery is noted
		if got := states(); got != "netdev failed;1" {
			t.Error(got)
		}
	})
}

// TestStatfs: blocks are counted in fragments, as df does, and statfs gets the node's name of the mount point.
func TestStatfs(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{"proc/1/mountinfo": mountText})
	m := newMountReader(root+"/proc", "/")
	var mu sync.Mutex
	asked := map[string]bool{}
	m.statfs = func(path string, st *unix.Statfs_t) error {
		mu.Lock()
		defer mu.Unlock()
		asked[path] = true
		st.Bsize, st.Frsize, st.Blocks, st.Bfree, st.Bavail = 131072, 512, 2147483648, 2, 1
		if path == "/" { // a kernel without fragments
			st.Frsize = 0
		}
		return nil
	}
	var n reading
	if err := m.read(time.Time{}, &n); err != nil {
		t.Fatal(err)
	}
	sizes := map[string]float64{}
	for _, f := range n.Filesystems {
		sizes[f.MountPoint] = f.Size
	}
	for point, size := range map[string]float64{"/": 131072 << 31, `/back\slash`: 512 << 31, "/a\nb": 512 << 31} {
		if sizes[point] != size || !asked[point] {
			t.Errorf("%q: %g, want %g; statfs was called for %v", point, sizes[point], size, asked)
		}
	}
}

// TestCounterWraps: the stolen time does not stand still after a fall, whether it wrapped or was corrected.
func TestCounterWraps(t *testing.T) {
	for _, c := range []struct {
		name          string
		before, after uint64 // ticks
		want          []float64
	}{
		{"wrapped at 32 bits", 1 << 32, 100, []float64{42949672.96, 42949672.96, 1.02, 1.03}},
		{"a jump beyond all times, and back", 1 << 63, 50000, []float64{(1 << 63) / 100., (1 << 63) / 100., 500.02, 500.03}},
		{"corrected by ten seconds", 6000, 5000, []float64{60, 60, 60, 60.01}},
		{"lower for one read", 6000, 5999, []float64{60, 60, 60.01, 60.02}},
	} {
		root := t.TempDir()
		set := func(steal uint64) {
			write(t, root, map[string]string{"sys/x": "", "proc/stat": fmt.Sprintf("cpu0 1 1 1 5000 1 1 1 %d 0 0\n", steal)})
		}
		set(c.before)
		s := newSource(t, root, nil, nil)
		mustRead(t, s)
		for i, want := range c.want {
			set(c.after + uint64(i))
			if got := mustRead(t, s).Node.CPUs[0].Seconds[7]; got != want {
				t.Errorf("%s, read %d: %v, want %v", c.name, i+1, got, want)
			}
		}
	}
}

// TestLinksOfTheNode reads os-release and the file system of a mount point through absolute links of the node.
func TestLinksOfTheNode(t *testing.T) {
	root := t.TempDir()
	write(t, root, map[string]string{
		"proc/loadavg": "1 2 3\n", "sys/x": "", "root/usr/lib/os-release": "ID=node\n", "root/etc/x": "", "root/real/x": "",
		"proc/1/mountinfo": "21 20 0:40 / /link rw - tmpfs t rw\n22 20 0:41 / /lost rw - tmpfs t rw\n",
	})
	for link, target := range map[string]string{"etc/os-release": "/usr/lib/os-release", "link": "/real", "lost": "/proc"} {
		if err := os.Symlink(target, filepath.Join(root, "root", link)); err != nil {
			t.Fatal(err)
		}
	}
	n := mustRead(t, newSource(t, root, nil, nil)).Node
	if n.OS == nil || n.OS.ID != "node" {
		t.Errorf("%+v", n.OS)
	}
	if f := n.Filesystems; len(f) != 2 || f[0].Error != "" || f[0].Size == 0 || f[1].Error != "no such file or directory" {
		t.Errorf("%+v", f)
	}
}
