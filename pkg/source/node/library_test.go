// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/procfs"
	"github.com/prometheus/procfs/blockdevice"

	"github.com/accelscope/accelscope/pkg/boundedfile"
)

// busyProc is a FAKE procfs of a node with many disks and the interfaces of many pods.
func busyProc(t testing.TB) string {
	t.Helper()
	var disks, devs strings.Builder
	devs.WriteString("Inter-|   Receive                                                |  Transmit\n" +
		" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n")
	for i := range 64 {
		fmt.Fprintf(&disks, "%4d %7d nvme%dn1 4711 12 890123 4567 89012 345 6789012 34567 0 89012 39134 17 0 1234 56 789 1011\n", 259, i, i)
	}
	for i := range 256 {
		fmt.Fprintf(&devs, "veth%d: 123456789 1234567 0 12 0 0 0 0 987654321 7654321 0 0 0 0 0 0\n", i)
	}
	dir := t.TempDir()
	for name, text := range map[string]string{"diskstats": disks.String(), "net/dev": devs.String()} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestLibrary compares what is read with the library.
func TestLibrary(t *testing.T) {
	dir := busyProc(t)
	fs, err := blockdevice.NewFS(dir, dir)
	if err != nil {
		t.Fatal(err)
	}
	want, err := fs.ProcDiskstats()
	if err != nil {
		t.Fatal(err)
	}
	var r reader
	b, err := r.file(dir + "/diskstats")
	if err != nil {
		t.Fatal(err)
	}
	disks := parseDisks(b, &boundedfile.Skipped{})
	if len(disks) != len(want) || len(want) != 64 {
		t.Fatalf("%d disks, the library %d", len(disks), len(want))
	}
	for i, d := range disks {
		w := want[i]
		if d.Name != w.DeviceName || d.Minor != uint64(w.MinorNumber) || d.Stats[2] != w.ReadSectors || d.Stats[16] != w.TimeSpentFlushing {
			t.Errorf("%+v, the library %+v", d, w)
		}
	}
	proc, err := procfs.NewFS(dir)
	if err != nil {
		t.Fatal(err)
	}
	interfaces, err := proc.NetDev()
	if err != nil {
		t.Fatal(err)
	}
	devs, err := (&netDevReader{procfs: dir}).list(&boundedfile.Skipped{})
	if err != nil || len(devs) != len(interfaces) || len(devs) != 256 {
		t.Fatalf("%d interfaces, %v, the library %d", len(devs), err, len(interfaces))
	}
	for _, d := range devs {
		if w := interfaces[d.Name]; d.Stats[0] != w.RxBytes || d.Stats[8] != w.TxBytes || d.Stats[3] != w.RxDropped {
			t.Errorf("%+v, the library %+v", d, w)
		}
	}
}

// BenchmarkDisks compares the cost with the library's: the table of libraries in CONTRIBUTING.md has the result.
func BenchmarkDisks(b *testing.B) {
	dir := busyProc(b)
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		var r reader
		for b.Loop() {
			text, err := r.file(dir + "/diskstats")
			if err != nil || len(parseDisks(text, &boundedfile.Skipped{})) != 64 {
				b.Fatal(err)
			}
		}
	})
	b.Run("library", func(b *testing.B) {
		b.ReportAllocs()
		fs, err := blockdevice.NewFS(dir, dir)
		for b.Loop() {
			if err == nil {
				_, err = fs.ProcDiskstats()
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkNetDev is BenchmarkDisks for interfaces.
func BenchmarkNetDev(b *testing.B) {
	dir := busyProc(b)
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		r := netDevReader{procfs: dir}
		for b.Loop() {
			if _, err := r.list(&boundedfile.Skipped{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("library", func(b *testing.B) {
		b.ReportAllocs()
		fs, err := procfs.NewFS(dir)
		for b.Loop() {
			if err == nil {
				_, err = fs.NetDev()
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}
