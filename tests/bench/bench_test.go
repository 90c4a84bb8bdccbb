// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/xml"
	"math"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/tests/tools/child"
)

func TestSamples(t *testing.T) {
	const text = `# HELP a what } it 1 is
# TYPE a counter
a{x="1",y="a } b 7"} 3
b 4e+11

c{x="2"} 5 1700000000000
d{x="1"} 6 # {trace_id="q"} 1
`
	got := map[string]float64{}
	samples([]byte(text), func(series string, v float64) { got[series] = v })
	want := map[string]float64{`a{x="1",y="a } b 7"}`: 3, "b": 4e11, `c{x="2"}`: 5, `d{x="1"}`: 6}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("samples:\n%s", diff)
	}
}

func TestQuantile(t *testing.T) {
	tests := []struct {
		values []float64
		q      float64
		want   float64
	}{
		{[]float64{3, 1, 2}, 0.5, 2},
		{[]float64{4, 1, 3, 2}, 0.5, 2.5},
		{[]float64{4, 1, 3, 2}, 0, 1},
		{[]float64{4, 1, 3, 2}, 0.99, 4},
		{[]float64{4, 1, 3, 2}, 0.75, 3},
		{nil, 0.5, math.NaN()},
	}
	for _, tt := range tests {
		if got := quantile(tt.values, tt.q); got != tt.want && (!math.IsNaN(tt.want) || !math.IsNaN(got)) {
			t.Errorf("quantile(%v, %v) = %v, want %v", tt.values, tt.q, got, tt.want)
		}
	}
}

func TestCPUTime(t *testing.T) {
	before, err := cpuTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	var ru0, ru1 syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &ru0)
	for begin := time.Now(); time.Since(begin) < 50*time.Millisecond; {
	}
	after, _ := cpuTime(os.Getpid())
	syscall.Getrusage(syscall.RUSAGE_SELF, &ru1)
	got := after - before
	want := time.Duration(ru1.Utime.Nano() + ru1.Stime.Nano() - ru0.Utime.Nano() - ru0.Stime.Nano())
	if (got - want).Abs() > 10*time.Millisecond {
		t.Errorf("%v of CPU, getrusage says %v", got, want)
	}
}

func TestSyscallMeter(t *testing.T) {
	m, err := newSyscallMeter(os.Getpid())
	if err != nil {
		t.Skip(err)
	}
	defer m.close()
	filtered, err := newSyscallMeter(os.Getpid(), syscall.SYS_GETPPID)
	if err != nil {
		t.Fatal(err)
	}
	defer filtered.close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := m.count()
	if err != nil {
		t.Fatal(err)
	}
	const calls = 200_000 // so many that the Go runtime's calls hardly matter, even on a busy machine
	for range calls {
		syscall.RawSyscall(syscall.SYS_GETPPID, 0, 0, 0)
	}
	after, err := m.count()
	if err != nil {
		t.Fatal(err)
	}
	// Some calls come from the Go runtime and from reading the meter.
	if n := after - before; n < calls || n > calls+calls/10 {
		t.Errorf("%d system calls counted, want %d", n, calls)
	}
	if n, err := filtered.count(); err != nil || n == 0 || n > calls/10 {
		t.Errorf("%d system calls counted without %d excluded ones: %v", n, calls, err)
	}
}

// TestTotalTime: a child's time counts while it runs, and after its end.
func TestTotalTime(t *testing.T) {
	before, err := totalTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	cmd := child.Command(t.Context(), "sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; echo; read end")
	end, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	worked, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := worked.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	running, err := totalTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if m, err := readMemory(os.Getpid()); err != nil || m.childRSS <= 0 || m.rss <= m.childRSS {
		t.Errorf("memory %+v: %v", m, err)
	}
	_ = end.Close()
	_ = cmd.Wait()
	ended, err := totalTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const ticks = 20 * time.Millisecond
	if used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(); used < ticks || running-before < used-ticks || ended-before < used-ticks {
		t.Errorf("a child used %v: %v while it ran, %v after that", used, running-before, ended-before)
	}
}

// TestPlot: a drawing has all loads, and a proportional load is a straight line from the origin.
func TestPlot(t *testing.T) {
	points := []int{1, 10, 100}
	curves := []curve{{"one", points, []load{{1, 2, 2}, {10, 20, 20}, {100, 200, 200}}}, {"two", points, []load{{}, {}, {1, 1, 1}}}}
	text := plot("things", curves)
	var drawing struct {
		Circles []struct {
			X float64 `xml:"cx,attr"`
			Y float64 `xml:"cy,attr"`
		} `xml:"circle"`
	}
	if err := xml.Unmarshal([]byte(text), &drawing); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if len(drawing.Circles) != 2*6 {
		t.Fatalf("%d loads, want 12", len(drawing.Circles))
	}
	at := drawing.Circles[:3]
	first, second := (at[1].Y-at[0].Y)/(at[1].X-at[0].X), (at[2].Y-at[1].Y)/(at[2].X-at[1].X)
	if math.Abs(first-second) > 0.01 || second >= 0 {
		t.Errorf("the line of a load in proportion has the slopes %v and %v", first, second)
	}
	if cpu, private := curves[0].slope(); cpu != 1000 || private != 2000 {
		t.Errorf("one more costs %v us and %v kB, want 1000 and 2000", cpu, private)
	}
	for _, tt := range []struct{ last, want float64 }{{200, 1}, {110, 0.5}, {380, 2}, {2.1, math.NaN()}} {
		c := curve{"", points, []load{{CPU: 2}, {CPU: 20}, {CPU: tt.last}}}
		if got := c.bend(func(l load) float64 { return l.CPU }); math.Abs(got-tt.want) > 0.001 && !(math.IsNaN(got) && math.IsNaN(tt.want)) {
			t.Errorf("the upper part of a curve to %v grows %v times as fast, want %v", tt.last, got, tt.want)
		}
	}
	for highest, want := range map[float64]float64{0: 1, 4: 1, 10: 2, 33: 10, 0.9: 0.2, 1000: 200} {
		if got := step(highest); math.Abs(got-want) > 1e-9 {
			t.Errorf("values up to %v are %v apart, want %v", highest, got, want)
		}
	}
}
