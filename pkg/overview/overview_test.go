// SPDX-License-Identifier: Apache-2.0

package overview_test

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/overview"
	"github.com/accelscope/accelscope/tests/fakes/fakenode"
)

var start = time.Date(2026, 11, 25, 10, 0, 0, 0, time.UTC)

// TestRates compares rates with the bytes of a fake node whose workloads move 3 GB/s on average.
func TestRates(t *testing.T) {
	n := fakenode.New([]fakenode.Workload{{Namespace: "a", Pod: "b", Container: "c", HCAs: []int{2}, Rate: 3e9}})
	k := n.Refresh(start)
	if table := n.Recorder.Table(k.At, &k.Facts, &k.Shares); table.RatesSeconds != nil || table.Rows[0].Transmit != nil {
		t.Error("rates after one refresh")
	}
	k = n.Refresh(start.Add(2 * time.Second)) // too early for a rate
	k = n.Refresh(start.Add(400 * time.Second))
	table := n.Recorder.Table(k.At, &k.Facts, &k.Shares)
	if *table.RatesSeconds != 400 || !table.RatesUntil.Equal(start.Add(400*time.Second)) {
		t.Errorf("the rates are of %v s until %v", *table.RatesSeconds, table.RatesUntil)
	}
	found := false
	for _, r := range table.Rows {
		if r.Workload != "a/b/c" {
			continue
		}
		found = true
		if math.Abs(r.Transmit.PerSecond-3e9) > 1e6 || math.Abs(r.Receive.PerSecond-2.91e9) > 2e8 || r.QueuePairs == nil || *r.QueuePairs != 8 {
			t.Errorf("%+v %+v", r.Transmit, r.Receive)
		}
		if r.VerbsP99 == nil || r.CompletionP99 == nil || *r.Verbs <= 0 {
			t.Errorf("%+v", r)
		}
	}
	if !found {
		t.Error("no row of the workload")
	}
	for _, d := range table.Devices {
		if d.Device == "mlx5_2" && math.Abs(d.Transmit.PerSecond-1.02*3e9) > 1e6 {
			t.Errorf("the port sends %v", d.Transmit.PerSecond)
		}
	}
}

// TestEstimate: a rate is an estimate while bytes that a survey splits grow.
func TestEstimate(t *testing.T) {
	r := overview.NewRecorder(false)
	var rows []overview.Row
	for i, bytes := range [][2]uint64{{100, 1000}, {200, 1000}, {200, 7000}} {
		a := &attribution.Attribution{Owners: []identity.Owner{{}, {Workload: "w"}}, Traffic: []attribution.TrafficShare{
			{Owner: 1, Device: "mlx5_0", Method: model.MethodUprobe, Direction: model.Transmit, Bytes: bytes[0]},
			{Owner: 1, Device: "mlx5_0", Method: model.MethodSurvey, Direction: model.Transmit, Bytes: bytes[1]},
		}}
		at := start.Add(time.Duration(i) * 100 * time.Second)
		r.Observe(at, &model.Snapshot{}, a)
		rows = append(rows, r.Table(at, &model.Snapshot{}, a).Rows...)
	}
	if len(rows) != 3 || rows[0].Transmit != nil || *rows[1].Transmit != (overview.Rate{PerSecond: 1}) ||
		*rows[2].Transmit != (overview.Rate{PerSecond: 60, Estimate: true}) {
		t.Errorf("%+v", rows)
	}
	if rows[2].Verbs != nil {
		t.Errorf("%v verbs per second without a probe", *rows[2].Verbs)
	}
}

// TestForgotten: a row that was missing for more than a minute has no rate when it is back.
func TestForgotten(t *testing.T) {
	for missing, want := range map[time.Duration]bool{time.Minute: true, time.Minute + time.Second: false} {
		r, none := overview.NewRecorder(false), &attribution.Attribution{Owners: []identity.Owner{{}}}
		a := &attribution.Attribution{Owners: []identity.Owner{{}, {Workload: "w"}}, Traffic: []attribution.TrafficShare{
			{Owner: 1, Device: "mlx5_0", Method: model.MethodUprobe, Direction: model.Transmit, Bytes: 100},
		}}
		r.Observe(start, &model.Snapshot{}, a)
		r.Observe(start.Add(missing), &model.Snapshot{}, none)
		back := start.Add(missing + 10*time.Second)
		r.Observe(back, &model.Snapshot{}, a)
		if rows := r.Table(back, &model.Snapshot{}, a).Rows; len(rows) != 1 || (rows[0].Transmit != nil) != want {
			t.Errorf("missing for %v: %+v", missing, rows)
		}
	}
}

// TestQuantile compares with histogram_quantile: 98 of 100 calls take up to 1 µs, 2 up to 4 µs.
func TestQuantile(t *testing.T) {
	var h model.Histogram
	h.Buckets[0], h.Buckets[2] = 98, 2
	q := overview.VerbsQuantile(&h)
	unit := math.Exp2(model.HistogramMinExp)
	if want := 2*unit + (4-2)*unit*(99-98)/2; math.Abs(q.Seconds-want) > 1e-12 || q.Above {
		t.Errorf("%v, want %v", q.Seconds, want)
	}
	h = model.Histogram{}
	h.Buckets[model.HistogramBuckets-1] = 1
	if q = overview.VerbsQuantile(&h); !q.Above || q.Seconds != math.Exp2(model.HistogramMaxExp) {
		t.Errorf("%+v", q)
	}
	if overview.VerbsQuantile(&model.Histogram{}) != nil || overview.CompletionQuantile(&model.FineHistogram{}) != nil {
		t.Error("a percentile of nothing")
	}
}

// TestHistory refreshes at irregular times and compares the steps with values.
func TestHistory(t *testing.T) {
	n := fakenode.New([]fakenode.Workload{{Namespace: "a", Pod: "b", Container: "c", HCAs: []int{0}, GPUs: []int{1}, Rate: 1e9, Busy: .5}})
	seconds := []int{0, 10, 20, 60, 905, 1000}
	for _, s := range seconds {
		n.Refresh(start.Add(time.Duration(s) * time.Second))
	}
	h := n.Recorder.History(nil)
	if want := start.Add(990*time.Second - (overview.Steps-1)*overview.Step); !h.Begin.Equal(want) || h.StepSeconds != 15 {
		t.Errorf("begins %v, want %v", h.Begin, want)
	}
	checked := 0
	for _, s := range h.Series {
		var at []int
		for i, v := range s.Values {
			if v != nil {
				at = append(at, int(h.Begin.Sub(start).Seconds())+15*i)
			}
		}
		switch {
		case s.Whole && s.Device == "mlx5_0", s.Workload == "a/b/c" && s.Kind == overview.HCA:
			checked++
			if fmt.Sprint(at) != "[900 990]" { // the ring has dropped 60 s
				t.Errorf("%s %s has values at %v", s.Device, s.Figure, at)
			}
		case s.Workload == "a/b/c" && s.Figure == overview.Utilization:
			checked++
			if v := *s.Values[len(s.Values)-1]; math.Abs(v-.48) > .01 {
				t.Errorf("utilization %v", v)
			}
		}
	}
	if checked != 5 {
		t.Errorf("%d series", checked)
	}
	if quiet := overview.NewRecorder(false); quiet.Enabled() || len(quiet.History(nil).Series) > 0 {
		t.Error("a history that is switched off")
	}
}

// TestMemory fills the recorder with more workloads than it has room for, each with its own name and calls in all
// buckets.
func TestMemory(t *testing.T) {
	const most = 2_000_000
	refresh := func(round int) (*model.Snapshot, *attribution.Attribution) {
		s := &model.Snapshot{HCAs: []model.HCA{{Name: "mlx5_0"}}}
		a := &attribution.Attribution{Owners: make([]identity.Owner, 1, 4001)}
		for i := range 4000 {
			name := strings.Repeat("n", 40) + fmt.Sprint("/pod/", i)
			a.Owners = append(a.Owners, identity.Owner{Workload: name, ContainerID: fmt.Sprintf("%064x", i)})
			var verbs model.Histogram
			var done model.FineHistogram
			for b := range verbs.Buckets {
				verbs.Buckets[b] = uint64(round + 1)
			}
			for b := range done.Buckets {
				done.Buckets[b] = uint64(round + 1)
			}
			a.Verbs = append(a.Verbs, attribution.Share[model.VerbKey, model.Histogram]{Owner: i + 1, Key: model.VerbKey{Device: "mlx5_0", Verb: "v"}, Value: verbs})
			a.Completions = append(a.Completions, attribution.Share[model.CompletionKey, model.FineHistogram]{
				Owner: i + 1, Key: model.CompletionKey{Device: "mlx5_0", Opcode: "write"}, Value: done,
			})
			for _, d := range []model.Direction{model.Transmit, model.Receive} {
				for _, m := range []model.Method{model.MethodUprobe, model.MethodSurvey} {
					a.Traffic = append(a.Traffic, attribution.TrafficShare{Owner: i + 1, Device: "mlx5_0", Method: m, Direction: d, Bytes: uint64(round)})
				}
			}
		}
		return s, a
	}
	before := heap()
	r := overview.NewRecorder(true)
	for round := range 3 {
		s, a := refresh(round)
		r.Observe(start.Add(time.Duration(round)*15*time.Second), s, a)
	}
	used := heap() - before
	t.Logf("%d kB", used/1000)
	if used > most {
		t.Errorf("the recorder has %d bytes, more than %d", used, most)
	}
	h := r.History(nil)
	if h.LeftOut < 2900 || len(h.Series) == 0 {
		t.Errorf("%d left out, %d series", h.LeftOut, len(h.Series))
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

func TestDevices(t *testing.T) {
	n := fakenode.New([]fakenode.Workload{{Namespace: "a", Pod: "b", Container: "c", HCAs: []int{1}, GPUs: []int{2}, Rate: 2e9, Busy: 1}})
	n.Down[7] = true
	k := n.Refresh(start)
	if devices := n.Recorder.Devices(&k.Facts, &k.Shares); devices[1].Ports[0].Transmit != nil || devices[1].Ports[0].Errors != nil {
		t.Errorf("rates after one refresh, or errors without counters: %+v", devices[1].Ports[0])
	}
	k = n.Refresh(start.Add(400 * time.Second))
	k.Facts.HCAs[1].Ports[0].Counters = append(k.Facts.HCAs[1].Ports[0].Counters,
		model.Counter{Name: "symbol_error", Value: 3}, model.Counter{Name: "port_xmit_wait", Value: 90})
	k.Facts.HCAs[1].Ports[0].HWCounters = []model.Counter{{Name: "rx_roce_discards", Value: 4}}
	devices := n.Recorder.Devices(&k.Facts, &k.Shares)
	if len(devices) != 2*fakenode.Devices {
		t.Fatalf("%d devices", len(devices))
	}
	for i, d := range devices {
		want := overview.HCA
		if i >= fakenode.Devices {
			want = overview.GPU
		}
		if d.Kind != want || (d.Memory != nil) != (want == overview.GPU) {
			t.Errorf("%s: %+v", d.Device, d)
		}
	}
	port, gpu := &devices[1].Ports[0], &devices[fakenode.Devices+2]
	if math.Abs(port.Transmit.PerSecond-1.02*2e9) > 1e6 || port.Receive == nil || *port.Errors != 7 || *devices[1].Workloads != 1 {
		t.Errorf("%+v, %d workloads", port, *devices[1].Workloads)
	}
	if *gpu.Temperature < 64 || *gpu.Workloads != 1 || *devices[fakenode.Devices].Workloads != 0 || *devices[0].Workloads != 0 {
		t.Errorf("%+v", gpu)
	}
	k.Facts.Objects, k.Facts.Holdings = nil, []model.Holding{{Device: devices[1].Device}}
	if d := n.Recorder.Devices(&k.Facts, &k.Shares); d[0].Workloads != nil || d[1].Workloads == nil || *d[1].Workloads != 1 {
		t.Errorf("an HCA whose objects may not be listed: %v, another: %v", d[0].Workloads, d[1].Workloads)
	}
	k.Facts.Holdings = nil
	k.Shares.GPUFigures[2].Listed = false
	devices = n.Recorder.Devices(&k.Facts, &k.Shares)
	if devices[1].Workloads != nil || devices[fakenode.Devices+2].Workloads != nil {
		t.Error("unknown users are counted")
	}
	if devices[7].Rate() != 0 || devices[0].Rate() != 50e9 || devices[8].GPU != "0" {
		t.Errorf("%v %v", devices[7].Rate(), devices[0].Rate())
	}
}

// TestUnattributed: a row has the limit of missed bytes: null without a limit, 0 if no bytes were missed.
func TestUnattributed(t *testing.T) {
	a := &attribution.Attribution{
		Owners: []identity.Owner{{}, {Workload: "missed"}, {Workload: "unlimited"}, {Workload: "complete"}, {Workload: "without coverage"}},
		Coverage: []attribution.CoverageShare{
			{Owner: 1, Device: "d", Gap: model.GapUnattributed}, {Owner: 2, Device: "d", Gap: model.GapOff}, {Owner: 3, Device: "d"},
		},
		Missed: []attribution.MissedShare{
			{Owner: 3, Device: "e", Bytes: 8},
			{Owner: 1, Device: "d", Bytes: 7},
			{Owner: 2, Device: "d", Bytes: 9, Unlimited: true},
			{Owner: 4, Device: "d", Bytes: 5},
		},
		Traffic: []attribution.TrafficShare{{Owner: 4, Device: "d", Method: model.MethodPort, Direction: model.Transmit}},
	}
	got := map[string]string{}
	for _, r := range overview.Rows(&model.Snapshot{}, a) {
		got[r.Workload+" "+r.Device] = "none"
		if r.Unattributed != nil {
			got[r.Workload+" "+r.Device] = fmt.Sprint(*r.Unattributed)
		}
	}
	want := map[string]string{"missed d": "7", "unlimited d": "none", "complete d": "0", "without coverage d": "none"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestStalled: a row has its stalled queue pairs: null if they are not traced, or if none is seen and some are not traced.
func TestStalled(t *testing.T) {
	a := &attribution.Attribution{
		Owners: []identity.Owner{{}, {Workload: "none"}, {Workload: "two"}, {Workload: "blind"}, {Workload: "not traced"}},
		Outstanding: []attribution.OutstandingShare{
			{Owner: 1, Device: "d"},
			{Owner: 2, Device: "d", Stalled: 2, Gaps: []model.Gap{model.GapLate}},
			{Owner: 3, Device: "d", Gaps: []model.Gap{model.GapLate}},
		},
		Objects: []attribution.ObjectShare{{Owner: 3, Device: "d", Type: model.QP}, {Owner: 4, Device: "d", Type: model.QP}},
	}
	got := map[string]string{}
	for _, r := range overview.Rows(&model.Snapshot{}, a) {
		got[r.Workload] = "null"
		if r.Stalled != nil {
			got[r.Workload] = fmt.Sprint(*r.Stalled)
		}
	}
	if want := map[string]string{"none": "0", "two": "2", "blind": "null", "not traced": "null"}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%v, want %v", got, want)
	}
}
