// SPDX-License-Identifier: Apache-2.0

package intel

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/drm"
	"github.com/accelscope/accelscope/pkg/model"
)

// node is a FAKE of sysfs and procfs, made from the kernel's sources: i915 (i915_hwmon.c, gt/intel_gt_sysfs_pm.c,
// i915_drm_client.c), xe (xe_hwmon.c, xe_gt_freq.c, xe_gt_throttle.c, xe_gt_idle.c, xe_drm_client.c) and their documents
// in Documentation/ABI/testing. There is no Intel GPU where the tests run; the numbers are invented. The device nodes of
// descriptors have the true numbers (226:128 and so on): the test creates them and requires root.
type node struct {
	t                 *testing.T
	root, sysfs, proc string
}

const (
	busPath = "devices/pci0000:00/"
	xePath  = busPath + "0000:00:01.0/0000:03:00.0/"
)

func newNode(t *testing.T) *node {
	t.Helper()
	root := t.TempDir()
	n := &node{t: t, root: root, sysfs: filepath.Join(root, "sys"), proc: filepath.Join(root, "proc")}
	n.write(n.proc+"/sys/kernel/osrelease", "6.16.0-test")
	n.write(root+"/usr/share/misc/pci.ids", "# a list\n1002  AMD\n\te20b  Not this\n8086  Intel Corporation\n"+
		"\t56c0  DG2 [Data Center GPU Flex 170]\n\t\t8086 4905  Server\n\t4680  AlderLake-S GT1\n\te20b  Battlemage G21 [Arc B580]\n10de  NVIDIA")
	return n
}

func (n *node) check(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) write(name, text string) {
	n.t.Helper()
	n.check(os.MkdirAll(filepath.Dir(name), 0o755))
	n.check(os.WriteFile(name, []byte(text+"\n"), 0o644))
}

// device adds a PCI device with its driver, a card, a render node, and attributes; card/ stands for the card's directory.
func (n *node) device(path, driver string, card int, attributes map[string]string) {
	n.t.Helper()
	dir := filepath.Join(n.sysfs, path)
	render := fmt.Sprint("renderD", 128+card)
	for _, name := range []string{fmt.Sprint("card", card), render} {
		n.check(os.MkdirAll(filepath.Join(dir, "drm", name), 0o755))
		n.check(os.MkdirAll(n.sysfs+"/class/drm", 0o755))
		n.check(os.Symlink("../../"+filepath.Join(path, "drm", name), n.sysfs+"/class/drm/"+name))
	}
	n.check(os.Symlink("../../bus/pci/drivers/"+driver, filepath.Join(dir, "driver")))
	all := map[string]string{"numa_node": "-1", "power/runtime_status": "active", "power/control": "on", "power/autosuspend_delay_ms": "1000"}
	maps.Copy(all, attributes)
	for name, text := range all {
		n.write(filepath.Join(dir, strings.Replace(name, "card/", fmt.Sprint("drm/card", card, "/"), 1)), text)
	}
}

// battlemage adds a card of xe with a graphics and a media unit.
func (n *node) battlemage() {
	n.t.Helper()
	n.device(xePath, "xe", 1, map[string]string{
		"device": "0xe20b", "numa_node": "1",
		"tile0/gt0/freq0/act_freq": "2850", "tile0/gt0/freq0/rp0_freq": "2900", "tile0/gt0/gtidle/name": "gt0-rc",
		"tile0/gt0/freq0/throttle/status": "1", "tile0/gt0/freq0/throttle/reason_pl1": "1", "tile0/gt0/freq0/throttle/reason_pl4": "0",
		"tile0/gt0/freq0/throttle/reason_thermal": "0", "tile0/gt0/freq0/throttle/reason_prochot": "0",
		"tile0/gt0/freq0/throttle/reason_vr_thermalert": "0", "tile0/gt0/freq0/throttle/reason_vr_tdc": "0",
		"tile0/gt1/freq0/act_freq": "0", "tile0/gt1/freq0/rp0_freq": "1500", "tile0/gt1/gtidle/name": "gt1-mc",
		"tile0/gt1/freq0/throttle/status": "0", "tile0/gt1/freq0/throttle/reason_thermal": "0",
		"hwmon/hwmon4/name": "xe", "hwmon/hwmon4/energy1_input": "5000000", "hwmon/hwmon4/energy2_input": "3000000",
		"hwmon/hwmon4/power1_max": "0", "hwmon/hwmon4/power1_max_interval": "28", "hwmon/hwmon4/power2_max": "190000000",
		"hwmon/hwmon4/temp2_input": "61000", "hwmon/hwmon4/temp2_label": "pkg",
		"hwmon/hwmon4/temp3_input": "58000", "hwmon/hwmon4/temp3_label": "vram", "hwmon/hwmon4/fan1_input": "1200",
	})
}

// flex adds a card of i915 with its own memory, and Intel's package of the driver.
func (n *node) flex() {
	n.t.Helper()
	n.device(busPath+"0000:00:05.0/0000:9a:00.0", "i915", 0, map[string]string{
		"device": "0x56c0", "card/gt/gt0/rps_act_freq_mhz": "2050", "card/gt/gt0/rps_RP0_freq_mhz": "2050",
		"card/gt/gt0/throttle_reason_status": "0", "card/gt/gt0/throttle_reason_thermal": "1", "card/gt/gt0/throttle_reason_pl1": "0",
		"card/gt_act_freq_mhz": "2050", "card/lmem_total_bytes": "14260633600",
		"hwmon/hwmon2/name": "i915", "hwmon/hwmon2/energy1_input": "7000000", "hwmon/hwmon2/power1_max": "120000000",
		"hwmon/hwmon2/temp1_input": "55000", "hwmon/hwmon3/name": "i915_gt0", "hwmon/hwmon3/energy1_input": "1",
	})
	n.write(n.sysfs+"/module/i915/version", "backported to 5.15")
}

func (n *node) path(name string) string { return filepath.Join(n.sysfs, name) }

// hang replaces an attribute by a pipe that blocks on open. answer makes it answer.
func (n *node) hang(name string) (answer func()) {
	n.t.Helper()
	n.check(os.RemoveAll(name))
	n.check(unix.Mkfifo(name, 0o600))
	done := false
	answer = func() {
		if done {
			return
		}
		done = true
		n.check(os.Rename(name, name+".old"))
		n.write(name, "1")
		if fd, err := unix.Open(name+".old", unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
			unix.Close(fd) // blocked readers get the end of the file
		}
	}
	n.t.Cleanup(answer)
	return answer
}

// open gives the process a descriptor of the node with that minor number, with the name in its container.
func (n *node) open(pid, fd, minor int, name, fdinfo string) {
	n.t.Helper()
	device := filepath.Join(n.root, "containers", strconv.Itoa(pid), name)
	link := filepath.Join(n.proc, strconv.Itoa(pid), "fd", strconv.Itoa(fd))
	n.check(errors.Join(os.MkdirAll(filepath.Dir(device), 0o755), os.MkdirAll(filepath.Dir(link), 0o755)))
	if err := unix.Mknod(device, unix.S_IFCHR|0o600, int(unix.Mkdev(226, uint32(minor)))); err != nil && !errors.Is(err, unix.EEXIST) {
		n.t.Fatalf("the tests need root: mknod %s: %v", device, err)
	}
	if err := os.Symlink(device, link); err != nil && !errors.Is(err, os.ErrExist) {
		n.t.Fatal(err)
	}
	n.info(pid, fd, fdinfo)
}

func (n *node) info(pid, fd int, fdinfo string) {
	n.t.Helper()
	n.write(filepath.Join(n.proc, strconv.Itoa(pid), "fdinfo", strconv.Itoa(fd)), "pos:\t0\nflags:\t02100002\nmnt_id:\t26\nino:\t612\n"+fdinfo)
}

// fdinfoXe returns the fdinfo of a client of xe, with the cycles of the compute engines (four) and of one for copies.
func fdinfoXe(client int, vramKiB, compute, copied, clock uint64) string {
	return fmt.Sprintf("drm-driver:\txe\ndrm-client-id:\t%d\ndrm-pdev:\t0000:03:00.0\ndrm-total-system:\t8 MiB\ndrm-shared-system:\t0\n"+
		"drm-resident-system:\t8 MiB\ndrm-total-gtt:\t64 KiB\ndrm-resident-gtt:\t64 KiB\ndrm-total-vram0:\t%d KiB\ndrm-shared-vram0:\t0\n"+
		"drm-active-vram0:\t0\ndrm-resident-vram0:\t%d KiB\ndrm-resident-stolen:\t0\n"+
		"drm-cycles-bcs:\t%d\ndrm-total-cycles-bcs:\t%d\ndrm-cycles-vcs:\t0\ndrm-total-cycles-vcs:\t%d\ndrm-engine-capacity-vcs:\t2\n"+
		"drm-cycles-ccs:\t%d\ndrm-total-cycles-ccs:\t%d\ndrm-engine-capacity-ccs:\t4\n",
		client, vramKiB, vramKiB, copied, clock, clock, compute, clock)
}

// fdinfoI915 returns the fdinfo of a client of i915 with its own memory, and the time of two video engines.
func fdinfoI915(client int, local string, video time.Duration) string {
	return fmt.Sprintf("drm-driver:\ti915\ndrm-client-id:\t%d\ndrm-pdev:\t0000:9a:00.0\ndrm-total-system0:\t1 MiB\ndrm-resident-system0:\t1 MiB\n"+
		"%sdrm-resident-stolen-system0:\t0\ndrm-engine-render:\t0 ns\ndrm-engine-copy:\t0 ns\ndrm-engine-video:\t%d ns\n"+
		"drm-engine-capacity-video:\t2\ndrm-engine-video-enhance:\t0 ns\n", client, local, video.Nanoseconds())
}

// card returns the first GPU.
func (n *node) card() *card {
	all, err := drm.NewCards(n.sysfs, nil).Reader().List()
	n.check(err)
	return newCard(drm.Driven(all, 1, "i915", "xe")[0], n.root)
}

func (n *node) options() Options {
	return Options{
		Root: n.root, Sysfs: n.sysfs, Procfs: n.proc, Interval: 20 * time.Millisecond,
		CgroupOf: func(pid int) (model.CgroupID, error) { return model.CgroupID(7000 + pid), nil },
	}
}

func start(t *testing.T, o Options) *Source {
	t.Helper()
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// eventually reads until so returns true.
func eventually(t *testing.T, s *Source, so func(model.Snapshot) bool) model.Snapshot {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		snap, err := s.Read(t.Context())
		if err == nil && so(snap) {
			return snap
		}
		if time.Now().After(end) {
			t.Fatalf("it never was so: %+v, %v", snap, err)
		}
	}
}
