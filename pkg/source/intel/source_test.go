// SPDX-License-Identifier: Apache-2.0

package intel

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// TestGPUs reads a card of xe, one of i915, and a GPU on the processor with an older i915.
func TestGPUs(t *testing.T) {
	n := newNode(t)
	n.battlemage()
	n.flex()
	n.device(busPath+"0000:00:02.0", "i915", 2, map[string]string{
		"device": "0x4680", "card/gt_act_freq_mhz": "300", "card/gt_RP0_freq_mhz": "1450",
	})
	n.device(busPath+"0000:00:06.0", "nouveau", 3, map[string]string{"device": "0x1234"})
	snap := eventually(t, start(t, n.options()), func(s model.Snapshot) bool { return s.GPUProcesses != nil })
	healthy := []model.GPUCondition{{Name: model.ProblemLost}, {Name: model.ProblemStuck}, {Name: model.ProblemUnreadable}}
	want := []model.GPU{
		{
			Vendor: model.Intel, ID: "0", UUID: "0000:00:02.0", Name: "AlderLake-S GT1", PCIAddress: "0000:00:02.0", PCIDevice: "0x4680",
			Nodes:  []string{"/dev/dri/card2", "/dev/dri/renderD130"},
			Clocks: []model.Figure{{Name: "graphics", Value: 300e6}}, MaxClocks: []model.Figure{{Name: "graphics", Value: 1450e6}},
			Problems: healthy,
		},
		{
			Vendor: model.Intel, ID: "1", UUID: "0000:03:00.0", Name: "Arc B580", PCIAddress: "0000:03:00.0", PCIDevice: "0xe20b", NUMANode: "1",
			Nodes:        []string{"/dev/dri/card1", "/dev/dri/renderD129"},
			Temperatures: []model.Figure{{Name: "gpu", Value: 61}, {Name: "memory", Value: 58}},
			PowerLimit:   model.Some(190), Energy: model.Some(5),
			Clocks:    []model.Figure{{Name: "graphics", Value: 2850e6}, {Name: "media", Value: 0}},
			MaxClocks: []model.Figure{{Name: "graphics", Value: 2900e6}, {Name: "media", Value: 1500e6}},
			Throttles: []model.GPUCondition{
				{Name: "power", Active: true}, {Name: "prochot"}, {Name: "thermal"}, {Name: "current"}, {Name: "thermal_vr"},
			},
			Problems: append(healthy[:3:3], model.GPUCondition{Name: model.ProblemThermal}, model.GPUCondition{Name: model.ProblemPowerBrake}),
		},
		{
			Vendor: model.Intel, ID: "2", UUID: "0000:9a:00.0", Name: "Data Center GPU Flex 170", PCIAddress: "0000:9a:00.0", PCIDevice: "0x56c0",
			Nodes:        []string{"/dev/dri/card0", "/dev/dri/renderD128"},
			Temperatures: []model.Figure{{Name: "gpu", Value: 55}}, PowerLimit: model.Some(120), Energy: model.Some(7),
			Memory: model.VideoMemory{Total: model.Some(14260633600)},
			Clocks: []model.Figure{{Name: "graphics", Value: 2050e6}}, MaxClocks: []model.Figure{{Name: "graphics", Value: 2050e6}},
			Throttles: []model.GPUCondition{{Name: "power"}, {Name: "thermal"}}, // the status is newer than the reasons
			Problems:  append(healthy[:3:3], model.GPUCondition{Name: model.ProblemThermal}, model.GPUCondition{Name: model.ProblemPowerBrake}),
		},
	}
	for i := range snap.GPUs {
		g := &snap.GPUs[i]
		if g.Listed.IsZero() || g.Unlisted || g.Power.Value != 0 {
			t.Errorf("%s: listed %v, %v, %v W while the energy stays the same", g.UUID, g.Listed, !g.Unlisted, g.Power.Value)
		}
		if read := !g.EnergyRead.IsZero(); read != g.Energy.Known {
			t.Errorf("%s: energy %v, read at %v", g.UUID, g.Energy, g.EnergyRead)
		}
		g.Listed, g.EnergyRead, g.Power = time.Time{}, time.Time{}, model.Optional{}
		if i >= len(want) || !reflect.DeepEqual(*g, want[i]) {
			t.Errorf("got  %+v\nwant %+v", *g, want[min(i, len(want)-1)])
		}
		if s := snap.DeviceStates[i]; s.State != model.StateOK || s.Device != g.PCIAddress {
			t.Errorf("%+v", s)
		}
	}
	drivers := []model.GPUDriver{{Vendor: model.Intel, Version: "backported to 5.15"}, {Vendor: model.Intel, Version: "6.16.0-test"}}
	if len(snap.GPUs) != len(want) || !reflect.DeepEqual(snap.GPUDrivers, drivers) {
		t.Errorf("%d GPUs, drivers %+v", len(snap.GPUs), snap.GPUDrivers)
	}
}

// TestPower checks that the power is the energy between two reads, and unknown while the GPU sleeps and after it.
func TestPower(t *testing.T) {
	n := newNode(t)
	n.battlemage()
	r := n.card().reader
	energy, status := n.path(xePath+"hwmon/hwmon4/energy1_input"), n.path(xePath+"power/runtime_status")
	for i, c := range []struct {
		energy, status string
		want           model.Optional
	}{
		{"5000000", "active", model.Optional{}},
		{"505000000", "active", model.Some(50)},
		{"505000000", "active", model.Some(0)},
		{"505000001", "suspended", model.Optional{}},
		{"905000001", "active", model.Optional{}},
		{"1005000001", "active", model.Some(10)},
		{"3", "active", model.Optional{}}, // the driver was loaded again
	} {
		n.write(energy, c.energy)
		n.write(status, c.status)
		if g := r.read(time.Unix(int64(i)*10, 0)); g.Power != c.want || g.Suspended != (c.status == "suspended") {
			t.Errorf("%d: %v W, suspended %v; want %v", i, g.Power, g.Suspended, c.want)
		}
	}
}

// wakingFiles are attributes for which xe resumes the device.
var wakingFiles = []string{
	"tile0/gt0/freq0/act_freq", "tile0/gt0/freq0/rp0_freq", "tile0/gt0/freq0/throttle/status", "tile0/gt0/gtidle/name",
	"hwmon/hwmon4/energy1_input", "hwmon/hwmon4/temp2_input", "hwmon/hwmon4/power2_max",
}

// TestPowerChange: while a GPU is suspended or woken, that is known of it, and nothing else.
func TestPowerChange(t *testing.T) {
	n := newNode(t)
	n.battlemage()
	s := start(t, n.options())
	for status, want := range map[string]string{"suspending": "suspending", "resuming": "resuming", "suspended": ""} {
		n.write(n.path(xePath+"power/runtime_status"), status)
		eventually(t, s, func(s model.Snapshot) bool { return s.GPUs[0].Suspended && s.GPUs[0].PowerChange == want })
	}
}

// TestSuspended checks that no file is read that would wake the GPU: they hang here. That includes fdinfo.
func TestSuspended(t *testing.T) {
	n := newNode(t)
	n.battlemage()
	n.flex()
	n.write(n.path(xePath+"power/runtime_status"), "suspended")
	for _, file := range wakingFiles {
		n.hang(n.path(xePath + file))
	}
	n.open(100, 3, 129, "renderD129", "")
	n.hang(filepath.Join(n.proc, "100/fdinfo/3"))
	n.open(101, 3, 128, "renderD128", fdinfoI915(1, "drm-resident-local0:\t4 MiB\n", 0))
	s := start(t, n.options())
	snap := eventually(t, s, func(s model.Snapshot) bool { return len(s.GPUProcesses) == 1 })
	want := model.GPU{
		Vendor: model.Intel, ID: "0", UUID: "0000:03:00.0", Name: "Arc B580", PCIAddress: "0000:03:00.0", PCIDevice: "0xe20b", NUMANode: "1",
		Nodes: []string{"/dev/dri/card1", "/dev/dri/renderD129"}, Suspended: true, Unlisted: true,
	}
	if !reflect.DeepEqual(snap.GPUs[0], want) || snap.DeviceStates[0].State != model.StateOK || len(snap.DeviceStates) != 2 {
		t.Errorf("%+v\nwant %+v\n%+v", snap.GPUs[0], want, snap.DeviceStates)
	}
}

// TestNotReadBeforeSuspend checks that a GPU that suspends itself after 1 s is left alone for longer than that.
func TestNotReadBeforeSuspend(t *testing.T) {
	n := newNode(t)
	n.battlemage()
	n.write(n.path(xePath+"power/control"), "auto")
	r := n.card().reader
	temperature := n.path(xePath + "hwmon/hwmon4/temp2_input")
	for _, c := range []struct {
		after time.Duration
		want  float64
	}{{0, 50}, {time.Second, 50}, {2 * time.Second, 50}, {3 * time.Second, 80}} {
		if c.after > 0 {
			n.write(temperature, "80000")
		} else {
			n.write(temperature, "50000")
		}
		if g := r.read(time.Unix(100, 0).Add(c.after)); g.Temperatures[0].Value != c.want {
			t.Errorf("after %v: %v degrees, want %v", c.after, g.Temperatures[0].Value, c.want)
		}
	}
}

// TestStuck checks that a driver that does not answer costs the values of its GPU only, and that reads do not wait for it.
func TestStuck(t *testing.T) {
	n := newNode(t)
	n.battlemage()
	n.flex()
	answer := n.hang(n.path(xePath + "hwmon/hwmon4/temp2_input"))
	s := start(t, n.options())
	snap := eventually(t, s, func(s model.Snapshot) bool { return s.DeviceStates[0].State == model.StateStuck })
	g := snap.GPUs[0]
	if !drm.Active(g.Problems, model.ProblemStuck) || g.Clocks != nil || g.UUID != "0000:03:00.0" || snap.GPUs[1].Clocks == nil {
		t.Errorf("%+v", snap.GPUs)
	}
	began := time.Now()
	for range 5 {
		if _, err := s.Read(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("five reads took %v", took)
	}
	answer()
	eventually(t, s, func(s model.Snapshot) bool {
		return s.GPUs[0].Clocks != nil && s.DeviceStates[0].State == model.StateOK
	})
}

const flexPath = busPath + "0000:00:05.0/0000:9a:00.0/"

// replaceAttributes has other files in place of those that the hardware of the Flex answers.
func (n *node) replaceAttributes(with func(file string) error) {
	for _, pattern := range []string{"hwmon/hwmon2/*_*", "drm/card0/gt/gt0/*"} {
		files, err := filepath.Glob(n.path(flexPath + pattern))
		n.check(err)
		for _, file := range files {
			n.check(errors.Join(os.Remove(file), with(file)))
		}
	}
}

// TestLost: all attributes of the hardware report a removed device, here a device node without a driver (ENXIO).
func TestLost(t *testing.T) {
	n := newNode(t)
	n.flex()
	s := start(t, n.options())
	eventually(t, s, func(s model.Snapshot) bool { return s.GPUs[0].Clocks != nil })
	n.replaceAttributes(func(file string) error { return unix.Mknod(file, unix.S_IFCHR|0o600, int(unix.Mkdev(250, 4000))) })
	snap := eventually(t, s, func(s model.Snapshot) bool { return s.DeviceStates[0].State == model.StateFailed })
	if g := snap.GPUs[0]; !drm.Active(g.Problems, model.ProblemLost) || g.Clocks != nil || g.Name == "" {
		t.Errorf("%+v", g)
	}
	n.check(os.RemoveAll(n.path("class/drm")))
	if _, err := s.Read(t.Context()); !errors.Is(err, model.ErrAbsent) {
		t.Errorf("without a GPU: %v", err)
	}
}

// TestSilent: no attribute of the hardware can be read (EIO): the GPU has a critical problem, until one can.
func TestSilent(t *testing.T) {
	n := newNode(t)
	n.flex()
	s := start(t, n.options())
	eventually(t, s, func(s model.Snapshot) bool { return s.GPUs[0].Clocks != nil })
	n.replaceAttributes(func(file string) error { return os.Symlink("/proc/self/mem", file) }) // nothing is mapped at its start
	snap := eventually(t, s, func(s model.Snapshot) bool { return s.DeviceStates[0].State == model.StateFailed })
	if g := snap.GPUs[0]; !drm.Active(g.Problems, model.ProblemUnreadable) || g.Clocks != nil || g.Name == "" ||
		!strings.Contains(snap.DeviceStates[0].Reason, "input/output error") {
		t.Errorf("%+v, %+v", g, snap.DeviceStates[0])
	}
	n.write(n.path(flexPath+"power/runtime_status"), "suspended")
	snap = eventually(t, s, func(s model.Snapshot) bool { return s.GPUs[0].Suspended })
	if state := snap.DeviceStates[0]; state.State != model.StateOK || state.Reason != "" {
		t.Errorf("suspended: %+v", state)
	}
	n.write(n.path(flexPath+"power/runtime_status"), "active")
	eventually(t, s, func(s model.Snapshot) bool { return s.DeviceStates[0].State == model.StateFailed })
	n.check(os.Remove(n.path(flexPath + "hwmon/hwmon2/temp1_input")))
	n.write(n.path(flexPath+"hwmon/hwmon2/temp1_input"), "55000")
	snap = eventually(t, s, func(s model.Snapshot) bool { return s.DeviceStates[0].State == model.StateOK })
	if g := snap.GPUs[0]; drm.Active(g.Problems, model.ProblemUnreadable) || g.Temperatures == nil {
		t.Errorf("one value can be read again: %+v", g)
	}
}

// TestLimitWithoutMax: an Arc Pro B60 has power1_cap and power1_crit, and no power1_max.
func TestLimitWithoutMax(t *testing.T) {
	n := newNode(t)
	n.battlemage()
	hwmon := xePath + "hwmon/hwmon4/"
	n.check(errors.Join(os.Remove(n.path(hwmon+"power1_max")), os.Remove(n.path(hwmon+"power2_max"))))
	n.write(n.path(hwmon+"power1_cap"), "200000000")
	n.write(n.path(hwmon+"power1_crit"), "400000000")
	if g := n.card().reader.read(time.Unix(1, 0)); g.PowerLimit != model.Some(200) {
		t.Errorf("limit %v", g.PowerLimit)
	}
	n.write(n.path(hwmon+"power2_max"), "190000000") // of sustained power
	if g := n.card().reader.read(time.Unix(1, 0)); g.PowerLimit != model.Some(190) {
		t.Errorf("limit of sustained power: %v", g.PowerLimit)
	}
}

// TestSensorsWithoutValue: sensors with what drivers write when they have no value.
func TestSensorsWithoutValue(t *testing.T) {
	n := newNode(t)
	n.battlemage()
	hwmon := xePath + "hwmon/hwmon4/"
	for file, text := range map[string]string{
		hwmon + "temp2_input": "-1", hwmon + "temp3_input": "255000", hwmon + "energy1_input": "18446744073709551615",
		hwmon + "power2_max": "4294967295", xePath + "tile0/gt0/freq0/act_freq": "4294967295",
	} {
		n.write(n.path(file), text)
	}
	g := n.card().reader.read(time.Unix(1, 0))
	if g.Temperatures != nil || g.Energy.Known || g.PowerLimit.Known || len(g.Clocks) != 1 || len(g.Dropped) != 5 {
		t.Errorf("temperatures %v, energy %v, limit %v, clocks %v; left out: %v", g.Temperatures, g.Energy, g.PowerLimit, g.Clocks, g.Dropped)
	}
}

// TestManyUnits: of the tiles, units and temperatures that sysfs lists, as many are read as a GPU may have.
func TestManyUnits(t *testing.T) {
	n := newNode(t)
	n.battlemage()
	hwmon := xePath + "hwmon/hwmon4/"
	for i := range 2 * maxTemperatures {
		n.write(n.path(hwmon+fmt.Sprintf("temp%d_input", 100+i)), "50000")
		n.write(n.path(hwmon+fmt.Sprintf("temp%d_label", 100+i)), fmt.Sprint("sensor", i))
	}
	for i := range 2 * maxGTs {
		n.check(os.MkdirAll(n.path(xePath+fmt.Sprint("tile", i)), 0o755))
	}
	r := n.card().reader
	if g := r.read(time.Unix(1, 0)); len(g.Temperatures) != maxTemperatures {
		t.Errorf("%d temperatures, want %d", len(g.Temperatures), maxTemperatures)
	}
	if tiles := numbered(r.dir, "", "tile"); len(tiles) != maxGTs {
		t.Errorf("%d tiles, want %d", len(tiles), maxGTs)
	}
}
