// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/boundedfile/linetest"
	"github.com/accelscope/accelscope/pkg/model"
)

func byName(figures []model.Figure) map[string]string {
	out := map[string]string{}
	for _, f := range figures {
		if _, twice := out[f.Name]; !twice { // the first one is exported
			out[f.Name] = fmt.Sprint(f.Value)
		}
	}
	return out
}

const (
	statText = "cpu  3 1 2 900 4 5 6 7 8 9\ncpu0 1 1 1 450 2 2 3 3 4 4\ncpu1 2 0 1 450 2 3 3 4 4 5\nintr 1000 1 2\nctxt 2000\n" +
		"btime 1700000000\nprocesses 30\nprocs_running 2\nprocs_blocked 1\nsoftirq 5 1 4\n"
	netDevText = "Inter-|   Receive  |  Transmit\n face |bytes    packets|bytes    packets\n" +
		"    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n  eth0: 1000 10 0 0 0 0 0 0 2000 20 0 0 0 0 0 0\n .lan0: 1 1 0 0 0 0 0 0 2 2 0 0 0 0 0 0\n"
	netstatText = "TcpExt: SyncookiesSent TCPTimeouts ListenDrops\nTcpExt: 1 2 3\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 0 5 6\n"
	mountText   = "20 1 259:2 / / rw shared:1 - ext4 /dev/nvme0n1p2 rw\n21 20 0:40 / /back\\134slash rw - tmpfs my\\040tmp rw\n" +
		"22 20 0:41 / /a\\012b ro - fuse.x x rw\n"
)

var lineParsers = []linetest.Parser{
	{Name: "stat", Text: statText, Parse: func(b []byte) map[string]string {
		stat, cpus := parseStat(b, &boundedfile.Skipped{})
		out := map[string]string{}
		for name, v := range map[string]model.Optional{
			"intr": stat.Interrupts, "ctxt": stat.ContextSwitches, "btime": stat.BootTime, "processes": stat.Forks,
			"procs_running": stat.Running, "procs_blocked": stat.Blocked,
		} {
			if v.Known {
				out[name] = fmt.Sprint(v.Value)
			}
		}
		for _, c := range cpus {
			out["cpu"+c.ID] = fmt.Sprint(c.Seconds)
		}
		return out
	}},
	{Name: "meminfo", Text: "MemTotal: 5 kB\nActive(file):  1 kB\nHugePages_Total: 0\n", Parse: func(b []byte) map[string]string {
		return byName(parseMemory(b, &boundedfile.Skipped{}))
	}},
	{Name: "vmstat", Text: "nr_free_pages 5\npgpgin 1\npgfault 2\noom_kill 3\n", Parse: func(b []byte) map[string]string {
		return byName(parseVM(newNames(), b, &boundedfile.Skipped{}))
	}},
	{Name: "net/netstat", Text: netstatText, Parse: func(b []byte) map[string]string {
		return byName(newNames().appendTable(nil, b, &boundedfile.Skipped{}))
	}, Replaces: func(line, name string) bool { // names or values of the same protocol
		protocol, _ := cutField([]byte(line))
		return strings.HasPrefix(name, strings.TrimSuffix(string(protocol), ":")+"_")
	}},
	{Name: "net/snmp6", Text: "Ip6InOctets 5\nUdp6InDatagrams 7\n", Parse: func(b []byte) map[string]string {
		return byName(newNames().appendList(nil, b, &boundedfile.Skipped{}))
	}},
	{
		Name: "net/sockstat", Text: "sockets: used 5\nTCP: inuse 1 orphan 0 tw 2 alloc 3 mem 4\nFRAG: inuse 0 memory 0\n",
		Parse: func(b []byte) map[string]string { return byName(appendSockets(nil, b, &boundedfile.Skipped{})) },
	},
	{
		Name: "pressure", Text: "some avg10=0.00 avg60=0.00 avg300=0.00 total=5\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=4\n",
		Parse: func(b []byte) map[string]string {
			var p model.Pressure
			parsePressure(&p, b, &boundedfile.Skipped{})
			out := map[string]string{}
			if p.Some != nil {
				out["some"] = fmt.Sprint(*p.Some)
			}
			if p.Full != nil {
				out["full"] = fmt.Sprint(*p.Full)
			}
			return out
		},
	},
	{
		Name: "diskstats", Text: "   8       0 sda 1 2 3 4 5 6 7 8 9 10 11\n 259       0 nvme0n1 1 2 3 4 5 6 7 8 9 10 11\n",
		Parse: func(b []byte) map[string]string {
			out := map[string]string{}
			for _, d := range parseDisks(b, &boundedfile.Skipped{}) {
				out[d.Name] = fmt.Sprint(d.Major, d.Minor, d.Stats)
			}
			return out
		},
	},
	{Name: "net/dev", Text: netDevText, Headings: 2, Parse: func(b []byte) map[string]string {
		out := map[string]string{}
		for _, d := range parseNetDevs(b, &boundedfile.Skipped{}) {
			out[d.Name] = fmt.Sprint(d.Stats)
		}
		return out
	}},
	{Name: "mountinfo", Text: mountText, Parse: func(b []byte) map[string]string {
		m := newMountReader("/proc", "/")
		m.parse(b)
		out := map[string]string{}
		for _, f := range m.mounts {
			out[f.MountPoint] = fmt.Sprint(f.Device, f.Type, f.Major, f.Minor, f.ReadOnly)
		}
		return out
	}},
	{Name: "os-release", Text: "ID=debian\nVERSION_ID=\"12\"\nNAME='a b'\n", Parse: func(b []byte) map[string]string {
		o := parseOSRelease(string(b))
		out := map[string]string{}
		for name, v := range map[string]string{"ID": o.ID, "VERSION_ID": o.VersionID, "NAME": o.Name, "VARIANT": o.Variant} {
			if v != "" {
				out[name] = v
			}
		}
		return out
	}, Replaces: func(line, name string) bool { // perhaps by nothing
		key, _, _ := strings.Cut(strings.TrimSpace(line), "=")
		return key == name
	}},
}

// FuzzLine inserts a line into each file: the results of the other lines do not change.
func FuzzLine(f *testing.F) { linetest.Fuzz(f, lineParsers) }

// TestOddLine: an invalid line is skipped, counted once and quoted, and no part fails.
func TestOddLine(t *testing.T) {
	root := t.TempDir()
	const odd = "odd 1 -x\n"
	write(t, root, map[string]string{
		"sys/x": "", "proc/loadavg": "1 2 3\n",
		"proc/meminfo": "MemTotal: 5 kB\nMemFree: odd kB\n", "proc/vmstat": "pgpgin odd\noom_kill 3\n", "proc/stat": "cpu0 odd\n" + statText,
		"proc/diskstats": "8 0 sda 1 2 3\n" + odd, "proc/1/mountinfo": odd + mountText, "proc/1/net/dev": netDevText + odd,
		"proc/1/net/netstat": "Odd: A\n" + netstatText, "proc/1/net/snmp": "Tcp: RtoMin ActiveOpens\n" + odd + "Tcp: -1 5\n",
		"proc/1/net/snmp6": "Ip6InOctets odd\nIp6OutOctets 6\n", "proc/1/net/sockstat": "TCP: inuse 1\n" + odd,
		"proc/pressure/io": "some avg10=0.00 total=odd\nfull avg10=0.00 total=4\n",
	})
	s := newSource(t, root, nil, nil)
	s.slow[0].read = func(_ time.Time, n *reading) error { // file systems: without statfs
		m := newMountReader(filepath.Join(root, "proc"), "/")
		m.statfs = func(string, *unix.Statfs_t) error { return nil }
		return m.read(time.Time{}, n)
	}
	for range 2 {
		got := mustRead(t, s)
		n := got.Node
		if len(n.NetDevs) != 3 || n.NetDevs[2].Name != ".lan0" || len(n.Disks) != 1 || len(n.Memory) != 1 || len(n.VM) != 1 ||
			len(n.CPUs) != 3 || n.Stat.ContextSwitches != model.Some(2000) || len(n.Filesystems) != 3 || len(n.Pressure) != 1 {
			t.Errorf("%+v", n)
		}
		if f := byName(n.Netstat); f["TcpExt_ListenDrops"] != "3" || f["Tcp_ActiveOpens"] != "5" || f["Ip6_OutOctets"] != "6" {
			t.Errorf("%v", f)
		}
		if f := byName(n.Sockets); f["TCP_inuse"] != "1" {
			t.Errorf("%v", f)
		}
		quoted := map[string]string{}
		for _, d := range got.DeviceStates {
			quoted[d.Device] = d.Reason
			if d.State != model.StateOK {
				t.Errorf("%+v", d)
			}
		}
		for part, quote := range map[string]string{
			"netdev": `"odd 1 -x"`, "meminfo": `"MemFree: odd kB"`, "vmstat": `"pgpgin odd"`, "stat": `"cpu0 odd"`, "diskstats": `"odd 1 -x"`,
			"filesystem": `"odd 1 -x"`, "netstat": `"Ip6InOctets odd"`, "sockstat": `"odd 1 -x"`, "pressure": "total=odd",
		} {
			if !strings.Contains(quoted[part], quote) {
				t.Errorf("%s: %q does not quote %s", part, quoted[part], quote)
			}
		}
		counts := map[string]uint64{}
		for _, l := range got.SkippedLines {
			counts[l.File] = l.Count
		}
		for _, file := range []string{
			"net/dev", "meminfo", "vmstat", "stat", "diskstats", "mountinfo", "net/netstat", "net/snmp", "net/snmp6", "net/sockstat",
			"pressure/io",
		} {
			if counts[file] != 1 {
				t.Errorf("%s: %d lines, want 1", file, counts[file])
			}
		}
	}
}
