// SPDX-License-Identifier: Apache-2.0

package top

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/client"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/overview"
	"github.com/accelscope/accelscope/pkg/verdict"
)

const viewVerdicts = `{"code":0,"message":"success","data":{"at":"2026-01-01T00:03:00Z","omitted":2,"verdicts":[
{"name":"RDMAPortDown","severity":"critical","subject":{"name":"mlx5_1/1"},"evidence":["state DOWN","it had\u001b[2J"],"since":"2026-01-01T00:00:00Z"},
{"name":"GPUAllocatedIdle","severity":"info","subject":{"name":"ml/a/x on GPU 1"},"evidence":[],"since":"2026-01-01T00:03:00Z"}]}}`

// viewed are the workloads and devices of a sensor.
func viewed(t *testing.T) map[string]string {
	t.Helper()
	hca := func(workload, id string, pairs uint64) overview.Row {
		return overview.Row{
			Owner: identity.Owner{Workload: workload, ContainerID: id}, Kind: overview.HCA, Device: "mlx5_0", QueuePairs: &pairs,
		}
	}
	table := rated(hca("ml/a/x", "c1", 2), hca("ml/b/x", "c2", 9), hca("", "", 1), overview.Row{
		Owner: identity.Owner{Workload: "ml/a/x", ContainerID: "c1"}, Kind: overview.GPU, Device: "GPU-0", Vendor: "nvidia", GPU: "0",
		Processes: new(uint64(1)),
	})
	devices := []overview.Device{
		{Kind: overview.HCA, Device: "mlx5_0", Workloads: new(2), Ports: []overview.Port{{
			Number: 1, State: "ACTIVE", RateBits: 400e9, Transmit: &overview.Rate{PerSecond: 12.5e9}, Receive: &overview.Rate{PerSecond: 7},
			Errors: new(uint64(7)),
		}}},
		{Kind: overview.HCA, Device: "mlx5_1", Workloads: new(0), Ports: []overview.Port{{Number: 1, State: "DOWN", Errors: new(uint64(11))}}},
		{Kind: overview.HCA, Device: "mlx5_2", Ports: []overview.Port{{Number: 1}}},
		{
			Kind: overview.GPU, Device: "GPU-0", Vendor: "nvidia", GPU: "0", Name: "NVIDIA H100", Problems: []string{}, Utilization: new(0.75),
			Memory: new(1073741824.0), MemoryTotal: new(85899345920.0), Temperature: new(71.0), Workloads: new(1),
		},
		{Kind: overview.GPU, Device: "GPU-1", Vendor: "nvidia", GPU: "1", Problems: []string{"xid", "lost"}},
		{Kind: overview.GPU, Device: "GPU-2", Vendor: "nvidia", GPU: "2"},
	}
	return map[string]string{
		api.WorkloadsPath: enveloped(t, table, "success"), api.DevicesPath: enveloped(t, devices, "success"),
		api.VerdictsPath: viewVerdicts,
	}
}

const verdictLinesText = `critical  RDMAPortDown      mlx5_1/1         state DOWN; it had\x1b[2J  (for 3m0s)
info      GPUAllocatedIdle  ml/a/x on GPU 1
… 2 more: /api/v1/verdicts

`

// TestViews: verdicts are above each view; rows are sorted by figures, rows without the figure last, and filtered by names.
func TestViews(t *testing.T) {
	url := serve(t, viewed(t))
	want := verdictLinesText + `DEVICE   STATE     BUSY   MEMORY        OF  CELSIUS  WORKLOADS  MODEL
nvidia0  healthy    75%  1.0 GiB  80.0 GiB       71          1   H100
nvidia1  lost,xid     -        -         -        -          -      -
nvidia2  unknown      -        -         -        -          -      -

DEVICE    STATE    BUSY        RATE      TX/S  RX/S  ERRORS  WORKLOADS
mlx5_1/1  down        -           -         -     -      11          0
mlx5_0/1  active    25%  400 Gbit/s  11.6 GiB   7 B       7          2
mlx5_2/1  unknown     -           -         -     -       -          -
`
	if d := cmp.Diff(want, once(t, Options{URL: url, Devices: true, Sort: "errors"})); d != "" {
		t.Errorf("devices (-want +got):\n%s", d)
	}
	want = verdictLinesText + `WORKLOAD  DEVICE   PROCESSES  MEMORY  BUSIEST  ALLOCATED  MODEL
ml/a/x    nvidia0          1       -        -          -   H100

WORKLOAD  DEVICE  QP  CQ  MR  REGISTERED  TX/S  RX/S  VERBS/S  ERRORS  P99  MISSING
ml/b/x    mlx5_0   9   -   -           -     -     -        -       -    -        -
ml/a/x    mlx5_0   2   -   -           -     -     -        -       -    -        -
`
	if d := cmp.Diff(want, once(t, Options{URL: url, Sort: "qp", Filter: "ML/"})); d != "" {
		t.Errorf("workloads (-want +got):\n%s", d)
	}
}

// TestJSON: all views are in one object.
func TestJSON(t *testing.T) {
	text := once(t, Options{URL: serve(t, viewed(t)), JSON: true})
	var got struct {
		At                 time.Time
		Rates              float64 `json:"rates_seconds"`
		Incomplete         []string
		Verdicts           api.VerdictList
		Workloads, Devices []map[string]any
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil || strings.Count(text, "\n") != 1 {
		t.Fatalf("%v: %s", err, text)
	}
	if got.At.IsZero() || len(got.Verdicts.Verdicts) != 2 || got.Verdicts.Verdicts[0].Name != "RDMAPortDown" || got.Verdicts.Omitted != 2 {
		t.Errorf("%+v", got.Verdicts)
	}
	if got.Rates != 6 || got.Incomplete == nil {
		t.Errorf("rates over %v s, incomplete %v", got.Rates, got.Incomplete)
	}
	workload := map[string]any{
		"kind": "hca", "workload": "ml/a/x", "container_id": "c1", "device": "mlx5_0", "qp": 2.0, "cq": nil, "mr": nil, "registered": nil,
		"tx": nil, "rx": nil, "verbs": nil, "errors": nil, "p99": nil, "missing": nil,
	}
	if d := cmp.Diff(workload, got.Workloads[1]); d != "" || len(got.Workloads) != 4 {
		t.Errorf("%d workloads: %s", len(got.Workloads), d)
	}
	gpu := map[string]any{
		"kind": "gpu", "device": "nvidia0", "state": "healthy", "busy": 0.75, "memory": 1073741824.0, "total": 85899345920.0, "celsius": 71.0,
		"workloads": 1.0, "model": "H100",
	}
	if d := cmp.Diff(gpu, got.Devices[0]); d != "" || len(got.Devices) != 6 {
		t.Errorf("%d devices: %s", len(got.Devices), d)
	}
}

// TestOlderSensor: a figure that an older sensor does not know is not zero.
func TestOlderSensor(t *testing.T) {
	answers := viewed(t)
	added := regexp.MustCompile(
		`"(temperature_celsius|workloads|errors|transmit|receive|stalled_queue_pairs|rates_\w+)":("[^"]*"|\{[^}]*\}|[^,}]*),?`)
	for path, text := range answers {
		answers[path] = strings.ReplaceAll(added.ReplaceAllString(text, ""), ",}", "}")
	}
	sensor, err := client.New(serve(t, answers))
	if err != nil {
		t.Fatal(err)
	}
	defer sensor.Close()
	r, err := read(t.Context(), sensor)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := (&Options{Devices: true, Filter: "0"}).show(newScreen(&out, true, false, ""), r); err != nil {
		t.Fatal(err)
	}
	want := verdictLinesText[:len(verdictLinesText)-1] + noRates + `

DEVICE   STATE    BUSY   MEMORY        OF  CELSIUS  WORKLOADS  MODEL
nvidia0  healthy   75%  1.0 GiB  80.0 GiB        -          -   H100

DEVICE    STATE   BUSY        RATE  TX/S  RX/S  ERRORS  WORKLOADS
mlx5_0/1  active     -  400 Gbit/s     -     -       -          -
`
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// TestReasons: what a sensor does not know has its reason, once.
func TestReasons(t *testing.T) {
	const sick = "nvidia is failed: a reason"
	partial := map[string]string{
		api.WorkloadsPath: enveloped(t, rated(rows()[:1]...), "partial: "+sick),
		api.DevicesPath:   enveloped(t, []overview.Device{}, "partial: "+sick+"\x1b"),
		api.VerdictsPath:  `503 {"code":503,"data":null,"message":"nothing was judged"}`,
	}
	nothing := map[string]string{
		api.WorkloadsPath: `503 {"code":503,"data":null,"message":"not read: rdma is switched off"}`,
		api.DevicesPath:   `503 {"code":503,"data":null,"message":"not read: rdma is switched off"}`,
		api.VerdictsPath:  okVerdicts,
	}
	none := map[string]string{
		api.WorkloadsPath: enveloped(t, rated(), "success"), api.DevicesPath: enveloped(t, []overview.Device{}, "success"),
		api.VerdictsPath: okVerdicts,
	}
	for want, answers := range map[string]map[string]string{
		"incomplete: " + sick + "\nincomplete: " + sick + "?\nincomplete: nothing was judged\n\nWORKLOAD": partial,
		"incomplete: not read: rdma is switched off\n":                                                    nothing,
		"no workload uses an HCA or a GPU\n":                                                              none,
	} {
		if got := once(t, Options{URL: serve(t, answers)}); !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestColors: a terminal shows verdicts and headings in colors, and cuts lines before it colors them.
func TestColors(t *testing.T) {
	var out bytes.Buffer
	s := &screen{out: &out, size: func() (int, int) { return 10, 20 }, title: "title", color: true}
	critical := []line{{"critical RDMAPortDown", colors[verdict.Critical]}}
	if err := s.draw(critical, grid{[]string{"A", "B"}, [][]string{{"a", "b"}}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\x1b[1;31mcritical …\x1b[0m\n", "\x1b[1mA  B\x1b[0m\na  b"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in %q", want, out.String())
		}
	}
	out.Reset()
	s.color = false
	if err := s.draw([]line{{"critical", colors[verdict.Critical]}}); err != nil || strings.Contains(out.String(), "\x1b[1;31m") {
		t.Errorf("%v: colors: %q", err, out.String())
	}
}

// TestManyVerdicts: the first verdicts are shown, and the number of the others.
func TestManyVerdicts(t *testing.T) {
	lines := verdictLines(&api.VerdictList{Verdicts: make([]api.Verdict, maxVerdicts+2), Omitted: 3}, "elsewhere")
	if last := lines[len(lines)-1]; len(lines) != maxVerdicts+1 || last.text != "… 5 more: elsewhere" {
		t.Errorf("%d lines, the last %q", len(lines), last.text)
	}
}
