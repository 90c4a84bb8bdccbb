// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// testIntelGPU runs the program on a node with a card of xe, which is made of files, and with processes of two
// containers that use it: one in four of its compute engines all the time, one not at all. The device nodes of
// descriptors have the true numbers: the test requires root.
func testIntelGPU(t *testing.T, binary string) {
	t.Helper()
	m, args := fakeNode(t)
	writeBattlemage(t, m.SysFS())
	busy, idle := m.Containers[0], m.Containers[1]
	clients := []xeClient{
		{m.ProcFS(), busy.PIDs[0], 3 << 20, 1}, {m.ProcFS(), busy.PIDs[1], 1 << 20, 0}, {m.ProcFS(), idle.PIDs[0], 1024, 0},
	}
	cycles := uint64(1)
	write := func() {
		for i, c := range clients {
			c.write(t, i, cycles)
		}
		cycles += 19_200_000
	}
	for i, c := range clients {
		c.open(t, i)
	}
	write()
	args = slices.DeleteFunc(args, func(a string) bool { return a == "--no-collector.gpu" })
	url, stop := start(t, binary, append(args, "--gpu.process-interval=1s")...)
	want := []string{
		`container_gpu_memory_used_bytes{*` + busy.ID + `*} 4.294967296e+09`, `container_gpu_memory_used_bytes{*` + idle.ID + `*} 1.048576e+06`,
		`container_gpu_processes{*` + busy.ID + `*} 2`, `gpu_processes{gpu_id="0",uuid="0000:03:00.0"} 3`,
		`container_gpu_utilization_ratio{*` + busy.ID + `*engine="compute"*} 0.25`,
		`gpu_clock_hertz{clock="graphics"*uuid="0000:03:00.0"} 2.85e+09`, `gpu_temperature_celsius{*sensor="memory"*} 58`,
		`gpu_energy_joules_total{gpu_id="0",uuid="0000:03:00.0"} 5`, `gpu_health{gpu_id="0",uuid="0000:03:00.0"} 1`,
		`gpu_info{*nodes="/dev/dri/card1,/dev/dri/renderD129"*vendor="intel"} 1`,
		`gpu_driver_info{*vendor="intel"*} 1`, `accelscope_source_state{source="intel",state="ok"} 1`,
	}
	await(t, func() error {
		write() // at every moment the engines are used as much as in any other
		_, _, body := get(t, url+"/metrics", "text/plain")
		for _, series := range want {
			if !hasSeries(body, series) {
				name, _, _ := strings.Cut(series, "{")
				return fmt.Errorf("no series %s in:\n%s", series, regexp.MustCompile(`(?m)^`+name+`\b.*$`).FindAllString(body, -1))
			}
		}
		return nil
	})
	if _, _, body := get(t, url+"/gpus", ""); !strings.Contains(body, `"vendor":"intel"`) {
		t.Errorf("/gpus: %s", body)
	}
	if _, err := stop(); err != nil {
		t.Error(err)
	}
}

// hasSeries reports whether a line of the exposition has the parts of a pattern, which * separates, in this order.
func hasSeries(body, pattern string) bool {
	for line := range strings.Lines(body) {
		rest, found := strings.TrimSuffix(line, "\n"), true
		parts := strings.Split(pattern, "*")
		if !strings.HasPrefix(rest, parts[0]) || !strings.HasSuffix(rest, parts[len(parts)-1]) {
			continue
		}
		for _, part := range parts {
			_, after, ok := strings.Cut(rest, part)
			rest, found = after, found && ok
		}
		if found {
			return true
		}
	}
	return false
}

// xeClient is one open of the card's render node.
type xeClient struct {
	procfs      string
	pid, memory int    // in KiB
	compute     uint64 // how many of the four engines it uses
}

// xeDescriptor is the number of the first descriptor: the fixture has lower ones.
const xeDescriptor = 40

func (c xeClient) open(t *testing.T, i int) {
	t.Helper()
	device := filepath.Join(t.TempDir(), "renderD129")
	link := filepath.Join(c.procfs, strconv.Itoa(c.pid), "fd", strconv.Itoa(xeDescriptor+i))
	err := unix.Mknod(device, unix.S_IFCHR|0o600, int(unix.Mkdev(226, 129)))
	if err = errors.Join(err, os.Symlink(device, link), os.MkdirAll(filepath.Join(c.procfs, strconv.Itoa(c.pid), "fdinfo"), 0o755)); err != nil {
		t.Fatal(err)
	}
}

// write replaces the fdinfo, as xe_drm_client.c writes it.
func (c xeClient) write(t *testing.T, i int, clock uint64) {
	t.Helper()
	name := filepath.Join(c.procfs, strconv.Itoa(c.pid), "fdinfo", strconv.Itoa(xeDescriptor+i))
	text := fmt.Sprintf("pos:\t0\nflags:\t0100002\nmnt_id:\t26\nino:\t685\ndrm-driver:\txe\ndrm-client-id:\t%d\ndrm-pdev:\t0000:03:00.0\n"+
		"drm-resident-system:\t64 KiB\ndrm-resident-vram0:\t%d KiB\ndrm-cycles-ccs:\t%d\ndrm-total-cycles-ccs:\t%d\n"+
		"drm-engine-capacity-ccs:\t4\n", i+1, c.memory, c.compute*clock, clock)
	if err := errors.Join(os.WriteFile(name+".new", []byte(text), 0o644), os.Rename(name+".new", name)); err != nil { //nolint:gosec // as in /proc
		t.Fatal(err)
	}
}

// writeBattlemage adds the files of a card of xe that is never suspended.
func writeBattlemage(t *testing.T, sysfs string) {
	t.Helper()
	const path = "devices/pci0000:00/0000:00:01.0/0000:03:00.0"
	device, drm, driver := filepath.Join(sysfs, path), filepath.Join(sysfs, "class/drm"), filepath.Join(sysfs, "bus/pci/drivers/xe")
	err := errors.Join(os.MkdirAll(device, 0o755), os.MkdirAll(drm, 0o755), os.MkdirAll(driver, 0o755))
	err = errors.Join(err, os.Symlink(driver, filepath.Join(device, "driver")))
	for _, name := range []string{"card1", "renderD129"} {
		err = errors.Join(err, os.Symlink("../../"+path+"/drm/"+name, filepath.Join(drm, name)))
	}
	for name, text := range map[string]string{
		"vendor": "0x8086", "device": "0xe20b", "numa_node": "0", "power/runtime_status": "active", "power/control": "on",
		"tile0/gt0/freq0/act_freq": "2850", "tile0/gt0/freq0/rp0_freq": "2900", "tile0/gt0/gtidle/name": "gt0-rc",
		"hwmon/hwmon4/name": "xe", "hwmon/hwmon4/energy1_input": "5000000",
		"hwmon/hwmon4/temp3_input": "58000", "hwmon/hwmon4/temp3_label": "vram",
	} {
		file := filepath.Join(device, name)
		err = errors.Join(err, os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text+"\n"), 0o644)) //nolint:gosec // as in /sys
	}
	if err != nil {
		t.Fatal(err)
	}
}
