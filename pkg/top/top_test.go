// SPDX-License-Identifier: Apache-2.0

package top

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/format"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/overview"
	"github.com/accelscope/accelscope/tests/fakes/fakenode"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rows are the rows of three owners of an HCA: one with all figures, one whose bytes are not counted, and the unattributed share.
func rows() []overview.Row {
	device := overview.Row{Kind: overview.HCA, Device: "mlx5_0"}
	a, b, unattributed := device, device, device
	a.Owner = identity.Owner{Workload: "ml/train-0/worker", ContainerID: "c1"}
	a.QueuePairs, a.CompletionQueues, a.MemoryRegions = new(uint64(4)), new(uint64(2)), new(uint64(3))
	a.Registered = map[model.Memory]uint64{model.HostMemory: 1 << 20, model.GPUMemory: 1 << 19}
	a.Transmit, a.Receive = &overview.Rate{PerSecond: 100}, &overview.Rate{PerSecond: 100, Estimate: true}
	a.Verbs, a.Errors, a.Gaps = new(100.0), new(uint64(7)), []model.Gap{}
	a.VerbsP99 = &overview.Quantile{Seconds: 0.000967}
	b.Owner = identity.Owner{Workload: "docker:b", ContainerID: "c2"}
	b.QueuePairs, b.Gaps, b.VerbsP99 = new(uint64(1)), []model.Gap{"devx", model.GapLate}, &overview.Quantile{Seconds: 4, Above: true}
	b.Transmit = &overview.Rate{}
	unattributed.QueuePairs = new(uint64(1))
	return []overview.Row{unattributed, a, b}
}

// rated is a table with rates of 6 s.
func rated(rows ...overview.Row) overview.Table {
	return overview.Table{RatesSeconds: new(6.0), RatesUntil: new(time.Unix(6, 0).UTC()), Rows: rows}
}

// serve answers requests of a sensor: of a path with its text, after the status that the text may begin with. Other paths are not
// found.
func serve(t *testing.T, answers map[string]string) (url string) {
	t.Helper()
	sensor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := answers[r.URL.String()]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if rest, refused := strings.CutPrefix(text, "503 "); refused {
			w.WriteHeader(http.StatusServiceUnavailable)
			text = rest
		}
		fmt.Fprint(w, text)
	}))
	t.Cleanup(sensor.Close)
	return sensor.URL
}

// enveloped returns an answer of the REST API.
func enveloped(t *testing.T, data any, message string) string {
	t.Helper()
	body, err := json.Marshal(map[string]any{"code": 0, "data": data, "message": message})
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// once runs top once.
func once(t *testing.T, o Options) string {
	t.Helper()
	var out bytes.Buffer
	o.Interval, o.Once, o.Out = time.Millisecond, true, &out
	if err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

const okVerdicts = `{"code":0,"message":"success","data":{"at":"2026-01-01T00:03:00Z","omitted":0,"verdicts":[]}}`

// TestUncounted: a workload without traffic has no rate while its bytes are not counted, and one again afterwards.
func TestUncounted(t *testing.T) {
	zero := &overview.Rate{}
	for reason, want := range map[model.Gap]string{"": "0 B", model.GapUnattributed: "0 B", model.GapOff: format.Unmeasured} {
		var gaps []model.Gap
		if reason != "" {
			gaps = []model.Gap{reason}
		}
		if got := bytesOf(zero, gaps); got.text != want {
			t.Errorf("%q: %q, want %q", reason, got.text, want)
		}
		if got := bytesOf(&overview.Rate{PerSecond: 2}, gaps); got.text != "2 B" {
			t.Errorf("%q: %q, want 2 B", reason, got.text)
		}
	}
}

func TestTable(t *testing.T) {
	g := uses(&reading{workloads: rated(rows()...)})[1].grid()
	want := `WORKLOAD           DEVICE  QP  CQ  MR  REGISTERED   TX/S    RX/S  VERBS/S  ERRORS    P99    MISSING
docker:b           mlx5_0   1   -   -           -      ?       ?        -       -    >4s  devx,late
ml/train-0/worker  mlx5_0   4   2   3     1.5 MiB  100 B  ~100 B      100       7  967µs          -
(no owner)         mlx5_0   1   -   -           -      -       -        -       -      -          -`
	if diff := cmp.Diff(want, strings.Join(table(g.header, g.rows, 0), "\n")); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	narrow := table(g.header, g.rows, 70)
	for _, line := range narrow {
		if n := len([]rune(line)); n > 70 {
			t.Errorf("%d columns in %q", n, line)
		}
	}
	if !strings.Contains(narrow[2], "…  mlx5_0   4") {
		t.Errorf("the workload was not truncated: %q", narrow[2])
	}
}

// TestRates: without rates top shows why. Once it waits for them, and not for the mean of an hour.
func TestRates(t *testing.T) {
	var answers atomic.Int32
	tables := []overview.Table{{Rows: rows()[:1]}, rated(rows()...), rated(rows()...)}
	*tables[1].RatesSeconds = 3600
	sensor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == api.WorkloadsPath {
			fmt.Fprint(w, enveloped(t, tables[min(answers.Add(1), 3)-1], "success"))
		} else {
			http.NotFound(w, r)
		}
	}))
	defer sensor.Close()
	if got := once(t, Options{URL: sensor.URL}); answers.Load() != 3 || !strings.Contains(got, "~100 B") || strings.Contains(got, "no rates") {
		t.Errorf("%d answers:\n%s", answers.Load(), got)
	}
	answers.Store(0)
	ctx, cancel := context.WithCancel(t.Context())
	out := &stopAfter{tables: 1, stop: cancel}
	if err := Run(ctx, Options{URL: sensor.URL, Interval: time.Millisecond, Out: out}); err != nil {
		t.Fatal(err)
	}
	if got := out.text.String(); !strings.Contains(got, "no rates: ") || !strings.Contains(got, "(no owner)") {
		t.Errorf("without rates:\n%s", got)
	}
}

func TestRun(t *testing.T) {
	var scrapes atomic.Int32
	sensor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "u" || password != "secret" {
			http.Error(w, "not authorized", http.StatusUnauthorized)
			return
		}
		if r.URL.Path != api.WorkloadsPath {
			http.NotFound(w, r)
			return
		}
		if scrapes.Add(1) == 2 {
			http.Error(w, "gone", http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, enveloped(t, rated(rows()...), "success"))
	}))
	defer sensor.Close()
	u := strings.Replace(sensor.URL, "http://", "http://u:secret@", 1) + "/metrics"

	t.Run("once", func(t *testing.T) {
		out := once(t, Options{URL: u})
		if got := strings.Count(out, "WORKLOAD"); got != 1 || scrapes.Load() != 1 {
			t.Errorf("%d tables of %d scrapes, want 1:\n%s", got, scrapes.Load(), out)
		}
		if strings.Contains(out, "\x1b") {
			t.Errorf("escape sequences where there is no terminal: %q", out)
		}
	})
	t.Run("once with an error", func(t *testing.T) {
		err := Run(t.Context(), Options{URL: sensor.URL, Interval: time.Second, Once: true, Out: new(bytes.Buffer)})
		if err == nil || !strings.Contains(err.Error(), "401") {
			t.Errorf("error = %v, want one that says 401", err)
		}
	})
	t.Run("an error is reported and retried", func(t *testing.T) {
		scrapes.Store(0)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		out := &stopAfter{tables: 2, stop: cancel}
		if err := Run(ctx, Options{URL: u, Interval: 10 * time.Millisecond, Out: out}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(out.text.String(), "500 Internal Server Error"); got != 1 {
			t.Errorf("the error is reported %d times, want once:\n%s", got, out.text.String())
		}
		if strings.Contains(out.text.String(), "secret") {
			t.Errorf("the password is shown:\n%s", out.text.String())
		}
	})
	t.Run("bad options", func(t *testing.T) {
		for _, o := range []Options{
			{URL: "127.0.0.1:9847", Interval: time.Second},
			{URL: "file:///etc/passwd", Interval: time.Second},
			{URL: "http://[", Interval: time.Second},
			{URL: "http://a", Interval: 0},
			{URL: "http://a", Interval: time.Second, Sort: "celsius"},
			{URL: "http://a", Interval: time.Second, Sort: "qp", Devices: true},
		} {
			if err := Run(t.Context(), o); err == nil {
				t.Errorf("Run(%+v) accepts it", o)
			}
		}
	})
	t.Run("another program", func(t *testing.T) {
		for _, text := range []string{"<html>", "{}", `{"data":null,"message":"success"}`, `[1]`} {
			other := serve(t, map[string]string{api.WorkloadsPath: text})
			if err := Run(t.Context(), Options{URL: other, Interval: time.Second, Once: true, Out: new(bytes.Buffer)}); err == nil {
				t.Errorf("%s is taken for workloads", text)
			}
		}
	})
}

// stopAfter ends the test after a number of tables.
type stopAfter struct {
	text   strings.Builder
	tables int
	stop   func()
}

func (s *stopAfter) Write(p []byte) (int, error) {
	s.text.Write(p)
	if strings.Count(s.text.String(), "WORKLOAD") >= s.tables {
		s.stop()
	}
	return len(p), nil
}

func TestRedraw(t *testing.T) {
	var out bytes.Buffer
	s := &screen{out: &out, size: func() (int, int) { return 80, 5 }, title: "title"}
	for range 2 {
		out.Reset()
		if err := (&Options{}).show(s, &reading{workloads: rated(rows()...)}); err != nil {
			t.Fatal(err)
		}
	}
	text := out.String()
	if !strings.HasPrefix(text, "\x1b[Htitle  rates over 6s\x1b[K\n") || !strings.HasSuffix(text, "\x1b[J") {
		t.Errorf("not a redraw: %q", text)
	}
	if n := strings.Count(text, "\n"); n > 4 {
		t.Errorf("%d lines on a terminal of 5 would scroll", n)
	}
	if !strings.Contains(text, "… 3 more") {
		t.Errorf("truncated lines are not reported: %q", text)
	}
}

// TestGPUs: workloads on GPUs and on HCAs are two tables.
func TestGPUs(t *testing.T) {
	gpu := func(workload, vendor, number, uuid string) overview.Row {
		return overview.Row{Owner: identity.Owner{Workload: workload}, Kind: overview.GPU, Device: uuid, Vendor: vendor, GPU: number}
	}
	amd, nvidia, given, rest := gpu("docker:a", "amd", "0", "aa"), gpu("docker:a", "nvidia", "2", "GPU-0"),
		gpu("docker:b", "nvidia", "10", "GPU-9"), gpu("", "nvidia", "2", "GPU-0")
	amd.Processes, nvidia.Processes, rest.Processes = new(uint64(1)), new(uint64(2)), new(uint64(0))
	nvidia.Memory, rest.Memory, nvidia.Utilization, nvidia.Engine = new(1073741824.0), new(0.0), new(0.75), "sm"
	given.Allocated = true
	r := &reading{workloads: rated(amd, nvidia, rest, given), devices: []overview.Device{
		{Kind: overview.GPU, Device: "GPU-0", Name: "NVIDIA H100"}, {Kind: overview.GPU, Device: "aa"},
	}}
	const gpus = `WORKLOAD    DEVICE    PROCESSES   MEMORY  BUSIEST  ALLOCATED  MODEL
docker:a    amd0              1        -        -          -      -
docker:a    nvidia2           2  1.0 GiB   sm 75%          -   H100
docker:b    nvidia10          -        -        -        yes      -
(no owner)  nvidia2           0      0 B        -          -   H100
`
	const hcas = `
WORKLOAD    DEVICE  QP  CQ  MR  REGISTERED  TX/S  RX/S  VERBS/S  ERRORS  P99  MISSING
(no owner)  mlx5_0   1   -   -           -     -     -        -       -    -        -
`
	var out bytes.Buffer
	for want, more := range map[string][]overview.Row{gpus: nil, gpus + hcas: rows()[:1]} {
		out.Reset()
		both := *r
		both.workloads.Rows = append(more, r.workloads.Rows...)
		if err := (&Options{}).show(newScreen(&out, true, false, ""), &both); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestBusiest(t *testing.T) {
	for want, row := range map[string]overview.Row{
		"":        {},
		"0%":      {Engine: "decoder", Utilization: new(0.0)}, // the first of several that do nothing
		"sm 25%":  {Engine: "sm", Utilization: new(0.25)},
		"sm 0.1%": {Engine: "sm", Utilization: new(0.001)},
	} {
		if got := busiest(&row); got.text != want {
			t.Errorf("%+v: %q, want %q", row, got.text, want)
		}
	}
}

// TestNode: top reads the real API of a fake node.
func TestNode(t *testing.T) {
	n := fakenode.New([]fakenode.Workload{{Namespace: "a", Pod: "b", Container: "c", HCAs: []int{2}, GPUs: []int{2}, Rate: 3e9, Busy: 1}})
	begin := time.Date(2026, 11, 25, 10, 0, 0, 0, time.UTC)
	n.Refresh(begin)
	k := n.Refresh(begin.Add(30 * time.Second))
	mux := http.NewServeMux()
	for path, handler := range api.Handlers(func() api.Known { return k }, n.Peers, api.NewSlots()) {
		mux.Handle(path, handler)
	}
	sensor := httptest.NewServer(mux)
	defer sensor.Close()
	for option, want := range map[string][]string{
		"workloads": {"a/b/c       nvidia2", "a/b/c       mlx5_2", "H100 80GB HBM3", " GiB  "},
		"devices":   {"nvidia2  healthy", "nvidia5  thermal_slowdown", "mlx5_2/1  active", "400 Gbit/s", "       65  "},
	} {
		got := once(t, Options{URL: sensor.URL, Devices: option == "devices"})
		for _, text := range want {
			if !strings.Contains(got, text) {
				t.Errorf("%s: %q is missing in\n%s", option, text, got)
			}
		}
	}
}
