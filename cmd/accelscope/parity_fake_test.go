// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeRoots are the directories of a fake node.
type fakeRoots struct{ procfs, sysfs, root string }

// writeFakeNode writes a tree of files that replaces a machine with devices that this machine lacks; twins are chips
// that share a device. It has a socket of four CPUs that has throttled, SATA, NVMe, device mapper and MD disks, bonds,
// VLANs, pods' interfaces, IPoIB, and sensors of all kinds. The formats are from Linux 5.10 to 6.18; the values are
// invented, and unusual where a kernel may report unusual values.
func writeFakeNode(t *testing.T, twins bool) fakeRoots {
	t.Helper()
	dir := t.TempDir()
	f := fakeRoots{filepath.Join(dir, "proc"), filepath.Join(dir, "sys"), filepath.Join(dir, "root")}
	w := &tree{t: t}
	w.files(f.procfs, fakeProc(f.root))
	w.link(f.procfs+"/1/net", "../net")
	w.link(f.procfs+"/self", "1")
	w.link(f.procfs+"/1/ns/net", "/proc/self/ns/net")
	w.interfaces(f.sysfs)
	w.sensors(f.sysfs)
	w.files(f.sysfs, map[string]string{
		"block/sda/queue/rotational":                                    "1\n",
		"block/nvme0n1/queue/rotational":                                "0\n",
		"block/dm-0/queue/rotational":                                   "0\n",
		"devices/system/clocksource/clocksource0/available_clocksource": "tsc hpet acpi_pm \n",
		"devices/system/clocksource/clocksource0/current_clocksource":   "hpet\n",
	})
	for zone, name := range map[string]string{
		"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram", "intel-rapl:1": "package-1", "intel-rapl:1:1": "dram",
		"intel-rapl:2": "psys", "intel-rapl-mmio:0": "package-0", "other:0": "a zone",
	} {
		at := "class/powercap/" + zone
		w.files(f.sysfs, map[string]string{at + "/name": name + "\n", at + "/max_energy_range_uj": "262143328850\n", at + "/energy_uj": "123456789\n"})
	}
	for i, name := range []string{"asus", "asus_ec", "twin", "twin"} {
		if twins {
			at := fmt.Sprintf("devices/platform/asus-nb-wmi.%d/hwmon/hwmon%d", i/2, 30+i)
			w.files(f.sysfs, map[string]string{at + "/name": name + "\n", at + "/fan1_input": fmt.Sprintln(i)})
			w.link(filepath.Join(f.sysfs, at, "device"), "../..")
			w.link(fmt.Sprintf("%s/class/hwmon/hwmon%d", f.sysfs, 30+i), "../../"+at)
		}
	}
	for cpu := range 4 {
		at := fmt.Sprintf("devices/system/cpu/cpu%d/", cpu)
		w.files(f.sysfs, map[string]string{
			at + "topology/physical_package_id":            fmt.Sprintln(cpu / 2),
			at + "topology/core_id":                        fmt.Sprintln(cpu % 2 / 1),
			at + "thermal_throttle/core_throttle_count":    fmt.Sprintln(10 + cpu),
			at + "thermal_throttle/package_throttle_count": fmt.Sprintln(100 + cpu/2),
		})
	}
	w.files(f.root, map[string]string{
		"run/udev/data/b8:0": "S:disk/by-id/x\nE:ID_ATA=1\nE:ID_MODEL=ST16000NM001G-2KK103\nE:ID_SERIAL_SHORT=ZL2\"02\n" +
			"E:ID_WWN=0x5000c500c3d1f1a1\nE:ID_PATH=pci-0000:00:17.0-ata-3\nE:ID_REVISION=SN03\nE:ID_ATA_WRITE_CACHE=1\n" +
			"E:ID_ATA_WRITE_CACHE_ENABLED=0\nE:ID_ATA_ROTATION_RATE_RPM=7200\n",
		"run/udev/data/b259:0": "E:ID_SERIAL=SAMSUNG MZQL23T8HCLS_S64HNE0R\nE:ID_SERIAL_SHORT=S64HNE0R\nE:ID_FS_TYPE=ext4\nE:ID_FS_USAGE=filesystem\n" +
			"E:ID_FS_UUID=1234-ab\nE:ID_FS_VERSION=1.0\nG:systemd\n",
		"run/udev/data/b253:0": "E:DM_NAME=vg0-root\nE:DM_UUID=LVM-abc\nE:DM_VG_NAME=vg0\nE:DM_LV_NAME=root\nE:DM_LV_LAYER=\n",
		"etc/os-release": "PRETTY_NAME=\"Ubuntu 24.04.1 LTS\"\nNAME='Ubuntu \"x\"'\nVERSION_ID=\"24.04.1\"\n" +
			"VERSION=\"24.04.1 LTS (Noble \\\"N\\\" Numbat)\"\nVERSION_CODENAME=noble\nID=ubuntu\nID_LIKE=debian\n# a comment\n" +
			"\nHOME_URL=\"https://example.org/?a=b\"\nSUPPORT_END=2029-05-31\nVARIANT_ID=\nBUILD_ID=rolling\n",
		"boot/efi/x": "", "var/lib/kubelet/pods/11/volumes/kubernetes.io~projected/token/x": "", "mnt/a b/x": "",
		"data/x": "", "run/x": "", "home/x": "",
	})
	return f
}

// change changes values that change on a real node, so that values cached from one read would be noticed in the next.
func (f fakeRoots) change(t *testing.T) {
	t.Helper()
	w := &tree{t: t}
	w.files(f.sysfs, map[string]string{
		"class/hwmon/hwmon0/temp1_input": "71000\n", "class/hwmon/hwmon0/temp1_crit_alarm": "1\n",
		"class/hwmon/hwmon4/power1_average": "300000000\n", "class/hwmon/hwmon4/fan1_input": "3000\n",
		"class/hwmon/hwmon6/intrusion0_alarm": "0\n", "class/hwmon/hwmon7/energy1_input": "123456789999\n",
		"class/net/ens1f1np1/operstate": "up\n", "class/net/ens1f1np1/carrier": "1\n", "class/net/ens1f1np1/flags": "0x1003\n",
		"class/net/ens1f1np1/carrier_changes": "6\n", "class/net/ens1f1np1/carrier_up_count": "4\n",
		"class/net/ens1f1np1/speed": "25000\n", "class/net/ens1f1np1/duplex": "full\n",
		"devices/system/cpu/cpu0/thermal_throttle/core_throttle_count": "11\n",
		"devices/system/clocksource/clocksource0/current_clocksource":  "tsc\n",
	})
	for _, gone := range []string{"class/net/veth12ab34cd", "class/hwmon/hwmon1"} {
		if err := os.Remove(filepath.Join(f.sysfs, gone)); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
	}
	w.files(f.procfs, map[string]string{
		"loadavg": "7.00 6.00 5.00 1/2 3\n", "1/mountinfo": "30 1 8:0 / /data ro - xfs /dev/sda rw\n",
		"1/mounts": "/dev/sda /data xfs ro 0 0\n", "diskstats": "   8       0 sda 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9 9\n",
		// The idle time of CPU 0 falls, CPU 1 is a new one.
		"stat": "cpu0 350 5 75 9990 12 2 2 2 3 3\ncpu1 1 1 1 1 1 1 1 1 1 1\ncpu2 249 5 75 9999 12 1 2 2 2 2\n" +
			"cpu3 4294967296124 5 75 10000 13 2 2 2 1 2\n" +
			"intr 5\nctxt 6\nbtime 7\nprocesses 8\nprocs_running 9\nprocs_blocked 10\n",
	})
}

// tree writes files and links.
type tree struct{ t *testing.T }

func (w *tree) files(root string, files map[string]string) {
	w.t.Helper()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			w.t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *tree) link(path, target string) {
	w.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		w.t.Fatal(err)
	}
}

// interfaces writes interfaces in devices, and links in class/net, as in sysfs.
func (w *tree) interfaces(sysfs string) {
	w.files(sysfs, map[string]string{"class/net/bonding_masters": "bond0\n"})
	index := 0
	for _, nic := range []struct{ name, device string }{
		{"lo", "virtual/net"},
		{"ens1f0np0", "pci0000:00/0000:18:00.0/net"},
		{"ens1f1np1", "pci0000:00/0000:18:00.1/net"},
		{"bond0", "virtual/net"},
		{"bond0.100", "virtual/net"},
		{"veth12ab34cd", "virtual/net"},
		{"ib0", "pci0000:00/0000:3b:00.0/net"},
		{"docker0", "virtual/net"},
	} {
		index++
		files := map[string]string{
			"addr_assign_type": "0\n", "addr_len": "6\n", "address": fmt.Sprintf("02:00:00:00:00:%02x\n", index),
			"broadcast": "ff:ff:ff:ff:ff:ff\n", "carrier": "1\n", "carrier_changes": "5\n", "carrier_up_count": "3\n",
			"carrier_down_count": "2\n", "dev_id": "0x0\n", "dev_port": "0\n", "dormant": "0\n", "duplex": "full\n",
			"flags": "0x1003\n", "gro_flush_timeout": "0\n", "ifalias": "\n", "ifindex": fmt.Sprintln(index),
			"iflink": fmt.Sprintln(index), "link_mode": "0\n", "mtu": "1500\n", "name_assign_type": "4\n",
			"netdev_group": "0\n", "operstate": "up\n", "proto_down": "0\n", "speed": "100000\n", "tx_queue_len": "1000\n",
			"type": "1\n", "uevent": "INTERFACE=x\n", "queues/rx-0/rps_cpus": "f\n",
		}
		switch nic.name {
		case "lo":
			files["operstate"], files["flags"], files["type"], files["mtu"] = "unknown\n", "0x9\n", "772\n", "65536\n"
			delete(files, "speed") // the kernel returns EINVAL
			delete(files, "duplex")
			delete(files, "name_assign_type")
		case "ens1f1np1": // down
			files["operstate"], files["carrier"], files["speed"], files["duplex"] = "down\n", "0\n", "-1\n", "unknown\n"
			files["flags"] = "0x1002\n"
		case "bond0":
			files["ifalias"], files["mtu"], files["speed"] = "uplink \"a\" to \\b\n", "9000\n", "200000\n"
		case "ib0":
			files["type"], files["mtu"], files["speed"] = "32\n", "4092\n", "400000\n"
			files["address"] = "00:00:10:49:fe:80:00:00:00:00:00:00:b8:3f:d2:03:00:a1:b2:c3\n"
			files["broadcast"] = "00:ff:ff:ff:ff:12:40:1b:ff:ff:00:00:00:00:00:00:ff:ff:ff:ff\n"
		case "veth12ab34cd":
			files["iflink"], files["speed"] = "2\n", "10000\n"
		case "docker0":
			files["speed"], files["carrier"], files["operstate"] = "garbage\n", "0\n", "down\n"
		}
		at := "devices/" + nic.device + "/" + nic.name
		w.files(filepath.Join(sysfs, at), files)
		w.link(sysfs+"/class/net/"+nic.name, "../../"+at)
	}
}

// sensors writes sensors in devices, and links in class/hwmon.
func (w *tree) sensors(sysfs string) {
	for i, chip := range []struct {
		device string // below devices; empty for none
		files  map[string]string
	}{
		{"platform/coretemp.0", map[string]string{
			"name": "coretemp\n", "temp1_input": "67000\n", "temp1_label": "Package id 0\n", "temp1_max": "84000\n",
			"temp1_crit": "100000\n", "temp1_crit_alarm": "0\n", "temp2_input": "55123\n", "temp2_label": "Core 0\n",
			"temp10_input": "-5000\n", "temp10_label": "Core 10\n",
		}},
		{"pci0000:00/0000:00:18.3", map[string]string{
			"name": "k10temp\n", "temp1_input": "48625\n", "temp1_label": "Tctl\n", "temp3_input": "45250\n",
			"temp3_label": "Tccd1\n",
		}},
		{"pci0000:00/0000:64:00.0/nvme/nvme0", map[string]string{
			"name": "nvme\n", "temp1_input": "36850\n", "temp1_alarm": "0\n", "temp1_crit": "84850\n", "temp1_label": "Composite\n",
			"temp1_max": "81850\n", "temp1_min": "-273150\n",
		}},
		{"pci0000:00/0000:18:00.0", map[string]string{
			"name": "mlx5\n", "temp1_input": "61000\n", "temp1_crit": "105000\n", "temp1_highest": "66000\n", "temp1_label": "asic\n",
			"temp1_reset_history": "\n",
		}},
		{"pci0000:00/0000:c1:00.0", map[string]string{
			"name": "amdgpu\n", "fan1_enable": "0\n", "fan1_input": "1432\n", "fan1_max": "3300\n", "fan1_min": "0\n",
			"fan1_target": "1430\n", "fan1_pulses": "2\n", "freq1_input": "132000000\n", "freq1_label": "sclk\n",
			"freq2_input": "900000000\n", "freq2_label": "MCLK 2\n", "freq3_input": "1\n",
			"in0_input": "793\n", "in0_label": "vddgfx\n", "power1_average": "41123456\n", "power1_cap": "303000000\n",
			"power1_cap_max": "348000000\n", "power1_cap_min": "0\n", "power1_label": "slowPPT\n", "pwm1": "85\n",
			"pwm1_enable": "2\n", "pwm1_max": "255\n", "temp1_crit": "100000\n", "temp1_crit_hyst": "-273150\n",
			"temp1_emergency": "105000\n", "temp1_input": "47000\n", "temp1_label": "edge\n", "power/control": "auto\n",
			"temp2_input": "49000\n", "temp2_label": "junction\n", "temp3_input": "garbage\n", "temp3_label": "mem\n",
		}},
		{"LNXSYSTM:00/LNXSYBUS:00/ACPI000D:00", map[string]string{
			"name": "power_meter\n", "power1_average": "1234500000\n", "power1_average_interval": "1000\n",
			"power1_average_interval_max": "300000\n", "power1_average_interval_min": "1\n", "power1_accuracy": "95.0%\n",
			"power1_is_battery": "0\n", "power2_accuracy": "990000\n", "power1_alarm": "0\n",
		}},
		{"platform/nct6775.656", map[string]string{
			"name": "nct6798\n", "beep_enable": "1\n", "vrm": "91\n", "update_interval": "2000\n", "cpu0_vid": "1100\n",
			"in0_input": "1016\n", "in0_min": "0\n", "in0_max": "1744\n", "in0_alarm": "1\n", "in0_beep": "1\n",
			"intrusion0_alarm": "1\n", "intrusion0_beep": "0\n", "curr1_input": "12500\n", "curr1_max": "30000\n",
			"humidity1_input": "45200\n", "temp1_type": "4\n", "temp1_offset": "0\n", "temp1_fault": "1\n", "temp1_input": "31500\n",
			"fan2_input": "0\n", "fan2_alarm": "1\n", "fan2_div": "8\n", "pwm2": "128\n", "pwm2_auto_point1_pwm": "60\n",
			"temp7": "3\n", "temp7_input": "4\n", "in_odd1x": "5\n", "fan1foo": "6\n", "fan9_": "7\n",
		}},
		{"platform/rapl.0", map[string]string{
			"name": "amd_energy\n", "energy1_input": "123456789012\n", "energy1_label": "Ecore000\n", "energy2_alarm": "0\n",
			"energy3_enable": "1\n",
		}},
		{"", map[string]string{"name": "ACPI\u00a0Zone 1\n", "temp1_input": "27800\n", "temp1_label": "caf\xe9 \"x\"\n"}},
		{"", map[string]string{"temp1_input": "1\n"}},
	} {
		name := fmt.Sprint("hwmon", i)
		at := "devices/virtual/hwmon/" + name
		if chip.device != "" {
			at = "devices/" + chip.device + "/hwmon/" + name
			w.files(sysfs, map[string]string{"devices/" + chip.device + "/uevent": "", "devices/" + chip.device + "/irq": "9\n"})
			w.link(filepath.Join(sysfs, at, "device"), "../..")
		}
		w.files(filepath.Join(sysfs, at), chip.files)
		w.link(sysfs+"/class/hwmon/"+name, "../../"+at)
	}
	// An old driver, whose files are in the directory of the device.
	w.files(sysfs, map[string]string{
		"devices/platform/w83627hf.656/temp1_input": "33000\n", "devices/platform/w83627hf.656/name": "w83627hf\n",
		"devices/platform/w83627hf.656/hwmon/hwmon20/uevent": "",
	})
	w.link(sysfs+"/devices/platform/w83627hf.656/hwmon/hwmon20/device", "../..")
	w.link(sysfs+"/class/hwmon/hwmon20", "../../devices/platform/w83627hf.656/hwmon/hwmon20")
}

// fakeProc returns the files of procfs. root is the path of the node's root, with which a mount point may begin.
func fakeProc(root string) map[string]string {
	mounts := []struct{ major, point, options, typ, device, super string }{
		{"259:2", "/", "rw,relatime", "ext4", "/dev/nvme0n1p2", "rw"},
		{"0:22", "/proc", "rw", "proc", "proc", "rw"},
		{"0:23", "/sys", "rw", "sysfs", "sysfs", "rw"},
		{"0:5", "/dev", "rw", "devtmpfs", "udev", "rw,size=10k"},
		{"0:24", "/run", "rw,nosuid", "tmpfs", "tmpfs", "rw,size=26k,mode=755"},
		{"259:1", "/boot/efi", "ro,relatime", "vfat", "/dev/nvme0n1p1", "rw"},
		{"8:0", "/data", "rw", "xfs", "/dev/sda", "ro,attr2"},
		{"0:60", "/var/lib/kubelet/pods/11/volumes/kubernetes.io~projected/token", "rw", "tmpfs", "tmpfs", "rw"},
		{"0:61", "/run/containerd/io.containerd.runtime.v2.task/k8s.io/22/rootfs", "rw", "overlay", "overlay", "rw"},
		{"0:62", "/run/credentials/systemd-sysctl.service", "ro", "tmpfs", "tmpfs", "rw"},
		{"0:63", `/mnt/a\040b`, "rw", "nfs4", "10.0.0.1:/export", "rw,vers=4.2"},
		{"0:63", `/mnt/a\040b`, "rw", "nfs4", "10.0.0.1:/export", "rw,vers=4.2"},
		{"0:64", "/missing", "rw", "fuse.sshfs", "u@h:/", "rw"},
		{"253:0", root + "/home", "rw", "ext4", "/dev/mapper/vg0-root", "rw"},
	}
	var mountinfo, mountsFile strings.Builder
	for i, m := range mounts {
		fmt.Fprintf(&mountinfo, "%d 1 %s / %s %s shared:%d - %s %s %s\n", i+20, m.major, m.point, m.options, i, m.typ, m.device, m.super)
		options := m.options
		if strings.HasPrefix(m.super, "ro") {
			options = "ro"
		}
		fmt.Fprintf(&mountsFile, "%s %s %s %s 0 0\n", m.device, m.point, m.typ, options)
	}
	return map[string]string{
		"stat": "cpu  1000 20 300 40000 50 6 7 8 9 10\n" +
			"cpu0 250 5 75 10000 13 2 2 2 3 3\ncpu1 251 5 75 10001 12 1 1 2 3 3\ncpu2 249 5 75 9999 12 1 2 2 2 2\n" +
			"cpu3 4294967296123 5 75 10000 13 2 2 2 1 2\n" +
			"intr 123456789 9 0 0 " + strings.Repeat("0 ", 3000) + "7\nctxt 987654321\nbtime 1763700000\nprocesses 54321\n" +
			"procs_running 3\nprocs_blocked 1\nsoftirq 100 1 2 3 4 5 6 7 8 9 10\n",
		"loadavg": "1.50 2.25 10.75 3/1234 56789\n",
		"meminfo": fakeMeminfo,
		"vmstat": "nr_free_pages 5626604\nnr_zone_inactive_anon 1\npgpgin 1163553\npgpgout 41290233\npswpin 1\npswpout 2\n" +
			"pgalloc_normal 5\npgfault 18446744073709551615\npgmajfault 1234\noom_kill 3\ndrop_pagecache 0\nthp_fault_alloc 9\n",
		"diskstats": "" +
			"   8       0 sda 25354637 34367663 1003346126 18492372 28444756 11134226 505697032 63877960 0 9653880 82621804 1 2 3 4 5 6\n" +
			"   8       1 sda1 250 0 2000 36 0 0 0 0 0 36 36 0 0 0 0 0 0\n" +
			" 259       0 nvme0n1 47114 4 4643973 21650 1078320 43950 39451633 1011053 3 222766 1032546 17 18 19 20 21 22\n" +
			" 259       2 nvme0n1p2 1140 0 9370 16 1 0 1 0 0 16 16 0 0 0 0 0 0\n" +
			" 253       0 dm-0 59910002 0 1003337218 46229572 39231014 0 505697032 1158557800 0 11325968 1206301256 0 0 0 0\n" +
			"   9     127 md127 5 0 6 7 8 0 9 10 0 11 12\n" +
			"   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n" +
			" 251       0 zram0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n" +
			" 254       0 vda 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18\n",
		"pressure/cpu":    "some avg10=0.00 avg60=0.00 avg300=0.00 total=14036781\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
		"pressure/io":     "some avg10=0.10 avg60=2.00 avg300=3.85 total=15123456\nfull avg10=0.20 avg60=3.00 avg300=4.95 total=25123457\n",
		"pressure/memory": "some avg10=0.10 avg60=2.00 avg300=3.85 total=1\nfull avg10=0.20 avg60=3.00 avg300=4.95 total=333333\n",
		"pressure/irq":    "full avg10=0.00 avg60=0.00 avg300=0.00 total=777\n",
		"net/dev": "Inter-|   Receive                                                |  Transmit\n" +
			" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n" +
			"    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n" +
			"ens1f0np0:18446744073709551615 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n" +
			"ens1f1np1: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n" +
			" bond0: 100 200 0 1 0 0 0 5 300 400 0 2 0 0 0 0\n" +
			"bond0.100: 10 20 0 0 0 0 0 0 30 40 0 0 0 0 0 0\n" +
			"veth12ab34cd: 5 6 0 0 0 0 0 0 7 8 0 0 0 0 0 0\n" +
			"   ib0: 55 66 0 0 0 0 0 12 77 88 0 9 0 0 0 0\n",
		"net/netstat": "TcpExt: SyncookiesSent SyncookiesRecv SyncookiesFailed PruneCalled ListenOverflows ListenDrops TCPTimeouts " +
			"TCPSynRetrans TCPOFOQueue TCPRcvQDrop\nTcpExt: 1 2 3 4 5 6 7 8 9 10\n" +
			"IpExt: InNoRoutes InOctets OutOctets\nIpExt: 1 6286396970 2786264347\n",
		"net/snmp": "Ip: Forwarding DefaultTTL InReceives\nIp: 1 64 57740232\nIcmp: InMsgs InErrors OutMsgs\nIcmp: 104 0 120\n" +
			"IcmpMsg: InType3 OutType3\nIcmpMsg: 104 120\n" +
			"Tcp: RtoAlgorithm MaxConn ActiveOpens PassiveOpens CurrEstab InSegs OutSegs RetransSegs InErrs OutRsts\n" +
			"Tcp: 1 -1 3556 230 2 57252008 54915039 227 5 1003\n" +
			"Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors\nUdp: 88542 120 0 53028 9 8\n" +
			"UdpLite: InDatagrams NoPorts InErrors\nUdpLite: 0 0 0\n",
		"net/snmp6": "Ip6InReceives                   \t7\nIp6InOctets                     \t460\nIp6OutOctets\t536\nIcmp6InMsgs\t0\n" +
			"Icmp6InErrors\t0\nIcmp6OutMsgs\t8\nUdp6InDatagrams\t0\nUdp6InErrors\t0\nUdp6NoPorts\t0\nUdp6OutDatagrams\t0\n" +
			"Udp6RcvbufErrors\t9\nUdp6SndbufErrors\t8\nUdpLite6InErrors\t0\n",
		"net/sockstat": "sockets: used 1602\nTCP: inuse 35 orphan 0 tw 4 alloc 59 mem 22\nUDP: inuse 12 mem 62\nUDPLITE: inuse 0\n" +
			"RAW: inuse 0\nFRAG: inuse 0 memory 0\n",
		"net/sockstat6":                   "TCP6: inuse 17\nUDP6: inuse 9\nUDPLITE6: inuse 0\nRAW6: inuse 1\nFRAG6: inuse 0 memory 0\n",
		"1/mountinfo":                     mountinfo.String(),
		"1/mounts":                        mountsFile.String(),
		"sys/fs/file-nr":                  "1024\t0\t9223372036854775807\n",
		"sys/kernel/random/entropy_avail": "256\n",
		"sys/kernel/random/poolsize":      "256\n",
	}
}

// fakeMeminfo has hugepages, CMA, and a corrupted page.
const fakeMeminfo = `MemTotal:       2113412364 kB
MemFree:        1989349136 kB
MemAvailable:   2046783524 kB
Buffers:            5216 kB
Cached:         22516908 kB
SwapCached:            1 kB
Active:         12815444 kB
Inactive:         763816 kB
Active(anon):       1568 kB
Inactive(anon):    10576 kB
Active(file):     813876 kB
Inactive(file):   753240 kB
Unevictable:       21824 kB
Mlocked:           21004 kB
SwapTotal:       8388604 kB
SwapFree:        8388600 kB
Zswap:                 3 kB
Zswapped:              4 kB
Dirty:               332 kB
Writeback:             5 kB
AnonPages:         25112 kB
Mapped:            11084 kB
Shmem:              8872 kB
KReclaimable:     481816 kB
Slab:             532800 kB
SReclaimable:     481816 kB
SUnreclaim:        50984 kB
KernelStack:        1992 kB
PageTables:         2496 kB
SecPageTables:      1024 kB
NFS_Unstable:          6 kB
Bounce:                7 kB
WritebackTmp:          8 kB
CommitLimit:    12341828 kB
Committed_AS:      77724 kB
VmallocTotal:   34359738367 kB
VmallocUsed:       15900 kB
VmallocChunk:          9 kB
Percpu:             2032 kB
HardwareCorrupted:     4 kB
AnonHugePages:      4096 kB
ShmemHugePages:     2048 kB
ShmemPmdMapped:     2048 kB
FileHugePages:         0 kB
FilePmdMapped:         0 kB
CmaTotal:         131072 kB
CmaFree:          131000 kB
Unaccepted:            0 kB
HugePages_Total:    1024
HugePages_Free:     1000
HugePages_Rsvd:        3
HugePages_Surp:        2
Hugepagesize:       2048 kB
Hugetlb:         2097152 kB
DirectMap4k:       34816 kB
DirectMap2M:     2062336 kB
DirectMap1G:    2125165824 kB
`
