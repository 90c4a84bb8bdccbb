// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/accelscope/accelscope/pkg/hotplug"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The backoff of hang.Backoff: failures before the first pause, and its length.
const (
	failsBeforePause = 3
	shortestPause    = time.Minute
)

func newSource(t testing.TB, tr hca.Tree, change ...func(*Options)) *Source {
	t.Helper()
	o := Options{Sysfs: tr.Root, Deadline: time.Minute} // long enough for a busy machine
	for _, c := range change {
		c(&o)
	}
	if o.Netlink != nil {
		o.Netlink = NewNetlink(o) // with all options
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func mustRead(t testing.TB, s *Source) model.Snapshot {
	t.Helper()
	snap, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

// states returns "device=state" of each device.
func states(snap model.Snapshot) string {
	var all []string
	for _, d := range snap.DeviceStates {
		if d.Source != "rdma" {
			return "a state of source " + d.Source
		}
		all = append(all, d.Device+"="+string(d.State))
	}
	return strings.Join(all, " ")
}

func names(snap model.Snapshot) string {
	var all []string
	for _, h := range snap.HCAs {
		all = append(all, h.Name)
	}
	return strings.Join(all, " ")
}

func counters(names []string, base uint64) []model.Counter {
	all := []model.Counter{}
	for i, n := range names {
		all = append(all, model.Counter{Name: n, Value: base + uint64(i)})
	}
	return all
}

func without(counters []model.Counter, names ...string) []model.Counter {
	kept := []model.Counter{}
	for _, c := range counters {
		if !strings.Contains(" "+strings.Join(names, " ")+" ", " "+c.Name+" ") {
			kept = append(kept, c)
		}
	}
	return kept
}

func TestRead(t *testing.T) {
	tr := hca.NewTree(t)
	tr.HCA(0, 1000)
	got := mustRead(t, newSource(t, tr))
	want := model.Snapshot{
		HCAs: []model.HCA{{
			Name: "mlx5_0", Firmware: "28.39.3004", Board: "MT_0000000838", Type: "MT4129", NodeType: "CA",
			NodeGUID: "0xa088c20300000000", SysImageGUID: "0xa088c20300000000", NodeDesc: "node-0 mlx5_0",
			PCIAddress: "0000:18:00.0", NUMANode: "0", CharDevice: "uverbs40",
			Ports: []model.Port{{
				Number: 1, State: "ACTIVE", PhysState: "LinkUp", LinkLayer: "InfiniBand", Netdev: "ib0",
				LID: "0x1", SMLID: "0x2", PortGUID: "0xa088c20300000000", RateBits: 400e9, Width: 4, Speed: "NDR",
				Counters: counters(hca.PMACounters, 1000), HWCounters: counters(hca.HWCounters, 1100),
			}},
		}},
		DeviceStates: []model.DeviceState{{Source: "rdma", Device: "mlx5_0", State: model.StateOK}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("snapshot (-want +got):\n%s", d)
	}
}

// TestExtCounters reads counters_ext/, which drivers for kernels before 4.5 have beside counters/.
func TestExtCounters(t *testing.T) {
	tr := hca.NewTree(t)
	dev := tr.HCA(0, 1000)
	tr.Put(dev+"/ports/1/counters_ext/port_rcv_data_64", "4631917\n")
	tr.Put(dev+"/ports/1/counters_ext/port_xmit_data_64", "N/A (no PMA)\n")
	tr.Put(dev+"/ports/1/counters_ext/port_xmit_packets_64", "0\n")
	s := newSource(t, tr)
	want := []model.Counter{{Name: "port_rcv_data_64", Value: 4631917}, {Name: "port_xmit_packets_64", Value: 0}}
	port := mustRead(t, s).HCAs[0].Ports[0]
	if d := cmp.Diff(want, port.ExtCounters); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if d := cmp.Diff(counters(hca.PMACounters, 1000), port.Counters); d != "" {
		t.Errorf("counters/ (-want +got):\n%s", d)
	}
}

// TestSnapshotIsImmutable: a later Read does not change an earlier snapshot.
func TestSnapshotIsImmutable(t *testing.T) {
	tr := hca.NewTree(t)
	dev := tr.HCA(0, 1)
	s := newSource(t, tr)
	first := mustRead(t, s)
	tr.Put(dev+"/ports/1/counters/port_rcv_data", "99999\n")
	tr.Put(dev+"/ports/1/state", "1: DOWN\n")
	second := mustRead(t, s)
	if p := first.HCAs[0].Ports[0]; p.State != "ACTIVE" || p.Counters[8].Value != 9 {
		t.Errorf("the first snapshot changed: %v %v", p.State, p.Counters[8])
	}
	if p := second.HCAs[0].Ports[0]; p.State != "DOWN" || p.Counters[8].Value != 99999 {
		t.Errorf("the second snapshot is stale: %v %v", p.State, p.Counters[8])
	}
}

// TestSystemCalls counts the system calls of a scrape with all files kept open.
func TestSystemCalls(t *testing.T) {
	const hcas = 10
	tr := hca.NewTree(t)
	for n := range hcas {
		tr.HCA(n, 1)
	}
	s := newSource(t, tr)
	calls := func() int {
		n := s.reader.Calls
		for _, d := range s.devices {
			n += d.files.Reader.Calls + d.queries.Reader.Calls
		}
		return n
	}
	mustRead(t, s)
	mustRead(t, s)
	before := calls()
	mustRead(t, s)
	values := len(hca.PMACounters) + len(hca.HWCounters) + 3 // state, phys_state, rate
	listing := 3                                             // lseek, getdents64 twice
	if got, want := calls()-before, hcas*values+listing; got != want {
		t.Errorf("%d system calls, want %d", got, want)
	}
}

// TestAnnounced: devices are listed after an announcement, again until the device has certainly moved, and once a minute.
func TestAnnounced(t *testing.T) {
	tr := hca.NewTree(t)
	tr.HCA(0, 1)
	procfs := t.TempDir() // its first process is in the network namespace of the test
	if err := errors.Join(
		os.MkdirAll(filepath.Join(procfs, "1/ns"), 0o755),
		os.Symlink("/proc/self/ns/net", filepath.Join(procfs, "1/ns/net")),
	); err != nil {
		t.Fatal(err)
	}
	w, err := hotplug.Open("/sys", procfs, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	now := time.Now()
	s := newSource(t, tr, func(o *Options) { o.Hotplug, o.Now = w, func() time.Time { return now } })
	s.changes = w.Devices("tty")
	after := func(pause time.Duration, hcas int, listed bool) {
		t.Helper()
		now = now.Add(pause)
		round := s.round
		if n := len(mustRead(t, s).HCAs); n != hcas || (s.round > round) != listed {
			t.Errorf("%d HCAs, listed: %t; want %d, %t", n, s.round > round, hcas, listed)
		}
	}
	after(0, 1, true)
	after(hotplug.Interval/2, 1, false)
	tr.HCA(1, 1)
	after(time.Second, 1, false)
	if err := os.WriteFile("/sys/class/tty/tty/uevent", []byte("add"), 0o200); err != nil {
		t.Fatal(err) // needs root
	}
	eventually(t, func() bool { return len(s.changes.Changed()) > 0 })
	after(0, 2, true)
	after(moving, 2, true)
	after(time.Second, 2, true)
	tr.Remove("class/infiniband/mlx5_1")
	after(time.Second, 2, false)
	after(hotplug.Interval, 1, true)
}

func TestKeptFiles(t *testing.T) {
	tr := hca.NewTree(t)
	tr.Put(tr.HCA(0, 1)+"/ports/1/counters_ext/port_rcv_data_64", "1\n")
	open := func() int {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(fds)
	}
	before := open()
	s := newSource(t, tr)
	s.kept.Store(5)
	eventually(t, func() bool { return mustRead(t, s).VFs != nil }) // read in the background, every 10 s
	want := mustRead(t, s)
	got := mustRead(t, s)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("the second read differs (-first +second):\n%s", d)
	}
	// 5 files, and 6 directories: class/infiniband, the device twice, counters, hw_counters and counters_ext. Virtual functions are
	// read in the background.
	eventually(t, func() bool { return open()-before == 5+6 })
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if n := open() - before; n != 0 {
		t.Errorf("%d descriptors are open after Close", n)
	}
}

func TestAbsent(t *testing.T) {
	for name, setup := range map[string]func(hca.Tree){
		"no class":     func(tr hca.Tree) { tr.Remove("class") },
		"empty class":  func(hca.Tree) {},
		"all excluded": func(tr hca.Tree) { tr.HCA(0, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			tr := hca.NewTree(t)
			setup(tr)
			s := newSource(t, tr, func(o *Options) { o.Exclude = regexp.MustCompile("mlx5") })
			snap, err := s.Read(t.Context())
			if !errors.Is(err, model.ErrAbsent) {
				t.Errorf("error %v, want ErrAbsent", err)
			}
			if snap.HCAs == nil || len(snap.HCAs) != 0 {
				t.Errorf("HCAs %v, want empty and not nil", snap.HCAs)
			}
		})
	}
	if _, err := New(Options{Sysfs: filepath.Join(t.TempDir(), "nothing")}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("New on no sysfs: %v", err)
	}
}

func TestDevicesComeAndGo(t *testing.T) {
	tr := hca.NewTree(t)
	s := newSource(t, tr)
	steps := []struct {
		do   func()
		want string
	}{
		{func() { tr.HCA(1, 1) }, "mlx5_1"},
		{func() { tr.HCA(0, 1) }, "mlx5_0 mlx5_1"},
		{func() { tr.Remove("class/infiniband/mlx5_1") }, "mlx5_0"},
		{func() { tr.HCA(1, 500) }, "mlx5_0 mlx5_1"},
		// The modules are unloaded and loaded again, which makes another directory.
		{func() { tr.Remove("class/infiniband") }, ""},
		{func() { tr.HCA(2, 1) }, "mlx5_2"},
	}
	for i, step := range steps {
		step.do()
		snap, err := s.Read(t.Context())
		if got := names(snap); got != step.want {
			t.Errorf("step %d: %q, want %q", i, got, step.want)
		}
		if step.want != "" && err != nil {
			t.Errorf("step %d: %v", i, err)
		}
		if i == 3 && snap.HCAs[1].Ports[0].Counters[0].Value != 500 {
			t.Errorf("step %d: counters of the earlier device: %v", i, snap.HCAs[1].Ports[0].Counters[0])
		}
	}
}

// TestLateUverbs: a device appears in class/infiniband before its uverbs device. The missing
// data is read again, but not at each read.
func TestLateUverbs(t *testing.T) {
	tr := hca.NewTree(t)
	tr.HCA(0, 1)
	tr.Remove("class/infiniband_verbs")
	now := time.Unix(1000, 0)
	s := newSource(t, tr, func(o *Options) { o.Now = func() time.Time { return now } })
	for _, step := range []struct {
		later time.Duration
		want  string
	}{{0, ""}, {nodeRetry - 1, ""}, {1, "uverbs40"}, {0, "uverbs40"}} {
		now = now.Add(step.later)
		if got := mustRead(t, s).HCAs[0].CharDevice; got != step.want {
			t.Errorf("%v later: %q, want %q", step.later, got, step.want)
		}
		tr.Put("class/infiniband_verbs/uverbs40/ibdev", "mlx5_0\n")
	}
}

// TestOddNames: devices, counters and ports may have any name that the kernel accepts. A name that cannot be a label or
// a path is refused, with a state, and logged once.
func TestOddNames(t *testing.T) {
	tr := hca.NewTree(t)
	dev := tr.HCA(0, 1)
	odd := []string{
		"rail+0", "rail@0", "rail#0", "rail~0", "(rail0)", "roce,1", "mlx5 data", " x ", "réseau0", ".h", "!x", `"q"`, "a=b", "new\nline",
	}
	for i, name := range odd {
		tr.Put("class/infiniband/"+name+"/fw_ver", "1\n")
		tr.Put("class/infiniband/"+name+"/ports/1/counters/port_rcv_data", "1\n")
		tr.Put(fmt.Sprintf("class/infiniband_verbs/uverbs%d/ibdev", 50+i), name+"\n")
	}
	tr.Put("class/infiniband/bad\xff/fw_ver", "1\n")
	tr.Put("class/infiniband/"+strings.Repeat("x", 64)+"/fw_ver", "1\n")
	for _, name := range []string{"SwLinkDown,32", "{x}", strings.Repeat("x", 100), "bad\xfe"} {
		tr.Put(dev+"/ports/1/hw_counters/"+name, "1\n")
	}
	for _, name := range []string{"01", "x", "300", "4294967295", "4294967296"} {
		tr.Dir(dev + "/ports/" + name)
	}
	core, logged := observer.New(zap.WarnLevel)
	s := newSource(t, tr, func(o *Options) { o.Logger = zap.New(core) })
	snap := mustRead(t, s)
	for i, name := range odd {
		at := slices.IndexFunc(snap.HCAs, func(h model.HCA) bool { return h.Name == name })
		if at < 0 || len(snap.HCAs[at].Ports) != 1 || snap.HCAs[at].CharDevice != fmt.Sprintf("uverbs%d", 50+i) {
			t.Errorf("%q is missing, or its port or uverbs device: %+v", name, snap.HCAs)
		}
	}
	h := snap.HCAs[slices.IndexFunc(snap.HCAs, func(h model.HCA) bool { return h.Name == "mlx5_0" })]
	numbers := []int{}
	for _, p := range h.Ports {
		numbers = append(numbers, p.Number)
	}
	if !slices.Equal(numbers, []int{1, 300, math.MaxUint32}) {
		t.Errorf("ports %v", numbers)
	}
	counters := []string{}
	for _, c := range h.Ports[0].HWCounters {
		counters = append(counters, c.Name)
	}
	for _, name := range []string{"SwLinkDown,32", "{x}", strings.Repeat("x", 100)} {
		if !slices.Contains(counters, name) {
			t.Errorf("counter %q is missing: %q", name, counters)
		}
	}
	mustRead(t, s)
	at := slices.IndexFunc(snap.DeviceStates, func(d model.DeviceState) bool { return d.Device == "names" })
	if at < 0 || snap.DeviceStates[at].State != model.StateFailed {
		t.Fatalf("no state of the refused names: %+v", snap.DeviceStates)
	}
	for _, name := range []string{`device "bad\xff"`, `device "xxxx`, `counter "bad\xfe"`, `port "01"`, `port "x"`, `port "4294967296"`} {
		if !strings.Contains(snap.DeviceStates[at].Reason, name) {
			t.Errorf("%s is not in %s", name, snap.DeviceStates[at].Reason)
		}
		if n := logged.Filter(func(e observer.LoggedEntry) bool {
			return strings.Contains(fmt.Sprint(e.ContextMap()["name"]), name)
		}).Len(); n != 1 {
			t.Errorf("%s is logged %d times", name, n)
		}
	}
}

// TestBadFiles: a bad file drops only its own counter.
func TestBadFiles(t *testing.T) {
	const rcv = "/ports/1/counters/port_rcv_data"
	for name, c := range map[string]struct {
		spoil  func(tr hca.Tree, dev string)
		reason string // in the device's state
	}{
		"directory": {func(tr hca.Tree, dev string) { tr.Remove(dev + rcv); tr.Dir(dev + rcv) }, "is a directory"},
		"EINVAL":    {func(tr hca.Tree, dev string) { tr.Link(dev+rcv, "/proc/self/attr/current") }, "invalid argument"},
		"EIO":       {func(tr hca.Tree, dev string) { tr.Link(dev+rcv, "/proc/self/mem") }, "input/output error"},
		"dangling":  {func(tr hca.Tree, dev string) { tr.Link(dev+rcv, "nothing") }, "no such file"},
		"no PMA":    {func(tr hca.Tree, dev string) { tr.Put(dev+rcv, "N/A (no PMA)\n") }, ""},
		"empty":     {func(tr hca.Tree, dev string) { tr.Put(dev+rcv, "") }, "malformed content"},
		"garbage":   {func(tr hca.Tree, dev string) { tr.Put(dev+rcv, "12 monkeys\n") }, "malformed content"},
		"negative":  {func(tr hca.Tree, dev string) { tr.Put(dev+rcv, "-1\n") }, "malformed content"},
		"too big":   {func(tr hca.Tree, dev string) { tr.Put(dev+rcv, "18446744073709551616\n") }, "malformed content"},
		"10 MiB":    {func(tr hca.Tree, dev string) { tr.Put(dev+rcv, strings.Repeat("1", 10<<20)) }, "malformed content"},
		"removed":   {func(tr hca.Tree, dev string) { tr.Remove(dev + rcv) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := hca.NewTree(t)
			tr.HCA(0, 1)
			c.spoil(tr, tr.HCA(1, 1))
			s := newSource(t, tr)
			for range 5 {
				snap := mustRead(t, s)
				if got := states(snap); got != "mlx5_0=ok mlx5_1=ok" {
					t.Fatalf("states %q", got)
				}
				if got := snap.DeviceStates[1].Reason; !strings.Contains(got, c.reason) || (c.reason == "") != (got == "") {
					t.Errorf("reason %q, want %q", got, c.reason)
				}
				want := without(counters(hca.PMACounters, 1), "port_rcv_data")
				if d := cmp.Diff(want, snap.HCAs[1].Ports[0].Counters); d != "" {
					t.Errorf("the other counters (-want +got):\n%s", d)
				}
				if d := cmp.Diff(counters(hca.PMACounters, 1), snap.HCAs[0].Ports[0].Counters); d != "" {
					t.Errorf("the other device (-want +got):\n%s", d)
				}
			}
		})
	}
}

// TestFailingFileBacksOff: a file that keeps failing is not read for a minute.
func TestFailingFileBacksOff(t *testing.T) {
	tr := hca.NewTree(t)
	dev := tr.HCA(0, 1)
	tr.Put(dev+"/ports/1/counters/link_downed", "garbage\n")
	now := time.Unix(1e9, 0)
	s := newSource(t, tr, func(o *Options) { o.Now = func() time.Time { return now } })
	for range failsBeforePause {
		mustRead(t, s)
	}
	tr.Put(dev+"/ports/1/counters/link_downed", "7\n")
	value := func() string {
		for _, c := range mustRead(t, s).HCAs[0].Ports[0].Counters {
			if c.Name == "link_downed" {
				return fmt.Sprint(c.Value)
			}
		}
		return "none"
	}
	if got := value(); got != "none" {
		t.Errorf("at once: %s", got)
	}
	now = now.Add(time.Minute)
	if got := value(); got != "7" {
		t.Errorf("after a minute: %s", got)
	}
}

func TestMissingDirectories(t *testing.T) {
	tr := hca.NewTree(t)
	tr.Remove(tr.HCA(0, 1) + "/ports/1/counters")
	tr.Remove(tr.HCA(1, 1) + "/ports/1/hw_counters")
	tr.Remove(tr.HCA(2, 1) + "/ports")
	tr.Put(tr.HCA(3, 1)+"/hw_counters/keep_alive_rcvd", "77\n")
	snap := mustRead(t, newSource(t, tr))
	h := snap.HCAs
	if names(snap) != "mlx5_0 mlx5_1 mlx5_2 mlx5_3" {
		t.Fatalf("HCAs %q", names(snap))
	}
	if p := h[0].Ports[0]; p.Counters != nil || p.HWCounters == nil {
		t.Errorf("no counters/: %v %v", p.Counters, p.HWCounters)
	}
	if p := h[1].Ports[0]; p.Counters == nil || p.HWCounters != nil {
		t.Errorf("no hw_counters/: %v %v", p.Counters, p.HWCounters)
	}
	if len(h[2].Ports) != 0 {
		t.Errorf("no ports/: %v", h[2].Ports)
	}
	if d := cmp.Diff([]model.Counter{{Name: "keep_alive_rcvd", Value: 77}}, h[3].HWCounters); d != "" {
		t.Errorf("hw_counters of the device (-want +got):\n%s", d)
	}
}

// TestStuck: a file that blocks makes its device stuck until it returns.
func TestStuck(t *testing.T) {
	for _, file := range []string{"fw_ver", "ports/1/counters/link_downed", "ports/1/hw_counters/out_of_buffer"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			tr := hca.NewTree(t)
			tr.HCA(0, 1)
			unblock := tr.Fifo(tr.HCA(1, 1) + "/" + file)
			tr.HCA(2, 1)
			s := newSource(t, tr, func(o *Options) { o.Deadline = time.Second })
			// The other devices may time out once.
			eventually(t, func() bool { return states(mustRead(t, s)) == "mlx5_0=ok mlx5_1=stuck mlx5_2=ok" })
			s.opt.Deadline = time.Hour // a Read that waits for a stuck device would block
			for range 3 {
				snap := mustRead(t, s)
				if got := states(snap); got != "mlx5_0=ok mlx5_1=stuck mlx5_2=ok" {
					t.Errorf("states %q", got)
				}
				if got := names(snap); got != "mlx5_0 mlx5_2" {
					t.Errorf("HCAs %q: values of a stuck device must not be repeated", got)
				}
			}
			tr.Remove("class/infiniband/mlx5_1/" + file)
			tr.Put("class/infiniband/mlx5_1/"+file, "4\n")
			unblock()
			eventually(t, func() bool { return states(mustRead(t, s)) == "mlx5_0=ok mlx5_1=ok mlx5_2=ok" })
		})
	}
}

// TestStuckOneAfterAnother: a device that answered at once hangs, then a second one. Only they lose their values, each Read
// delivers new values of the others, and a device that returns is read again.
func TestStuckOneAfterAnother(t *testing.T) {
	t.Parallel()
	tr := hca.NewTree(t)
	for n := range 4 {
		tr.HCA(n, 1)
	}
	s := newSource(t, tr)
	s.kept.Store(0) // each read opens the file
	if got := names(mustRead(t, s)); got != "mlx5_0 mlx5_1 mlx5_2 mlx5_3" {
		t.Fatalf("HCAs %q", got)
	}
	var unblock []func()
	hang := func(n int, want string) {
		t.Helper()
		unblock = append(unblock, tr.Fifo(fmt.Sprintf("class/infiniband/mlx5_%d/ports/1/counters/link_downed", n)))
		s.opt.Deadline = time.Second
		eventually(t, func() bool { return names(mustRead(t, s)) == want }) // others may time out once
		s.opt.Deadline = time.Hour                                          // a Read that waits for a stuck device would block
		for value := uint64(100); value < 103; value++ {
			tr.Counters("class/infiniband/mlx5_3", value)
			snap := mustRead(t, s)
			if got := names(snap); got != want {
				t.Errorf("HCAs %q, want %q", got, want)
			}
			last := snap.HCAs[len(snap.HCAs)-1]
			if d := cmp.Diff(counters(hca.PMACounters, value), last.Ports[0].Counters); d != "" {
				t.Errorf("another device (-want +got):\n%s", d)
			}
		}
	}
	hang(1, "mlx5_0 mlx5_2 mlx5_3")
	hang(0, "mlx5_2 mlx5_3")
	const file = "class/infiniband/mlx5_1/ports/1/counters/link_downed"
	tr.Remove(file)
	tr.Put(file, "4\n")
	unblock[0]()
	eventually(t, func() bool { return names(mustRead(t, s)) == "mlx5_1 mlx5_2 mlx5_3" })
}

// TestManyStuck: when more devices hang than are read at the same time, the others are still
// read, and only the first Read waits for hanging devices.
func TestManyStuck(t *testing.T) {
	t.Parallel()
	tr := hca.NewTree(t)
	for n := range 2 * sysfs.InFlight {
		port := fmt.Sprintf("class/infiniband/mlx5_%d/ports/1", n)
		tr.Dir(port + "/counters")
		tr.Fifo(port + "/counters/link_downed")
	}
	tr.HCA(90, 1)
	s := newSource(t, tr, func(o *Options) { o.Deadline = 500 * time.Millisecond })
	eventually(t, func() bool { return names(mustRead(t, s)) == "mlx5_90" }) // it may time out once
	s.opt.Deadline = time.Hour                                               // a Read that waits for a stuck device would block
	for range 2 {
		if got := names(mustRead(t, s)); got != "mlx5_90" {
			t.Errorf("HCAs %q", got)
		}
	}
}

// TestStuckAndRemoved: a device is removed during a hanging read and leaves nothing behind.
func TestStuckAndRemoved(t *testing.T) {
	t.Parallel()
	tr := hca.NewTree(t)
	tr.HCA(0, 1)
	dev := tr.HCA(1, 1)
	unblock := tr.Fifo(dev + "/ports/1/counters/link_downed")
	s := newSource(t, tr, func(o *Options) { o.Deadline = time.Second })
	mustRead(t, s)
	stuck := s.devices[1]
	tr.Remove(dev)
	s.opt.Deadline = time.Minute
	eventually(t, func() bool { return states(mustRead(t, s)) != "mlx5_0=stuck" }) // it may time out once
	if got := states(mustRead(t, s)); got != "mlx5_0=ok" {
		t.Errorf("states %q", got)
	}
	unblock()
	eventually(t, func() bool {
		return !stuck.call.Running() && !stuck.files.IsOpen()
	})
}

func TestQuarantine(t *testing.T) {
	tr := hca.NewTree(t)
	tr.HCA(0, 1)
	dev := tr.HCA(1, 1)
	for _, f := range []string{"state", "phys_state", "rate"} {
		tr.Link(dev+"/ports/1/"+f, "/proc/self/mem")
	}
	for _, c := range hca.PMACounters {
		tr.Link(dev+"/ports/1/counters/"+c, "/proc/self/mem")
	}
	tr.Remove(dev + "/ports/1/hw_counters")
	now := time.Unix(1e9, 0)
	s := newSource(t, tr, func(o *Options) { o.Now = func() time.Time { return now } })
	read := func() string {
		snap := mustRead(t, s)
		if names(snap) != "mlx5_0" {
			t.Errorf("HCAs %q", names(snap))
		}
		return string(snap.DeviceStates[1].State)
	}
	for i, want := range []string{"failed", "failed", "quarantined", "quarantined"} {
		if got := read(); got != want {
			t.Errorf("read %d: %s, want %s", i, got, want)
		}
	}
	// The pauses double. The device is not read during a pause.
	for _, minutes := range []time.Duration{1, 2, 4, 8, 16, 32, 60, 60} {
		pause := minutes * time.Minute
		calls := s.devices[1].files.Reader.Calls
		now = now.Add(pause - time.Second)
		if read(); s.devices[1].files.Reader.Calls != calls {
			t.Fatalf("read before the pause of %v ended", pause)
		}
		now = now.Add(time.Second)
		if got := read(); got != "quarantined" || s.devices[1].files.Reader.Calls == calls {
			t.Fatalf("%s and not read after the pause of %v", got, pause)
		}
	}
	tr.Remove(dev + "/ports/1/counters/link_downed")
	tr.Put(dev+"/ports/1/counters/link_downed", "3\n")
	now = now.Add(time.Hour)
	got := mustRead(t, s).DeviceStates[1]
	if got.State != model.StateOK || !strings.Contains(got.Reason, "20 of 21 counters") {
		t.Errorf("one counter works again: %v", got)
	}
}

// TestQuarantineOfCounters: if a device reports its port state but no counter, its counters are not read; the port is
// still reported.
func TestQuarantineOfCounters(t *testing.T) {
	tr := hca.NewTree(t)
	dev := tr.HCA(0, 1)
	for _, c := range hca.PMACounters {
		tr.Link(dev+"/ports/1/counters/"+c, "/proc/self/mem") // EIO
	}
	for _, c := range hca.HWCounters {
		tr.Link(dev+"/ports/1/hw_counters/"+c, "/proc/self/mem")
	}
	s := newSource(t, tr)
	for i, want := range []string{"failed", "failed", "quarantined", "quarantined"} {
		snap := mustRead(t, s)
		if got := states(snap); got != "mlx5_0="+want {
			t.Errorf("read %d: %s, want %s", i, got, want)
		}
		if len(snap.HCAs) != 1 || snap.HCAs[0].Ports[0].State != "ACTIVE" {
			t.Errorf("read %d: no port: %v", i, snap.HCAs)
		}
	}
	d := s.devices[0]
	calls := d.files.Reader.Calls + d.queries.Reader.Calls
	mustRead(t, s)
	if n := d.files.Reader.Calls + d.queries.Reader.Calls - calls; n != 3 {
		t.Errorf("%d system calls, want 3: state, phys_state, rate", n)
	}
}

// TestFilters: no file of an excluded device is opened.
func TestFilters(t *testing.T) {
	tr := hca.NewTree(t)
	for n := range 4 {
		dev := tr.HCA(n, 1)
		if n != 2 {
			tr.Fifo(dev + "/fw_ver") // would make the device stuck
		}
	}
	s := newSource(t, tr, func(o *Options) {
		o.Include = regexp.MustCompile("^mlx5_[12]$")
		o.Exclude = regexp.MustCompile("1$")
	})
	if got := states(mustRead(t, s)); got != "mlx5_2=ok" {
		t.Errorf("states %q", got)
	}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatal("not within a minute")
}

func BenchmarkRead(b *testing.B) {
	for _, hcas := range []int{10, 138} {
		b.Run(fmt.Sprintf("hcas=%d", hcas), func(b *testing.B) {
			tr := hca.NewTree(b)
			for n := range hcas {
				tr.HCA(n, 1)
			}
			s := newSource(b, tr)
			mustRead(b, s)
			mustRead(b, s)
			b.ReportAllocs()
			for b.Loop() {
				mustRead(b, s)
			}
		})
	}
}
