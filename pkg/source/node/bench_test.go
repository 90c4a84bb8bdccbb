// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkRead reads this machine, and files that stand for a large node: 256 CPUs, 126 interfaces, 40 disks, 20
// chips, 1,000 mount points (30 listed). Files on a disk are faster than a driver's files.
func BenchmarkRead(b *testing.B) {
	b.Run("this-machine", func(b *testing.B) {
		s, err := New(Options{})
		if err != nil {
			b.Fatal(err)
		}
		benchmark(b, s)
	})
	b.Run("large", func(b *testing.B) { benchmark(b, newSource(b, large(b), nil, nil)) })
}

func benchmark(b *testing.B, s *Source) {
	b.ReportAllocs()
	for b.Loop() {
		if got := mustRead(b, s); len(got.DeviceStates) > 0 {
			b.Fatal(got.DeviceStates)
		}
	}
}

func large(b *testing.B) string {
	root := b.TempDir()
	var stat, diskstats, dev, mountinfo, meminfo strings.Builder
	for i := range 256 {
		fmt.Fprintf(&stat, "cpu%d 123456 234 345678 456789012 5678 678 789 890 91 92\n", i)
	}
	fmt.Fprintf(&stat, "intr 123456789 %s\nctxt 1\nbtime 2\nprocesses 3\nprocs_running 4\nprocs_blocked 5\n",
		strings.Repeat("123 ", 4000))
	for i := range 40 {
		fmt.Fprintf(&diskstats, "259 %d nvme%dn1 47114 4 4643973 21650 1078320 43950 39451633 1011053 0 222766 1032546 1 2 3 4 5 6\n", i, i)
	}
	dev.WriteString("a\nb\n")
	for i := range 126 {
		fmt.Fprintf(&dev, "veth%08x: 123456789 234567 0 1 0 0 0 0 3456789012 456789 0 0 0 0 0 0\n", i)
		files := map[string]string{"statistics/rx_nohandler": "0\n", "operstate": "up\n", "flags": "0x1003\n"}
		for name := range strings.FieldsSeq("addr_assign_type carrier carrier_changes carrier_up_count carrier_down_count " +
			"dev_id dormant ifindex iflink link_mode mtu name_assign_type netdev_group speed tx_queue_len type") {
			files[name] = "1\n"
		}
		write(b, fmt.Sprintf("%s/sys/class/net/veth%08x", root, i), files)
	}
	for i := range 1000 {
		typ := "overlay"
		if i%33 == 0 {
			typ = "tmpfs"
		}
		fmt.Fprintf(&mountinfo, "%d 1 0:%d / /run/x/%d rw,relatime shared:1 - %s %s rw,size=%d\n", i+20, i, i, typ, typ, i)
	}
	for i := range 60 {
		fmt.Fprintf(&meminfo, "Field%d(x):  %d kB\n", i, i)
	}
	for i := range 20 {
		files := map[string]string{"name": "coretemp\n"}
		for n := range 8 {
			for _, property := range []string{"input", "max", "crit", "crit_alarm", "label"} {
				files[fmt.Sprintf("temp%d_%s", n+1, property)] = "45000\n"
			}
		}
		write(b, fmt.Sprintf("%s/sys/class/hwmon/hwmon%d", root, i), files)
	}
	write(b, root, map[string]string{
		"proc/stat": stat.String(), "proc/diskstats": diskstats.String(), "proc/net/dev": dev.String(),
		"proc/1/mountinfo": mountinfo.String(), "proc/meminfo": meminfo.String(), "proc/loadavg": "1 2 3\n",
		"root/run/x/0/y": "",
	})
	for i := range 1000 {
		if i%33 == 0 {
			write(b, root, map[string]string{fmt.Sprintf("root/run/x/%d/y", i): ""})
		}
	}
	return root
}
