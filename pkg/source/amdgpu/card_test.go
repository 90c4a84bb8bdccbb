// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// hang replaces an attribute by a pipe that blocks on open. answer makes it answer.
func (n *node) hang(name string) (answer func(b []byte)) {
	n.t.Helper()
	path := n.path(name)
	n.check(os.RemoveAll(path))
	n.check(unix.Mkfifo(path, 0o600))
	hanging := true
	answer = func(b []byte) {
		if !hanging {
			return
		}
		hanging = false
		n.check(os.WriteFile(path+".new", b, 0o600))
		n.check(os.Link(path, path+".old"))
		n.check(os.Rename(path+".new", path)) // for later opens
		// Blocked readers get the end of the file. A writer can only open while there is a
		// reader.
		if fd, err := unix.Open(path+".old", unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
			unix.Close(fd)
		}
	}
	n.t.Cleanup(func() { answer(nil) })
	return answer
}

// fail makes an attribute report a removed device: a device node without a driver (ENXIO). It
// requires root.
func (n *node) fail(name string) {
	n.t.Helper()
	n.check(os.RemoveAll(n.path(name)))
	n.check(unix.Mknod(n.path(name), unix.S_IFCHR|0o600, int(unix.Mkdev(250, 4000))))
}

// waking returns the attributes for which amdgpu or the PCI core resumes the device.
func (n *node) waking() []string {
	n.t.Helper()
	var names []string
	for _, pattern := range []string{
		"*_busy_percent", "gpu_metrics", "pp_dpm_*", "hwmon/*/*_input", "hwmon/*/*_average", "hwmon/*/*_cap",
		"hwmon/*/*_crit", "hwmon/*/*_emergency", "hwmon/*/pwm1", "*_link_*", "pcie_replay_count", "ras/*", "current_*_partition",
		"power_dpm_*",
	} {
		found, err := filepath.Glob(filepath.Join(n.device, pattern))
		n.check(err)
		for _, f := range found {
			name, err := filepath.Rel(n.device, f)
			n.check(err)
			names = append(names, name)
		}
	}
	return slices.Compact(names)
}

// promptly reads and checks that the read does not wait for a hung driver.
func promptly(t *testing.T, s *Source) model.Snapshot {
	t.Helper()
	began := time.Now()
	snap := read(t, s)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("a read took %v", took)
	}
	return snap
}

// asked returns the number of callers that wait for a quick read.
func (c *card) asked() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.waiting[quick])
}

// eventually reads until so returns true.
func eventually(t *testing.T, s *Source, so func(model.Snapshot) bool) model.Snapshot {
	t.Helper()
	var snap model.Snapshot
	await(t, func() bool {
		snap, _ = s.Read(t.Context())
		return so(snap)
	})
	return snap
}

// TestStuck: the driver of one of two cards does not answer. Only its own values are missing,
// and no later read waits for it.
func TestStuck(t *testing.T) {
	t.Parallel()
	n := newNode(t, "mi250")
	answer := n.hang("gpu_metrics")
	o := n.options()
	o.Interval = 20 * time.Millisecond
	began := time.Now()
	s := start(t, o)
	snap := promptly(t, s)
	if stuck := snap.GPUs[1].Problems != nil || snap.DeviceStates[1].State != model.StateOK; len(snap.GPUs) != 2 ||
		stuck && time.Since(began) < drm.HungAfter {
		t.Errorf("it is only late, but reported as stuck: %+v", snap)
	}
	eventually(t, s, func(snap model.Snapshot) bool {
		return snap.DeviceStates[1].State == model.StateStuck && snap.GPUs[0].Utilization.Known && snap.GPUs[0].Memory.Used.Known
	})
	hangs := s.found()[1]
	asked := hangs.asked()
	for range 3 {
		snap := promptly(t, s)
		if n := hangs.asked(); n != asked {
			t.Errorf("%d wait for it, %d did before", n, asked)
		}
		if len(snap.GPUs) != 2 {
			t.Fatalf("%d GPUs", len(snap.GPUs))
		}
		if g := snap.GPUs[0]; !g.Utilization.Known || g.Memory.Used.Value != 11608064 || drm.Active(g.Problems, model.ProblemStuck) {
			t.Errorf("the other one: %+v", g)
		}
		want := model.GPU{
			Vendor: model.AMD, ID: "1", UUID: "a32343daf897162b", Serial: "692140000412", PCIAddress: "0000:c9:00.0", PCIDevice: "0x7408",
			NUMANode: "3", VBIOS: "113-D65201-046", Nodes: []string{"/dev/dri/card1", "/dev/dri/renderD129"},
			Problems: []model.GPUCondition{{Name: model.ProblemStuck, Active: true}},
		}
		got := snap.GPUs[1]
		got.Unlisted = false // depends on when its processes are listed
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got  %+v\nwant %+v", got, want)
		}
		if st := snap.DeviceStates[1]; st.State != model.StateStuck || st.Device != "0000:c9:00.0" {
			t.Errorf("%+v", st)
		}
	}
	answer(metrics(t, []string{"120", "1.3", "16:2=77"}))
	eventually(t, s, func(snap model.Snapshot) bool {
		return snap.GPUs[1].Utilization == model.Some(0.77) && snap.DeviceStates[1].State == model.StateOK
	})
}

// TestPowerChange: while the device is suspended or woken, that is known of it, and nothing else.
func TestPowerChange(t *testing.T) {
	t.Parallel()
	n := newNode(t, "radeon")
	o := n.options()
	o.Interval = 20 * time.Millisecond
	s := start(t, o)
	ready(t, s)
	for status, want := range map[string]string{"suspending": "suspending", "resuming": "resuming", "suspended": ""} {
		n.write("power/runtime_status", status+"\n")
		eventually(t, s, func(snap model.Snapshot) bool { return snap.GPUs[0].Suspended && snap.GPUs[0].PowerChange == want })
	}
}

// TestSuspended: attributes that wake the device hang here, so reading one would be stuck.
func TestSuspended(t *testing.T) {
	t.Parallel()
	n := newNode(t, "radeon")
	n.write("power/runtime_status", "suspended\n")
	if names := n.waking(); len(names) < 20 {
		t.Fatalf("only %q would wake it", names)
	}
	for _, name := range n.waking() {
		n.hang(name)
	}
	o := n.options()
	o.Interval = 20 * time.Millisecond
	s := start(t, o)
	want := model.GPU{
		Vendor: model.AMD, ID: "0", UUID: "d8607413b0e3a90b", Name: "AMD Radeon RX 7900 XT", PCIAddress: "0000:0b:00.0", PCIDevice: "0x744c",
		VBIOS: "113-D70401XT-P11", Nodes: []string{"/dev/dri/card0", "/dev/dri/renderD128"}, Suspended: true,
	}
	ready(t, s)
	for range 5 {
		snap := promptly(t, s)
		snap.GPUs[0].Unlisted = false // its processes may have been listed too long ago
		if !reflect.DeepEqual(snap.GPUs, []model.GPU{want}) || snap.DeviceStates[0].State != model.StateOK {
			t.Fatalf("got  %+v\nwant %+v", snap, want)
		}
		time.Sleep(30 * time.Millisecond)
	}
}

// TestNotReadBeforeSuspend checks that a GPU that suspends itself after 5 s is not read before it
// could.
func TestNotReadBeforeSuspend(t *testing.T) {
	t.Parallel()
	n := newNode(t, "radeon")
	o := n.options()
	o.Interval = 20 * time.Millisecond
	s := ready(t, start(t, o))
	first := read(t, s).GPUs[0]
	for _, name := range n.waking() {
		n.hang(name)
	}
	n.write("mem_info_vram_used", "4096\n") // read from the driver's memory, even then
	got := eventually(t, s, func(snap model.Snapshot) bool { return snap.GPUs[0].Memory.Used == model.Some(4096) })
	g := got.GPUs[0]
	g.Memory, g.Listed, g.Unlisted = first.Memory, first.Listed, first.Unlisted
	if !reflect.DeepEqual(g, first) {
		t.Errorf("got  %+v\nwant %+v", g, first)
	}
	p, touched := drm.Power{Autosuspend: 5 * time.Second}, time.Unix(100, 0)
	if !p.Rests(time.Unix(106, 0), touched) || p.Rests(time.Unix(108, 0), touched) {
		t.Error("it is not read for too short or too long a time")
	}
}

func TestLost(t *testing.T) {
	t.Parallel()
	n := newNode(t, "mi250")
	o := n.options()
	o.Interval = 20 * time.Millisecond
	s := ready(t, start(t, o))
	for _, name := range n.waking() {
		n.fail(name)
	}
	snap := eventually(t, s, func(snap model.Snapshot) bool { return drm.Active(snap.GPUs[1].Problems, model.ProblemLost) })
	if g := snap.GPUs[1]; g.Power.Known || g.Errors != nil || g.Memory.Total.Known || len(g.Problems) != 1 || g.Serial == "" {
		t.Errorf("%+v", g)
	}
	if snap.DeviceStates[1].State != model.StateFailed || snap.DeviceStates[0].State != model.StateOK {
		t.Errorf("%+v", snap.DeviceStates)
	}
}

// TestSilent: no attribute of the hardware can be read (EIO): the GPU has a critical problem, until one can.
func TestSilent(t *testing.T) {
	t.Parallel()
	n := newNode(t, "mi250")
	o := n.options()
	o.Interval = 20 * time.Millisecond
	s := ready(t, start(t, o))
	for _, name := range n.waking() {
		n.check(errors.Join(os.Remove(n.path(name)), os.Symlink("/proc/self/mem", n.path(name)))) // nothing is mapped at its start: EIO
	}
	snap := eventually(t, s, func(snap model.Snapshot) bool { return drm.Active(snap.GPUs[1].Problems, model.ProblemUnreadable) })
	if g, d := snap.GPUs[1], snap.DeviceStates[1]; g.Power.Known || g.Memory.Total.Known || len(g.Problems) != 1 || g.Serial == "" ||
		d.State != model.StateFailed || !strings.Contains(d.Reason, "input/output error") {
		t.Errorf("%+v, %+v", g, d)
	}
	n.check(os.Remove(n.path("gpu_busy_percent")))
	n.write("gpu_busy_percent", "7\n")
	eventually(t, s, func(snap model.Snapshot) bool {
		return snap.DeviceStates[1].State == model.StateOK && !drm.Active(snap.GPUs[1].Problems, model.ProblemUnreadable)
	})
}

// TestSlot checks that the link of a Radeon to its slot is the link of the switch on the board.
func TestSlot(t *testing.T) {
	t.Parallel()
	n := newNode(t, "radeon")
	outer, port := slot(n.device)
	if filepath.Base(outer) != "0000:09:00.0" || filepath.Base(port) != "0000:00:03.1" {
		t.Errorf("%s in %s", outer, port)
	}
	n.write("/devices/pci0000:00/0000:00:03.1/max_link_width", "4\n")
	want := model.GPUPCIe{Generation: model.Some(3), MaxGeneration: model.Some(4), Width: model.Some(8), MaxWidth: model.Some(4)}
	if got := readPCIe(outer, port); got != want {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestDriverRebound: after a rebind the sensors are in another directory.
func TestDriverRebound(t *testing.T) {
	t.Parallel()
	n := newNode(t, "mi250")
	o := n.options()
	o.Interval = 20 * time.Millisecond
	s := ready(t, start(t, o))
	n.check(os.Rename(n.path("hwmon/hwmon4"), n.path("hwmon/hwmon9")))
	n.write("hwmon/hwmon9/temp1_input", "57000\n")
	eventually(t, s, func(snap model.Snapshot) bool {
		v, ok := find(snap.GPUs[1].Temperatures, "edge")
		return ok && v == 57
	})
}

func TestHotPlug(t *testing.T) {
	t.Parallel()
	n := newNode(t, "mi250")
	o := n.options()
	o.Interval = 20 * time.Millisecond
	s := ready(t, start(t, o))
	if snap := read(t, s); len(snap.GPUs) != 2 {
		t.Fatalf("%+v", snap.GPUs)
	}
	link := func(name string) string {
		target, err := os.Readlink(n.path("/class/drm/" + name))
		n.check(err)
		return target
	}
	target := link("card0")
	for _, name := range []string{"card0", "renderD128"} {
		n.check(os.Remove(n.path("/class/drm/" + name)))
	}
	if snap := read(t, s); len(snap.GPUs) != 1 || snap.GPUs[0].UUID != "a32343daf897162b" || snap.GPUs[0].ID != "0" {
		t.Fatalf("%+v", snap.GPUs)
	}
	n.check(os.Symlink(strings.Replace(target, "card0", "card7", 1), n.path("/class/drm/card7")))
	eventually(t, s, func(snap model.Snapshot) bool {
		return len(snap.GPUs) == 2 && snap.GPUs[0].UUID == "a32343daf897162a" && snap.GPUs[0].Utilization.Known &&
			slices.Equal(snap.GPUs[0].Nodes, []string{"/dev/dri/card7"})
	})
	for _, name := range []string{"driver", "/class/drm/card1", "/class/drm/renderD129"} { // unbound
		n.check(os.Remove(n.path(name)))
	}
	if snap := read(t, s); len(snap.GPUs) != 1 {
		t.Fatalf("%+v", snap.GPUs)
	}
	n.check(os.RemoveAll(n.path("/class/drm")))
	if snap, err := s.Read(t.Context()); !errors.Is(err, model.ErrAbsent) || snap.GPUs != nil {
		t.Errorf("%+v, %v", snap, err)
	}
}

// TestUnknownTable checks that an unknown table is logged once and only its own values are
// missing.
func TestUnknownTable(t *testing.T) {
	t.Parallel()
	n := newNode(t, "mi250")
	n.file("gpu_metrics", metrics(t, []string{"120", "7.9"}))
	core, logs := observer.New(zap.WarnLevel)
	o := n.options()
	o.Logger, o.Interval = zap.New(core), 20*time.Millisecond
	s := ready(t, start(t, o))
	var snap model.Snapshot
	for range 5 {
		snap = read(t, s)
		time.Sleep(30 * time.Millisecond)
	}
	if st := snap.DeviceStates[1]; st.State != model.StateUnsupported || !strings.Contains(st.Reason, "7.9") {
		t.Errorf("%+v", st)
	}
	if g := snap.GPUs[1]; g.Utilization != model.Some(1) || g.Temperatures == nil || !g.Memory.Used.Known || g.Throttles != nil {
		t.Errorf("%+v", g)
	}
	if n := logs.FilterMessageSnippet("parsing gpu_metrics").Len(); n != 1 {
		t.Errorf("logged %d times", n)
	}
}

// TestMissing checks that each failing attribute (EISDIR here) affects only its own value.
func TestMissing(t *testing.T) {
	t.Parallel()
	n := newNode(t, "mi250")
	for _, name := range append(n.waking(), "mem_info_vram_used", "unique_id", "serial_number", "numa_node") {
		n.check(os.RemoveAll(n.path(name)))
		n.check(os.Mkdir(n.path(name), 0o755))
	}
	o := n.options()
	o.Interval = 20 * time.Millisecond
	s := ready(t, start(t, o))
	got := eventually(t, s, func(snap model.Snapshot) bool { return !snap.GPUs[1].Unlisted }).GPUs[1] // it may be too old
	want := model.GPU{
		Vendor: model.AMD, ID: "1", UUID: "0000:c9:00.0", PCIAddress: "0000:c9:00.0", PCIDevice: "0x7408", VBIOS: "113-D65201-046",
		Nodes: []string{"/dev/dri/card1", "/dev/dri/renderD129"}, Memory: model.VideoMemory{Total: model.Some(68702699520)},
		GTT: model.VideoMemory{
			Total: model.Some(270145654784), Used: model.Some(16904192), Free: model.Some(270145654784 - 16904192),
		},
		Problems: []model.GPUCondition{{Name: model.ProblemLost}, {Name: model.ProblemStuck}, {Name: model.ProblemUnreadable}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

// TestReset checks that a device that is found during a reset gets its unique ID later.
func TestReset(t *testing.T) {
	t.Parallel()
	n := newNode(t, "mi250")
	n.fail("unique_id")
	o := n.options()
	o.Interval = 20 * time.Millisecond
	s := ready(t, start(t, o))
	if snap := read(t, s); snap.GPUs[1].UUID != "0000:c9:00.0" || snap.GPUs[1].Serial == "" {
		t.Errorf("%+v", snap.GPUs[1])
	}
	n.write("new", "00000daf897162b1\n") // a missing file would count as unsupported
	n.check(os.Rename(n.path("new"), n.path("unique_id")))
	eventually(t, s, func(snap model.Snapshot) bool { return snap.GPUs[1].UUID == "00000daf897162b1" })
}

// TestLinkDown: the source reports that a link is up or down; only the inventory knows that it was up.
func TestLinkDown(t *testing.T) {
	t.Parallel()
	n := newNode(t, "mi300x")
	table := func(status string) {
		b := metrics(t, append([]string{"3360", "1.8", "278:2=0"}, strings.Fields(status)...))
		n.check(os.WriteFile(n.path("new"), b, 0o644))
		n.check(os.Rename(n.path("new"), n.path("gpu_metrics")))
	}
	table("270:2=1")
	o := n.options()
	o.Interval = time.Hour // from now on, only scrapes read
	s := whole(t, start(t, o))
	up := func(snap model.Snapshot) []float64 {
		var states []float64
		for _, l := range snap.GPUs[len(snap.GPUs)-1].Links {
			states = append(states, l.Up.Value)
		}
		return states
	}
	before := up(read(t, s))
	table("270:2=0")
	eventually(t, s, func(snap model.Snapshot) bool { return !slices.Equal(up(snap), before) })
}

// TestAbsent checks that no process is read without a GPU.
func TestAbsent(t *testing.T) {
	t.Parallel()
	o := Options{Sysfs: t.TempDir(), Procfs: t.TempDir(), Interval: time.Millisecond}
	o.Holders = func() ([]int, bool) {
		t.Error("processes are read")
		return nil, true
	}
	s := start(t, o)
	if snap, err := s.Read(t.Context()); !errors.Is(err, model.ErrAbsent) || !reflect.DeepEqual(snap, model.Snapshot{}) {
		t.Errorf("%+v, %v", snap, err)
	}
	time.Sleep(50 * time.Millisecond)
}
