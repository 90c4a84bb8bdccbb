// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	runtimemetrics "runtime/metrics"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/procfile"
)

var processNotes = []string{
	"`go_gc_gomemlimit_bytes` is three quarters of the cgroup's limit, unless GOMEMLIMIT is set.",
}

// processMetrics returns the inexpensive process metrics of Prometheus clients. client_golang's collectors need more
// than 30 system calls per scrape.
func processMetrics() []metric {
	p := &process{}
	return []metric{
		p.row("process_cpu_seconds_total", "CPU time of the sensor.",
			func() (float64, error) {
				var now unix.Timespec
				err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &now)
				return time.Duration(now.Nano()).Seconds(), err
			}),
		p.row("process_resident_memory_bytes", "Resident memory of the sensor.", p.resident),
		p.row("process_start_time_seconds", "Unix time of the sensor's start.", p.start),
		p.row("go_goroutines", "Goroutines of the sensor.", goroutines),
		p.row("go_threads", "Operating system threads of the sensor.",
			goMetric("/sched/threads/total:threads")),
		p.row("go_memstats_mallocs_total", "Heap objects allocated.",
			goMetric("/gc/heap/allocs:objects", "/gc/heap/tiny/allocs:objects")),
		p.row("go_gc_heap_live_bytes", "Heap memory in use at the last garbage collection.",
			goMetric("/gc/heap/live:bytes")),
		p.row("go_gc_gomemlimit_bytes", "Memory limit of the garbage collector.",
			goMetric("/gc/gomemlimit:bytes")),
	}
}

type process struct {
	statm   *os.File
	started float64
}

// row returns the row of one value. If read fails, the series is absent.
func (p *process) row(name, help string, read func() (float64, error)) metric {
	m := metric{name: name, typ: gauge, help: help, emit: func(_ *view, b *exposition.Builder) {
		if v, err := read(); err == nil {
			b.Value(v)
		}
	}}
	if strings.HasSuffix(name, "_total") {
		m.typ = counter
	}
	return m
}

// resident reads the second field of /proc/self/statm, in pages.
func (p *process) resident() (float64, error) {
	if p.statm == nil {
		f, err := os.Open("/proc/self/statm")
		if err != nil {
			return 0, err
		}
		p.statm = f
	}
	var buf [128]byte
	n, err := unix.Pread(int(p.statm.Fd()), buf[:], 0)
	if err != nil {
		return 0, err
	}
	fields := bytes.Fields(buf[:n])
	if len(fields) < 2 {
		return 0, fmt.Errorf("statm: %q", buf[:n])
	}
	pages, err := strconv.ParseFloat(string(fields[1]), 64)
	return pages * float64(os.Getpagesize()), err
}

// start returns the start time of the process in seconds since 1970.
func (p *process) start() (float64, error) {
	if p.started > 0 {
		return p.started, nil
	}
	stat, err := procfile.ReadStat("/proc/self")
	if err != nil {
		return 0, err
	}
	var sinceBoot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &sinceBoot); err != nil {
		return 0, err
	}
	p.started = float64(time.Now().Add(stat.Start-time.Duration(sinceBoot.Nano())).UnixMilli()) / 1e3
	return p.started, nil
}

// goroutines returns the number of goroutines without the runtime's, as client_golang does. /sched/goroutines includes
// the runtime's goroutines in Go 1.26, such as GOMAXPROCS workers of the garbage collector.
func goroutines() (float64, error) {
	return float64(runtime.NumGoroutine()), nil
}

func goMetric(names ...string) func() (float64, error) {
	samples := make([]runtimemetrics.Sample, len(names))
	for i, name := range names {
		samples[i].Name = name
	}
	return func() (float64, error) {
		runtimemetrics.Read(samples)
		sum := 0.0
		for _, s := range samples {
			if s.Value.Kind() != runtimemetrics.KindUint64 {
				return 0, fmt.Errorf("%s: not supported by this Go runtime", s.Name)
			}
			sum += float64(s.Value.Uint64())
		}
		return sum, nil
	}
}
