// SPDX-License-Identifier: Apache-2.0

package top

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const viewMetrics = `accelscope_build_info 1
# TYPE infiniband_port_state gauge
infiniband_port_state{device="mlx5_0",port="1",state="active"} 1
infiniband_port_state{device="mlx5_0",port="1",state="down"} 0
infiniband_port_state{device="mlx5_1",port="1",state="active"} 0
infiniband_port_state{device="mlx5_1",port="1",state="down"} 1
# TYPE infiniband_port_info gauge
infiniband_port_info{device="mlx5_1",port="1"} 1
infiniband_port_info{device="mlx5_2",port="1"} 1
# TYPE infiniband_port_rate_bytes_per_second gauge
infiniband_port_rate_bytes_per_second{device="mlx5_0",port="1"} 2.5e10
# TYPE rdma_port_bond_rate_bytes_per_second gauge
rdma_port_bond_rate_bytes_per_second{device="mlx5_0",port="1"} 5e10
# TYPE rdma_port_transmit_bytes_total counter
rdma_port_transmit_bytes_total{device="mlx5_0",port="1"} %d
# TYPE rdma_port_receive_bytes_total counter
rdma_port_receive_bytes_total{device="mlx5_0",port="1"} 7
# TYPE infiniband_port_errors_total counter
infiniband_port_errors_total{device="mlx5_0",port="1",type="symbol"} 3
infiniband_port_errors_total{device="mlx5_0",port="1",type="receive"} 4
# TYPE rdma_port_receive_discards_total counter
rdma_port_receive_discards_total{device="mlx5_1",port="1"} 5
# TYPE rdma_port_receive_errors_total counter
rdma_port_receive_errors_total{device="mlx5_1",port="1"} 6
# TYPE container_rdma_resources gauge
container_rdma_resources{workload="ml/a/x",container_id="c1",device="mlx5_0",type="qp"} 2
container_rdma_resources{workload="ml/b/x",container_id="c2",device="mlx5_0",type="qp"} 9
container_rdma_resources{workload="",device="mlx5_0",type="qp"} 1
# TYPE gpu_info gauge
gpu_info{gpu_id="0",uuid="GPU-0",vendor="nvidia",name="NVIDIA H100"} 1
gpu_info{gpu_id="1",uuid="GPU-1",vendor="nvidia"} 1
# TYPE gpu_health gauge
gpu_health{gpu_id="0",uuid="GPU-0"} 1
gpu_health{gpu_id="1",uuid="GPU-1"} 0
# TYPE gpu_problem gauge
gpu_problem{gpu_id="1",uuid="GPU-1",problem="xid"} 1
gpu_problem{gpu_id="1",uuid="GPU-1",problem="lost"} 1
# TYPE gpu_utilization gauge
gpu_utilization{gpu_id="0",uuid="GPU-0"} 75
# TYPE gpu_memory_used_bytes gauge
gpu_memory_used_bytes{gpu_id="0",uuid="GPU-0"} 1073741824
# TYPE gpu_memory_total_bytes gauge
gpu_memory_total_bytes{gpu_id="0",uuid="GPU-0"} 85899345920
# TYPE gpu_temperature_celsius gauge
gpu_temperature_celsius{gpu_id="0",uuid="GPU-0",sensor="gpu"} 60
gpu_temperature_celsius{gpu_id="0",uuid="GPU-0",sensor="memory"} 71
# TYPE container_gpu_processes gauge
container_gpu_processes{workload="ml/a/x",container_id="c1",gpu_id="0",uuid="GPU-0"} 1
`

const viewVerdicts = `{"code":0,"message":"success","data":{"at":"2026-01-01T00:03:00Z","omitted":2,"verdicts":[
{"name":"RDMAPortDown","severity":"critical","subject":{"name":"mlx5_1/1"},"evidence":["state DOWN","it had\u001b[2J"],"since":"2026-01-01T00:00:00Z"},
{"name":"GPUAllocatedIdle","severity":"info","subject":{"name":"ml/a/x on GPU 1"},"evidence":[],"since":"2026-01-01T00:03:00Z"}]}}`

// viewed runs top once with a sensor that answers with these.
func viewed(t *testing.T, o Options) string {
	t.Helper()
	n := 0
	sensor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/metrics":
			fmt.Fprintf(w, viewMetrics, n)
			n += 1 << 40
		case "/api/v1/verdicts":
			fmt.Fprint(w, viewVerdicts)
		}
	}))
	defer sensor.Close()
	var out bytes.Buffer
	o.URL, o.Interval, o.Once, o.Out = sensor.URL+"/metrics", time.Millisecond, true, &out
	if err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

const verdictLines = `critical  RDMAPortDown      mlx5_1/1         state DOWN; it had\x1b[2J  (for 3m0s)
info      GPUAllocatedIdle  ml/a/x on GPU 1
… 2 more: /api/v1/verdicts

`

// TestViews: verdicts are above each view; rows are sorted by figures, those without one last, and filtered by names.
func TestViews(t *testing.T) {
	got := viewed(t, Options{Devices: true, Sort: "celsius"})
	var firsts []string
	for line := range strings.Lines(strings.TrimPrefix(got, verdictLines)) {
		firsts = append(firsts, strings.Fields(line)[0])
	}
	if d := cmp.Diff([]string{"DEVICE", "nvidia0", "mlx5_0/1", "mlx5_1/1", "mlx5_2/1", "nvidia1"}, firsts); d != "" {
		t.Errorf("devices: %s\n%s", d, got)
	}
	for _, want := range []string{
		"nvidia1   lost,xid", "400 Gbit/s", "  75%", "1.0 GiB  80.0 GiB       71", "mlx5_1/1  down", "mlx5_2/1  unknown",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in\n%s", want, got)
		}
	}
	got = viewed(t, Options{Sort: "qp", Filter: "ML/"})
	want := verdictLines + `WORKLOAD  DEVICE   QP  CQ  MR  REGISTERED  TX/S  RX/S  VERBS/S  ERRORS  P99  MISSING  PROCESSES  MEMORY  BUSIEST  ALLOCATED  MODEL
ml/b/x    mlx5_0    9   -   -           -     -     -        -       -    -        -          -       -        -          -      -
ml/a/x    mlx5_0    2   -   -           -     -     -        -       -    -        -          -       -        -          -      -
ml/a/x    nvidia0   -   -   -           -     -     -        -       -    -        -          1       -        -          -   H100
`
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("workloads (-want +got):\n%s", d)
	}
}

// TestJSON: all views are in one object.
func TestJSON(t *testing.T) {
	text := viewed(t, Options{JSON: true})
	var got struct {
		At                 time.Time
		Verdicts           verdicts
		Workloads, Devices []map[string]any
	}
	if err := json.Unmarshal([]byte(text), &got); err != nil || strings.Count(text, "\n") != 1 {
		t.Fatalf("%v: %s", err, text)
	}
	if got.At.IsZero() || len(got.Verdicts.Verdicts) != 2 || got.Verdicts.Verdicts[0].Name != "RDMAPortDown" || got.Verdicts.Omitted != 2 {
		t.Errorf("%+v", got.Verdicts)
	}
	workload := map[string]any{
		"kind": "hca", "workload": "ml/a/x", "container_id": "c1", "device": "mlx5_0", "qp": 2.0, "cq": nil, "mr": nil, "registered": nil,
		"tx": nil, "rx": nil, "verbs": nil, "errors": nil, "p99": nil, "missing": nil,
	}
	if d := cmp.Diff(workload, got.Workloads[0]); d != "" || len(got.Workloads) != 4 {
		t.Errorf("%d workloads: %s", len(got.Workloads), d)
	}
	gpu := map[string]any{
		"kind": "gpu", "device": "nvidia0", "state": "healthy", "busy": 0.75, "memory": 1073741824.0, "total": 85899345920.0, "celsius": 71.0,
		"workloads": 1.0, "model": "H100",
	}
	if d := cmp.Diff(gpu, got.Devices[3]); d != "" || len(got.Devices) != 5 {
		t.Errorf("%d devices: %s", len(got.Devices), d)
	}
}

// TestColors: a terminal shows verdicts and headings in colors, and cuts lines before it colors them.
func TestColors(t *testing.T) {
	var out bytes.Buffer
	s := &screen{out: &out, size: func() (int, int) { return 10, 20 }, title: "title", color: true}
	if err := s.draw([]line{{"critical RDMAPortDown", colors["critical"]}}, grid{[]string{"A", "B"}, [][]string{{"a", "b"}}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\x1b[1;31mcritical …\x1b[0m\n", "\x1b[1mA  B\x1b[0m\na  b"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in %q", want, out.String())
		}
	}
	out.Reset()
	s.color = false
	if err := s.draw([]line{{"critical", colors["critical"]}}); err != nil || strings.Contains(out.String(), "\x1b[1;31m") {
		t.Errorf("%v: colors: %q", err, out.String())
	}
}
