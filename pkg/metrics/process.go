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
)

// processMetrics are a few of the names that all Prometheus clients have for
// their own process: those that cost next to nothing. The usual collectors of
// client_golang take 30 system calls and more for theirs, on every scrape.
func processMetrics() []metric {
	p := &process{}
	return []metric{
		p.row("process_cpu_seconds_total", "CPU time, of user and system, that this process has used, in seconds.",
			func() (float64, error) {
				var now unix.Timespec
				err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &now)
				return time.Duration(now.Nano()).Seconds(), err
			}),
		p.row("process_resident_memory_bytes", "Memory of this process that is resident (statm), in bytes.", p.resident),
		p.row("process_start_time_seconds", "When this process started, in seconds since 1970.", p.start),
		p.row("go_goroutines", "Goroutines that exist.", goroutines),
		p.row("go_threads", "Threads of the operating system that exist, those that hang in a system call included.",
			goMetric("/sched/threads/total:threads")),
		p.row("go_memstats_mallocs_total", "Heap objects allocated since the start.",
			goMetric("/gc/heap/allocs:objects", "/gc/heap/tiny/allocs:objects")),
		p.row("go_gc_heap_live_bytes", "Heap that was in use at the last garbage collection.",
			goMetric("/gc/heap/live:bytes")),
	}
}

// process is what is kept of this process between refreshes.
type process struct {
	statm   *os.File
	started float64
}

// row is the row of one figure, absent when it cannot be had.
func (p *process) row(name, help string, read func() (float64, error)) metric {
	m := metric{name: name, typ: gauge, help: help, compat: Process, emit: func(_ *view, b *exposition.Builder) {
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

// start reads when the process was started: field 22 of /proc/self/stat, in
// hundredths of a second since boot.
func (p *process) start() (float64, error) {
	if p.started > 0 {
		return p.started, nil
	}
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0, err
	}
	// The name of the program, in brackets, may have spaces.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 20 {
		return 0, fmt.Errorf("stat: %q", stat)
	}
	ticks, err := strconv.ParseFloat(string(fields[19]), 64)
	if err != nil {
		return 0, err
	}
	var sinceBoot unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &sinceBoot); err != nil {
		return 0, err
	}
	age := time.Duration(sinceBoot.Nano()) - time.Duration(ticks)*10*time.Millisecond
	p.started = float64(time.Now().Add(-age).UnixMilli()) / 1e3
	return p.started, nil
}

// goroutines returns the number of goroutines without those of the runtime, as
// client_golang does. In Go 1.26, /sched/goroutines includes the runtime's: the
// workers of the garbage collector are as many as GOMAXPROCS.
func goroutines() (float64, error) {
	return float64(runtime.NumGoroutine()), nil
}

// goMetric is the sum of figures of the Go runtime.
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
				return 0, fmt.Errorf("%s: not known to this runtime", s.Name)
			}
			sum += float64(s.Value.Uint64())
		}
		return sum, nil
	}
}
