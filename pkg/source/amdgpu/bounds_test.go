// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestTableOfZeros: a virtual function has no sensors, and its table is zeros. That is no GPU that is idle, cold and without power. The
// time is the driver's, and the table may have the PCIe link.
func TestTableOfZeros(t *testing.T) {
	for name, change := range map[string]func(b []byte){
		"zeros":           func([]byte) {},
		"a time":          func(b []byte) { b[32], b[33] = 7, 7 }, // system_clock_counter
		"a PCIe link":     func(b []byte) { b[70] = 16 },
		"all ones, zeros": func(b []byte) { b[4], b[5] = 0xff, 0xff }, // an absent sensor
	} {
		b := make([]byte, 120)
		b[0], b[2], b[3] = 120, 1, 3
		change(b)
		n := newNode(t, "radeon")
		n.file("gpu_metrics", b)
		n.write("gpu_busy_percent", "0\n")
		o := n.options()
		r := newReader(&o, n.device)
		r.identify("0000:03:00.0")
		r.hwmon = hwmon{}
		r.readQuick(time.Unix(1, 0))
		for _, step := range r.steps() {
			step()
		}
		g := r.state().gpu
		if g.Utilization.Known || g.Power.Known || g.Temperatures != nil || g.Clocks != nil || g.Engines != nil {
			t.Errorf("%s: utilization %v, %v W, %v, %v, %v", name, g.Utilization, g.Power, g.Temperatures, g.Clocks, g.Engines)
		}
		if !slices.ContainsFunc(g.Dropped, func(d model.DroppedValue) bool { return d.Value == "gpu_metrics" }) {
			t.Errorf("%s: left out: %v", name, g.Dropped)
		}
	}
}

// TestImpossibleSensors: hwmon and the files of the driver with what drivers write when they have no value.
func TestImpossibleSensors(t *testing.T) {
	n := newNode(t, "radeon")
	o := n.options()
	hwmon := findHwmon(newDirectory(n.device)).dir
	if hwmon == "" {
		t.Fatal("the card has no sensors")
	}
	for file, text := range map[string]string{
		hwmon + "temp1_input": "-1", hwmon + "temp2_input": "255000", hwmon + "power1_average": "4294967295", hwmon + "power1_cap": "4294967295",
		hwmon + "freq1_input": "4294967295", "gpu_busy_percent": "4294967295", "mem_info_vram_used": "18446744073709551615",
	} {
		n.write(file, text+"\n")
	}
	n.check(os.RemoveAll(n.path("gpu_metrics")))
	r := newReader(&o, n.device)
	r.identify("0000:03:00.0")
	r.readQuick(time.Unix(1, 0))
	for _, step := range r.steps() {
		step()
	}
	g := r.state().gpu
	var values []string
	for _, d := range g.Dropped {
		values = append(values, d.Value)
	}
	slices.Sort(values)
	want := []string{"clock", "engine", "memory_used", "power", "power_limit", "temperature", "temperature", "utilization"}
	if !reflect.DeepEqual(values, want) {
		t.Errorf("left out: %v, want %v: %v", values, want, g.Dropped)
	}
	if g.Power.Known || g.PowerLimit.Known || g.Utilization.Known || g.Memory.Used.Known || !g.Memory.Total.Known {
		t.Errorf("%+v", g)
	}
}

// TestManyContexts: of the contexts of a process, and of the RAS blocks of a card, as many are read as there may be.
func TestManyContexts(t *testing.T) {
	n := newFakeProcs(t)
	d := newDirectory(t.TempDir())
	for i := range 2 * maxContexts {
		n.write(n.kfd(fmt.Sprintf("proc/7/context_%d/vram_1", i)), "1\n")
	}
	for i := range 2 * maxBlocks {
		n.write(filepath.Join(d.Path, "ras", fmt.Sprint("block", i, errorSuffix)), "ue: 0\nce: 0\n")
	}
	if dirs := newKFD(n.sys).contexts(7); len(dirs) != 1+maxContexts {
		t.Errorf("%d contexts, want the first and %d", len(dirs), maxContexts)
	}
	if blocks := rasBlocks(d); len(blocks) != maxBlocks {
		t.Errorf("%d blocks, want %d", len(blocks), maxBlocks)
	}
}

// TestImpossibleNode: a node of KFD with more engines and compute units than a GPU has.
func TestImpossibleNode(t *testing.T) {
	got := parseProperties([]byte("num_sdma_engines 18446744073709551615\nnum_sdma_xgmi_engines 2\nsimd_count 18446744073709551615\nsimd_per_cu 1\n"))
	if got.sdma != maxEngines || got.units != maxUnits {
		t.Errorf("%d engines and %d units, want %d and %d", got.sdma, got.units, maxEngines, maxUnits)
	}
}

// TestManyWaiting: readers that wait for a card that does not answer are bounded.
func TestManyWaiting(t *testing.T) {
	c := &card{wake: make(chan struct{}, 1)}
	for range 2 * maxWaiting {
		c.ask(quick)
	}
	if n := len(c.waiting[quick]); n != maxWaiting {
		t.Errorf("%d wait, want %d", n, maxWaiting)
	}
}
