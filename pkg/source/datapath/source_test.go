// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook/uprobe"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// testSource is a source with what its loop has.
type testSource struct {
	*Source
	loop      *loop
	processes *processes
	searches  *searches
	tracker   *tracker
	prober    *prober
	switcher  *switcher
}

func newTestSource(opts Options, stop context.CancelFunc) *testSource {
	s, l := newSource(opts, stop)
	return &testSource{s, l, l.processes, l.searches, l.tracker, l.prober, l.switcher}
}

// startSource returns a source whose kernel has no InfiniBand: only observeFake reports processes. It uses the
// functions of the FAKE provider, which the locator would not recognize as a provider.
func startSource(
	t testing.TB, limit float64, path string, sites []locate.Site, change ...func(*testSource),
) *testSource {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	s := newFakeSource(t, limit, path, sites, cancel)
	for _, f := range change {
		f(s)
	}
	go s.loop.run(ctx)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// newGate returns a Gate that lives as long as the test.
func newGate(t testing.TB) *uprobe.Gate {
	t.Helper()
	g, err := uprobe.New(uprobe.Options{Logger: zaptest.NewLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// newFakeSource returns a source whose loop does not run.
func newFakeSource(t testing.TB, limit float64, path string, sites []locate.Site, stop context.CancelFunc) *testSource {
	t.Helper()
	k := startKernel(t)
	sysfs := t.TempDir()
	if err := os.MkdirAll(filepath.Join(sysfs, "class/infiniband_verbs/uverbs0"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := newTestSource(Options{Sysfs: sysfs, Procfs: "/proc", Budget: limit, Gate: newGate(t)}, stop)
	s.prober.kernel, s.meter.kernel, s.meter.names.byIndex = k, k, map[uint32]string{3: "fake0"}
	s.searches.find = func(p *locate.Process, qp, _ uint64) (locate.Found, error) {
		var pointer [8]byte
		if err := p.Read(qp, pointer[:]); err != nil {
			return locate.Found{}, err
		}
		id := locate.FileID{Device: 1, Inode: 1}
		found := locate.Found{Context: binary.LittleEndian.Uint64(pointer[:]), Paths: map[locate.FileID]string{id: path}}
		for _, at := range sites {
			at.File = id
			found.Sites = append(found.Sites, at)
		}
		return found, nil
	}
	return s
}

// TestFirstRead: the first Read reports which hooks could be attached. The device is a FAKE, an empty directory.
func TestFirstRead(t *testing.T) {
	if err := supported(); err != nil || os.Geteuid() != 0 {
		t.Skip("no uprobes here, or not root: ", err)
	}
	sysfs := t.TempDir()
	if err := os.MkdirAll(filepath.Join(sysfs, "class/infiniband_verbs/uverbs0"), 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{Sysfs: sysfs, Procfs: "/proc", Gate: newGate(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	snap, _ := s.Read(t.Context())
	for _, h := range snap.Hooks {
		if h.State == model.StateAbsent {
			t.Errorf("hook %s: %s", h.Name, h.Reason)
		}
	}
	if len(snap.Hooks) == 0 {
		t.Error("no hooks")
	}
}

// observeFake reports a fake to the source.
func (s *testSource) observeFake(f *fake) {
	s.loop.events <- event{key: f.key, cgroup: 5, device: 3, qp: f.qp, existed: true}
}

func (s *testSource) snapshot(t testing.TB) model.Snapshot {
	t.Helper()
	snap, err := s.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

func descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// TestSourceLife: processes start and end; their counts remain, and nothing else: the probes stay attached until the
// file changes. FAKE provider.
func TestSourceLife(t *testing.T) {
	path, sites := buildFake(t)
	s := startSource(t, 0, path, sites)
	before := descriptors(t)
	const processes = 3
	for range processes {
		t.Run("", func(t *testing.T) {
			f := startFake(t, path)
			s.observeFake(f)
			eventually(t, "never watched", func() bool { d := s.snapshot(t).DataPath; return d.Processes == 1 && d.Probes == uint64(len(sites)) })
			f.do("chain", 10)
			f.do("recv", 7)
		})
		eventually(t, "entries stay, or no probes", func() bool {
			snap := s.snapshot(t)
			for _, m := range snap.Maps {
				if m.Entries != 0 {
					return false
				}
			}
			return snap.DataPath.Processes == 0 && snap.DataPath.Probes == uint64(len(sites))
		})
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	eventually(t, "probes stay", func() bool { return s.snapshot(t).DataPath.Probes == 0 })
	snap := s.snapshot(t)
	if !math.IsInf(snap.DataPath.LimitRatio, 1) {
		t.Errorf("limit %g, want none", snap.DataPath.LimitRatio)
	}
	i := slices.IndexFunc(snap.Traffic, func(r model.Traffic) bool { return r.Direction == model.Transmit })
	// write 128, send 64 and TSO 1054 in each chain
	want := model.Traffic{
		Cgroup: 5, Device: "fake0", Method: model.MethodUprobe, Direction: model.Transmit, Bytes: processes * 10 * (128 + 64 + 1054),
	}
	if i < 0 || snap.Traffic[i] != want {
		t.Errorf("%+v, want %+v", snap.Traffic, want)
	}
	eventually(t, "descriptors stay", func() bool { return descriptors(t) <= before })
	s.Forget([]model.CgroupID{5})
	s.snapshot(t)
	if snap := s.snapshot(t); len(snap.Traffic)+len(snap.WorkRequests)+len(snap.Budgets)+len(snap.Spent) != 0 {
		t.Errorf("%+v was forgotten", snap)
	}
}

// TestKept: the probes of a file stay attached while the first process of the container that used it exists, and probes of the
// machine's file for the next process.
func TestKept(t *testing.T) {
	path, sites := buildFake(t)
	s := startSource(t, 0, path, sites)
	before := descriptors(t)
	probed := func(processes uint64, probes int) func() bool {
		return func() bool {
			d := s.snapshot(t).DataPath
			return d.Processes == processes && d.Probes == uint64(probes)
		}
	}
	t.Run("container", func(t *testing.T) {
		s.observeFake(startFakeIn(t, path, syscall.CLONE_NEWNS))
		eventually(t, "never probed", probed(1, len(sites)))
	})
	eventually(t, "probes stay after the container", probed(0, 0))
	eventually(t, "descriptors stay", func() bool { return descriptors(t) <= before })
	t.Run("machine", func(t *testing.T) {
		s.observeFake(startFake(t, path))
		eventually(t, "never probed", probed(1, len(sites)))
	})
	time.Sleep(2 * removeInterval)
	eventually(t, "no probes for the next process", probed(0, len(sites)))
}

// TestReused: a context is closed, and another one of another device gets its address. The counts of both are exact, and
// the closed one keeps no entry while the process lives. FAKE provider; the test does what close_context does.
func TestReused(t *testing.T) {
	path, sites := buildFake(t)
	s := startSource(t, 0, path, sites)
	s.meter.mu.Lock()
	s.meter.names.byIndex[4] = "fake1"
	s.meter.mu.Unlock()
	f := startFake(t, path)
	s.observeFake(f)
	eventually(t, "never probed", func() bool { return s.snapshot(t).DataPath.Probes == uint64(len(sites)) })
	contexts := s.prober.kernel.object.Coll.Maps[gen.DatapathMapContexts]
	for turn := range 4 {
		f.do("chain", 10)
		var stat gen.DatapathContextStat
		if err := contexts.Lookup(f.key, &stat); err != nil {
			t.Fatal(err)
		}
		closed := f.key
		closed.Number = stat.Number
		if err := errors.Join(contexts.Put(closed, stat), contexts.Delete(f.key)); err != nil {
			t.Fatal(err)
		}
		s.loop.events <- event{key: f.key, cgroup: 5, device: uint32(3 + (turn+1)%2), qp: f.qp, existed: true}
		eventually(t, "the next context is not known", func() bool { return contexts.Lookup(f.key, &stat) == nil })
	}
	f.do("chain", 10)
	const chain = 128 + 64 + 1054
	want := map[string]uint64{"fake0": 3 * 10 * chain, "fake1": 2 * 10 * chain}
	eventually(t, "wrong counts, or entries stay", func() bool {
		snap := s.snapshot(t)
		got := map[string]uint64{}
		for _, r := range snap.Traffic {
			if r.Direction == model.Transmit {
				got[r.Device] += r.Bytes
			}
		}
		return maps.Equal(got, want) && snap.Maps[0].Entries == 1 && snap.DataPath.Processes == 1
	})
	time.Sleep(2 * removeInterval)
	s.meter.mu.Lock()
	defer s.meter.mu.Unlock()
	if len(s.meter.contexts) != 1 || len(s.meter.fold.contexts) != 1 {
		t.Errorf("%d states and %d counts of one context", len(s.meter.contexts), len(s.meter.fold.contexts))
	}
}

// TestSourceConcurrent: scrapes, processes and Close at the same time.
func TestSourceConcurrent(t *testing.T) {
	path, sites := buildFake(t)
	s := startSource(t, 0.01, path, sites)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 50 {
			s.snapshot(t)
			s.Forget([]model.CgroupID{7})
			time.Sleep(5 * time.Millisecond)
		}
	}()
	for range 2 {
		f := startFake(t, path)
		s.observeFake(f)
		f.do("idle", 1000)
	}
	<-done
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// BenchmarkSurvey measures the throughput of a process that only polls an empty CQ, a call that takes a few ns, in a survey and
// between surveys, relative to the throughput without a sensor. Rounds with and without the sensor alternate.
func BenchmarkSurvey(b *testing.B) {
	path, sites := buildFake(b)
	f := startFake(b, path)
	const length = 2 * time.Second
	rate := func(calls int) float64 {
		var total time.Duration
		n := 0
		for began := time.Now(); time.Since(began) < length; n += calls {
			var ns float64
			if _, err := fmt.Sscan(f.do("idle", calls), &ns); err != nil {
				b.Fatal(err)
			}
			total += time.Duration(ns * float64(calls))
		}
		return float64(n) / total.Seconds()
	}
	with := func(calls int, survey time.Duration, ready func(model.Snapshot) bool) float64 {
		s := startSource(b, 0.01, path, sites, func(s *testSource) { s.switcher.schedule.length = survey })
		defer s.Close() //nolint:errcheck // closed again by the test
		s.observeFake(f)
		eventually(b, "never surveyed", func() bool {
			f.do("idle", 100_000)
			return ready(s.snapshot(b))
		})
		return rate(calls)
	}
	isSurveyed := func(snap model.Snapshot) bool {
		return slices.ContainsFunc(snap.Coverage, func(c model.Coverage) bool { return c.Gap == model.GapSurvey })
	}
	for range b.N {
		without := rate(1_000_000)
		in := with(100_000, time.Minute, isSurveyed)
		between := with(1_000_000, time.Second, func(snap model.Snapshot) bool {
			return isSurveyed(snap) && snap.DataPath.Probes < uint64(len(sites))
		})
		b.ReportMetric(in/without*100, "survey-throughput-%")
		b.ReportMetric(between/rate(1_000_000)*100, "between-throughput-%")
	}
	b.ReportMetric(0, "ns/op")
}

// TestReplugged: an HCA that was removed and added again has another index and the same name. What was counted before
// is still counted.
func TestReplugged(t *testing.T) {
	names := map[uint32]string{3: "rxe0", 4: "rxe1"}
	_, cancel := context.WithCancel(t.Context())
	s := newTestSource(Options{DeviceNames: func(context.Context) (map[uint32]string, error) { return names, nil }}, cancel)
	sent := func() (bytes uint64) {
		for _, r := range s.snapshot(t).Traffic {
			if r.Device == "rxe1" {
				bytes += r.Bytes
			}
		}
		return bytes
	}
	post := func(context uint64, device uint32) {
		stat := gen.DatapathContextStat{Cgroup: 5, Device: device}
		stat.Bytes[gen.DatapathOpcodeOPCODE_RDMA_WRITE] = 1000
		s.meter.fold.add(gen.DatapathContextKey{Context: context, Tgid: 1}, &stat, full)
	}
	s.loop.nameDevices(t.Context())
	post(1, 4)
	if n := sent(); n != 1000 {
		t.Fatalf("%d bytes before", n)
	}
	names = map[uint32]string{3: "rxe0", 5: "rxe1"}
	s.loop.nameDevices(t.Context())
	post(2, 5)
	if n := sent(); n != 2000 {
		t.Errorf("%d bytes after, want 2000", n)
	}
	names = map[uint32]string{3: "rxe0", 5: "mlx5_0"} // renamed
	s.loop.nameDevices(t.Context())
	if n := sent(); n != 2000 {
		t.Errorf("%d bytes under the former name, want 2000", n)
	}
	s.Forget([]model.CgroupID{5})
	s.snapshot(t)
	s.meter.fold.endAll()
	s.Forget([]model.CgroupID{5})
	s.snapshot(t)
	s.loop.nameDevices(t.Context())
	if len(s.meter.names.byIndex) != 2 {
		t.Errorf("names %v", s.meter.names.byIndex)
	}
}
