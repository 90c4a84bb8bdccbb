// SPDX-License-Identifier: Apache-2.0

package gpudriver

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
)

// BenchmarkPrograms measures the time in the programs of one ioctl, without the kernel's kprobe and kretprobe.
func BenchmarkPrograms(b *testing.B) {
	p := newPrograms(b, Options{StuckAfter: time.Hour})
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		b.Skip(err)
	}
	defer stats.Close() //nolint:errcheck // the benchmark has ended
	file := p.file("amdgpu")
	for b.Loop() {
		p.enter(file, kfdWait)
		p.leave()
	}
	for _, name := range []string{gen.GPUDriverProgKprobeIoctl, gen.GPUDriverProgKretprobeIoctl} {
		s, err := p.sensor.object.Program(name).Stats()
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(s.Runtime.Nanoseconds())/float64(s.RunCount), "ns/"+name)
	}
}
