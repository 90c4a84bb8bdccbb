// SPDX-License-Identifier: Apache-2.0

package access

import (
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/hook"
)

// BenchmarkOpen opens and closes /dev/null, which is not watched, and /dev/full, which is watched, without the hooks
// and with each tier that the kernel supports. stat is an unrelated system call.
func BenchmarkOpen(b *testing.B) {
	f := benchTree(b)
	calls := func(b *testing.B) {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for _, path := range []string{"/dev/null", "/dev/full"} {
			b.Run(strings.TrimPrefix(path, "/dev/"), func(b *testing.B) {
				for b.Loop() {
					fd, err := unix.Open(path, unix.O_RDWR, 0)
					if err != nil {
						b.Fatal(err)
					}
					_ = unix.Close(fd)
				}
			})
		}
		b.Run("stat", func(b *testing.B) {
			var st unix.Stat_t
			for b.Loop() {
				_ = unix.Stat("/dev/null", &st)
			}
		})
	}
	b.Run("without", calls)
	for _, tier := range []string{hook.Fentry, hook.Kprobe} {
		o := f.options("")
		o.Tier = tier
		s, err := New(o)
		if err != nil {
			b.Fatal(err)
		}
		if s.sensor.counts {
			b.Run(tier, calls)
		}
		_ = s.Close()
	}
	b.Run("again_without", calls)
}

// BenchmarkFiles lists open files: the cost per file if none or all belong to a watched device, and the cost of the
// machine's own files.
func BenchmarkFiles(b *testing.B) {
	s, err := New(benchTree(b).options(""))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // the benchmark has ended
	s.stop()
	<-s.listing
	list := func(b *testing.B) float64 {
		for b.Loop() {
			if _, err := s.sensor.listFiles(func(uint32) bool { return true }); err != nil {
				b.Fatal(err)
			}
		}
		return float64(b.Elapsed().Microseconds()) / float64(b.N)
	}
	var own float64
	b.Run("own", func(b *testing.B) { own = list(b) })
	const files = 10_000
	limit := unix.Rlimit{Cur: files + 1000, Max: files + 1000}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		b.Fatal(err)
	}
	for _, path := range []string{"/etc/passwd", "/dev/full"} {
		var fds []int
		for range files {
			fd, err := unix.Open(path, unix.O_RDONLY, 0)
			if err != nil {
				b.Fatal(err)
			}
			fds = append(fds, fd)
		}
		b.Run(strings.ReplaceAll(path[1:], "/", "_"), func(b *testing.B) {
			b.ReportMetric((list(b)-own)/files*1000, "us/1000files")
		})
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}
}

// BenchmarkScan scans the devices: 64 terminals stand in for them.
func BenchmarkScan(b *testing.B) {
	f := newTree(b, "4 drm", "1 misc")
	var n nodes
	var err error
	for b.Loop() {
		if n, err = list(f.dir+"/proc", "/sys"); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(n.named)), "devices")
}

func benchTree(b *testing.B) tree {
	if os.Geteuid() != 0 {
		b.Skip("needs root")
	}
	f := newTree(b, "1 misc")
	f.misc(b, "1:7")
	return f
}
