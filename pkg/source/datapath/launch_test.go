// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"go.uber.org/zap/zaptest"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

// asProvider are flags of gcc with which the locator takes the FAKE for a provider: it then needs a private symbol of
// libibverbs.
var asProvider = []string{"-Wl,--no-as-needed", "-libverbs", "-Wl,-u,verbs_register_driver_34"}

// jobCgroups is the number of cgroups of a job: one may have half of the contexts.
const jobCgroups = 4

// job is a job with processes of the FAKE provider. The test does what the hooks in the kernel do, which this machine
// cannot have without InfiniBand: it inserts contexts and sends events into the ring buffer, by programs.
type job struct {
	*fake
	t      testing.TB
	k      *kernel
	send   *ebpf.Program
	pids   []uint32
	of     []gen.DatapathContextKey // the contexts of each process, without its number
	qps    []uint64
	perPID int
	lost   int // events
}

// startJob starts the processes, each with some contexts.
func startJob(t testing.TB, k *kernel, path string, processes, contexts int) *job {
	t.Helper()
	j := &job{fake: startFake(t, path), t: t, k: k, perPID: contexts}
	words := strings.Fields(j.do("job", processes))
	for ; strings.HasPrefix(words[0], "0x"); words = words[2:] {
		var key gen.DatapathContextKey
		var qp uint64
		if _, err := fmt.Sscanf(words[0]+" "+words[1], "0x%x 0x%x", &key.Context, &qp); err != nil {
			t.Fatal(err)
		}
		j.of, j.qps = append(j.of, key), append(j.qps, qp)
	}
	for _, word := range words {
		var pid uint32
		if _, err := fmt.Sscan(word, &pid); err != nil {
			t.Fatal(err)
		}
		j.pids = append(j.pids, pid)
	}
	if len(j.pids) != processes || contexts > len(j.of) {
		t.Fatalf("%d processes, %d contexts", len(j.pids), len(j.of))
	}
	size := int16(binary.Size(gen.DatapathPathEvent{}))
	var code asm.Instructions
	for at := int16(0); at < size; at += 8 { // the helper does not accept the context
		code = append(code, asm.LoadMem(asm.R0, asm.R1, at, asm.DWord), asm.StoreMem(asm.RFP, at-size, asm.R0, asm.DWord))
	}
	code = append(code,
		asm.LoadMapPtr(asm.R1, k.object.Coll.Maps[gen.DatapathMapPathEvents].FD()),
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -int32(size)),
		asm.Mov.Imm(asm.R3, int32(size)), asm.Mov.Imm(asm.R4, 0),
		asm.FnRingbufOutput.Call(), asm.Return())
	var err error
	j.send, err = ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Syscall, Flags: unix.BPF_F_SLEEPABLE, License: "GPL", Instructions: code,
	})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() { j.send.Close() })
	return j
}

// announce sends an event, as send_event in bpf/lifecycle.h, which counts events_full if the ring buffer is full.
func (j *job) announce(e gen.DatapathPathEvent) {
	j.t.Helper()
	ret, err := j.send.Run(&ebpf.RunOptions{Context: &e})
	if err != nil {
		j.t.Fatal(err)
	}
	if ret != 0 {
		j.lost++
	}
}

// launch opens a context of all processes and makes its queue pair ready, then the next one, within a time.
func (j *job) launch(within time.Duration) {
	j.t.Helper()
	began, n := time.Now(), 0
	for i := range j.perPID {
		for p, pid := range j.pids {
			e := gen.DatapathPathEvent{Key: j.of[i], Cgroup: uint64(100 + p%jobCgroups), Device: uint32(3 + i)}
			e.Key.Tgid = pid
			opened := e
			opened.Key.Context = 0
			j.announce(opened)
			number, err := j.k.insert(event{key: e.Key, cgroup: model.CgroupID(e.Cgroup), device: e.Device}, true)
			if err != nil {
				j.t.Fatal(err)
			}
			e.Key.Number, e.Qp = number, j.qps[i]
			j.announce(e)
			n++
			due := began.Add(within * time.Duration(n) / time.Duration(len(j.pids)*j.perPID))
			if wait := time.Until(due); wait > time.Millisecond {
				time.Sleep(wait)
			}
		}
	}
}

// startJobSource returns a source that reads the events of the ring buffer and has the real locator.
func startJobSource(t testing.TB, limit float64) *testSource {
	t.Helper()
	opts := Options{Sysfs: t.TempDir(), Procfs: "/proc", Budget: limit, MaxContexts: 16384, Logger: zaptest.NewLogger(t), Gate: newGate(t)}
	if err := os.MkdirAll(filepath.Join(opts.Sysfs, "class/infiniband_verbs/uverbs0"), 0o755); err != nil {
		t.Fatal(err)
	}
	k := startKernelWith(t, opts)
	ctx, cancel := context.WithCancel(context.Background())
	s := newTestSource(opts, cancel)
	s.prober.kernel, s.meter.kernel = k, k
	for i := range 10 {
		s.meter.names.byIndex[uint32(3+i)] = fmt.Sprintf("fake%d", i)
	}
	go s.loop.receive(ctx, k)
	go s.loop.run(ctx)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// located returns the number of contexts with functions that were found and are probed.
func (s *testSource) located() (n int) {
	s.meter.mu.Lock()
	defer s.meter.mu.Unlock()
	for _, c := range s.meter.contexts {
		if c.final && c.probed != 0 {
			n++
		}
	}
	return n
}

// sensorCPU returns the CPU time of this process without the calling thread, which is locked.
func sensorCPU(t testing.TB) time.Duration {
	t.Helper()
	var all, own unix.Timespec
	err := errors.Join(unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &all), unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &own))
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(all.Nano() - own.Nano())
}

// TestLaunch: many processes of a job open contexts at once, and end at once, twice. All events arrive, and all
// that is posted once the functions are probed is counted.
func TestLaunch(t *testing.T) {
	path, _ := buildFake(t, asProvider...)
	s := startJobSource(t, 0)
	const processes, contexts = 100, 10
	for turn := range 2 {
		j := startJob(t, s.prober.kernel, path, processes, contexts)
		j.launch(time.Second)
		eventually(t, "not all contexts are located", func() bool { return s.located() == processes*contexts })
		if j.lost > 0 {
			t.Errorf("%d events are lost", j.lost)
		}
		j.do("job-posts", 0)
		if turn == 0 {
			s.snapshot(t) // what is counted afterwards is read when the processes have ended
			j.do("job-posts", 0)
		}
		j.do("job-ends", 0)
		eventually(t, "entries stay", func() bool {
			snap := s.snapshot(t)
			return snap.DataPath.Processes == 0 && snap.Maps[0].Entries == 0
		})
	}
	got := map[string]uint64{}
	snap := s.snapshot(t)
	for _, r := range snap.Traffic {
		if r.Direction == model.Transmit {
			got[r.Device] += r.Bytes
		}
	}
	const chain = 128 + 64 + 1054
	for i := range contexts {
		if device := fmt.Sprintf("fake%d", i); got[device] != 3*processes*chain {
			t.Errorf("%s: %d bytes, want %d", device, got[device], 3*processes*chain)
		}
	}
	s.meter.mu.Lock()
	defer s.meter.mu.Unlock()
	if len(s.meter.contexts)+len(s.meter.fold.contexts)+len(s.meter.fold.processes) != 0 {
		t.Errorf("%d states, %d counts and %d processes stay", len(s.meter.contexts), len(s.meter.fold.contexts), len(s.meter.fold.processes))
	}
}

// TestRemoveProcesses: the entries of processes that have ended are removed from all maps, entries of others stay.
func TestRemoveProcesses(t *testing.T) {
	k := startKernel(t)
	maps := k.object.Coll.Maps
	const processes = 2500 // more than fit into the map of those that have ended
	var ended []uint32
	for tgid := range uint32(processes) {
		tgid++
		err := maps[gen.DatapathMapRingless].Put(gen.DatapathQueueKey{Context: 8, Tgid: tgid}, uint8(1))
		if tgid%100 == 0 {
			key := gen.DatapathContextKey{Context: 8, Tgid: tgid}
			err = errors.Join(err, maps[gen.DatapathMapQueues].Put(gen.DatapathQueueKey{Context: 8, Tgid: tgid}, gen.DatapathQueue{}),
				maps[gen.DatapathMapLatencies].Put(gen.DatapathLatencyKey{Context: key}, gen.DatapathLatency{}),
				maps[gen.DatapathMapUnknownCosts].Put(tgid, gen.DatapathUnknownCost{}))
		}
		if err != nil {
			t.Fatal(err)
		}
		if tgid%1000 != 0 {
			ended = append(ended, tgid)
		}
	}
	if err := k.removeProcesses(ended); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{
		gen.DatapathMapRingless: 2, gen.DatapathMapQueues: 2, gen.DatapathMapLatencies: 2, gen.DatapathMapUnknownCosts: 2,
		gen.DatapathMapEnded: 0,
	} {
		left := 0
		key, value := make([]byte, maps[name].KeySize()), make([]byte, maps[name].ValueSize())
		for it := maps[name].Iterate(); it.Next(&key, &value); {
			left++
		}
		if left != want {
			t.Errorf("%s: %d entries, want %d", name, left, want)
		}
	}
}

// BenchmarkLaunch measures what a job costs the sensor: its launch within two seconds, ten seconds in which it is idle, a
// scrape with durations of each context, and its end.
func BenchmarkLaunch(b *testing.B) {
	path, _ := buildFake(b, asProvider...)
	for _, size := range []struct{ processes, contexts int }{{500, 1}, {5000, 1}, {512, 10}} {
		for _, limit := range []float64{0, 0.01} {
			b.Run(fmt.Sprintf("%dx%d/limit=%g", size.processes, size.contexts, limit), func(b *testing.B) {
				for range b.N {
					measureLaunch(b, path, size.processes, size.contexts, limit)
				}
			})
		}
	}
}

func measureLaunch(b *testing.B, path string, processes, contexts int, limit float64) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s := startJobSource(b, limit)
	j := startJob(b, s.prober.kernel, path, processes, contexts)
	cpu := func(f func()) time.Duration {
		before := sensorCPU(b)
		f()
		return sensorCPU(b) - before
	}
	until := func(done func() bool) {
		for end := time.Now().Add(time.Minute); !done() && time.Now().Before(end); {
			time.Sleep(50 * time.Millisecond)
		}
	}
	launch := cpu(func() {
		j.launch(2 * time.Second)
		until(func() bool { return s.located() == processes*contexts })
	})
	b.ReportMetric(launch.Seconds(), "launch-CPU-s")
	b.ReportMetric(float64(j.lost), "events-lost")
	b.ReportMetric(100*float64(s.located())/float64(processes*contexts), "found-%")
	const idle = 10 * time.Second
	b.ReportMetric(100*cpu(func() { time.Sleep(idle) }).Seconds()/idle.Seconds(), "idle-CPU-%")
	s.addDurations(b)
	const scrapes = 10
	read := cpu(func() {
		done := make(chan struct{})
		go func() { // on another thread, which counts
			defer close(done)
			for range scrapes {
				_, _ = s.Read(b.Context())
			}
		}()
		<-done
	})
	b.ReportMetric(read.Seconds()*1e3/scrapes, "scrape-CPU-ms")
	end := cpu(func() {
		j.do("job-ends", 0)
		until(func() bool {
			s.meter.mu.Lock()
			defer s.meter.mu.Unlock()
			return s.meter.stats.Processes == 0 && len(s.meter.fold.contexts) == 0
		})
	})
	b.ReportMetric(end.Seconds(), "end-CPU-s")
	b.ReportMetric(0, "ns/op")
}

// addDurations adds durations of one class to each context, as its polls would.
func (s *testSource) addDurations(b *testing.B) {
	b.Helper()
	s.meter.mu.Lock()
	defer s.meter.mu.Unlock()
	for key := range s.meter.contexts {
		latency := gen.DatapathLatencyKey{Context: key}
		if err := s.prober.kernel.object.Coll.Maps[gen.DatapathMapLatencies].Put(latency, gen.DatapathLatency{SumNs: 1}); err != nil {
			b.Fatal(err)
		}
	}
}
