// SPDX-License-Identifier: Apache-2.0

package top

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/accelscope/accelscope/pkg/format"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// exposition returns a sensor's answer: a is called calls times, slow of them slower than 1
// ms, b holds objects and calls nothing.
func exposition(calls, slow int) string {
	const a = `workload="ml/train-0/worker",namespace="ml",pod="train-0",container="worker",container_id="c1",device="mlx5_0"`
	const b = `workload="docker:b",container_id="c2",device="mlx5_0"`
	const unattributed = `workload="",namespace="",pod="",container="",container_id="",device="mlx5_0"`
	var s strings.Builder
	fmt.Fprintf(&s, `# TYPE accelscope_build_info gauge
accelscope_build_info{version="v1"} 1
# TYPE container_rdma_resources gauge
container_rdma_resources{%[1]s,type="qp"} 4
container_rdma_resources{%[1]s,type="cq"} 2
container_rdma_resources{%[1]s,type="mr"} 3
container_rdma_resources{%[2]s,type="qp"} 1
container_rdma_resources{%[3]s,type="qp"} 1
# TYPE container_rdma_registered_bytes gauge
container_rdma_registered_bytes{%[1]s,memory="host"} 1048576
container_rdma_registered_bytes{%[1]s,memory="gpu"} 524288
# TYPE container_rdma_verbs_errors_total counter
container_rdma_verbs_errors_total{%[1]s,verb="reg_mr",errno="ENOMEM"} 7
container_rdma_verbs_errors_total{%[1]s,verb="query_gid",errno="ENODATA"} 4088
# TYPE container_rdma_verbs_total counter
container_rdma_verbs_total{%[1]s,verb="reg_mr"} %[4]d
container_rdma_verbs_total{%[1]s,verb="create_qp"} 5
# TYPE container_rdma_verbs_duration_seconds histogram
container_rdma_verbs_duration_seconds_bucket{%[1]s,verb="reg_mr",le="0.0009765625"} %[5]d
container_rdma_verbs_duration_seconds_bucket{%[1]s,verb="reg_mr",le="0.001953125"} %[4]d
container_rdma_verbs_duration_seconds_bucket{%[1]s,verb="reg_mr",le="+Inf"} %[4]d
container_rdma_verbs_duration_seconds_sum{%[1]s,verb="reg_mr"} 1
container_rdma_verbs_duration_seconds_count{%[1]s,verb="reg_mr"} %[4]d
# TYPE container_rdma_transmit_bytes_total counter
container_rdma_transmit_bytes_total{%[1]s,method="port"} 5
container_rdma_transmit_bytes_total{%[1]s,method="uprobe"} %[4]d
container_rdma_transmit_bytes_total{%[2]s,method="uprobe"} 3
# TYPE container_rdma_receive_bytes_total counter
container_rdma_receive_bytes_total{%[1]s,method="uprobe"} 8
container_rdma_receive_bytes_total{%[1]s,method="survey"} %[4]d
# TYPE container_rdma_datapath_coverage gauge
container_rdma_datapath_coverage{%[1]s,reason="complete"} 1
container_rdma_datapath_coverage{%[2]s,reason="devx"} 0
container_rdma_datapath_coverage{%[2]s,reason="late"} 0
`, a, b, unattributed, calls, calls-slow)
	return s.String()
}

var (
	posInf = math.Inf(1)
	nan    = math.NaN()
)

func mustParse(t *testing.T, text string, at int) *sample {
	t.Helper()
	s, err := parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	s.at = time.Unix(int64(at), 0)
	return s
}

// TestUncounted: a workload without traffic has no rate while its bytes are not counted, and one again afterwards.
func TestUncounted(t *testing.T) {
	for reasons, want := range map[string]string{"": format.None, "unattributed": format.None, "off": format.Unmeasured, "late,unattributed": format.Unmeasured} {
		s := &sample{gaps: map[key][]string{{}: nil}}
		if reasons != "" {
			s.gaps[key{}] = strings.Split(reasons, ",")
		}
		if got := s.bytes(nil, key{}); got.text != want {
			t.Errorf("%q: %q, want %q", reasons, got.text, want)
		}
	}
}

func TestRows(t *testing.T) {
	b := func(tx string) []string {
		return []string{"docker:b", "mlx5_0", "1", "-", "-", "-", tx, "?", "-", "-", "-", "devx,late"}
	}
	unattributed := []string{"(no owner)", "mlx5_0", "1", "-", "-", "-", "-", "-", "-", "-", "-", "-"}
	a := func(tx, rx, rate, p99 string) []string {
		return []string{"ml/train-0/worker", "mlx5_0", "4", "2", "3", "1.5 MiB", tx, rx, rate, "7", p99, "-"}
	}
	tests := map[string]struct {
		last, now string
		want      [][]string
	}{
		"one scrape has no rates": {
			now:  exposition(100, 0),
			want: [][]string{b("?"), a("-", "-", "-", "-"), unattributed},
		},
		"growth over two seconds": {
			last: exposition(100, 0), now: exposition(300, 0),
			// All 200 are below 2^-10 s: 99 % of that.
			want: [][]string{b("?"), a("100 B", "~100 B", "100", "967µs"), unattributed},
		},
		"latency of the interval only": {
			last: exposition(100, 0), now: exposition(300, 200),
			// All 200 between 2^-10 and 2^-9 s; earlier calls are fast.
			want: [][]string{b("?"), a("100 B", "~100 B", "100", "1.94ms"), unattributed},
		},
		"no call": {
			last: exposition(100, 0), now: exposition(100, 0),
			want: [][]string{b("?"), a("0 B", "0 B", "0.0", "-"), unattributed},
		},
		"the sensor restarted": {
			last: exposition(100000, 0), now: exposition(50, 0),
			want: [][]string{b("?"), a("25 B", "~25 B", "25.0", "967µs"), unattributed},
		},
		"a workload appears": {
			last: "accelscope_build_info 1\n", now: exposition(45, 0),
			want: [][]string{b("2 B"), a("25 B", "~26 B", "25.0", "967µs"), unattributed},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var last *sample
			if tt.last != "" {
				last = mustParse(t, tt.last, 100)
			}
			if diff := cmp.Diff(tt.want, uses(last, mustParse(t, tt.now, 102)).grid().rows); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}
		})
	}
}

func TestQuantile(t *testing.T) {
	inf := func(n float64) histogram { return histogram{1: 10, 2: 20, posInf: n} }
	tests := map[string]struct {
		h      histogram
		q      float64
		want   float64
		above  bool
		absent bool
	}{
		"empty":            {h: nil, q: 0.99, absent: true},
		"no call":          {h: histogram{1: 0, posInf: 0}, q: 0.99, absent: true},
		"not a number":     {h: histogram{1: nan, posInf: nan}, q: 0.99, absent: true},
		"middle of first":  {h: inf(20), q: 0.25, want: 0.5},
		"on a bound":       {h: inf(20), q: 0.5, want: 1},
		"middle of second": {h: inf(20), q: 0.75, want: 1.5},
		"above the last":   {h: inf(40), q: 0.99, want: 2, above: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, above, ok := tt.h.quantile(tt.q)
			if got != tt.want || above != tt.above || ok == tt.absent {
				t.Errorf("quantile = %v, %v, %v, want %v, %v, %v", got, above, ok, tt.want, tt.above, !tt.absent)
			}
		})
	}
}

func TestTable(t *testing.T) {
	s := mustParse(t, exposition(300, 0), 102)
	g := uses(mustParse(t, exposition(100, 0), 100), s).grid()
	want := `WORKLOAD           DEVICE  QP  CQ  MR  REGISTERED   TX/S    RX/S  VERBS/S  ERRORS    P99    MISSING
docker:b           mlx5_0   1   -   -           -      ?       ?        -       -      -  devx,late
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

func TestParseErrors(t *testing.T) {
	if _, err := parse(strings.NewReader("node_cpu_seconds_total 1\n")); !errors.Is(err, errNoSensor) {
		t.Errorf("another exporter: %v, want %v", err, errNoSensor)
	}
	if _, err := parse(strings.NewReader("<html>")); err == nil {
		t.Error("a web page is taken for metrics")
	}
}

func TestRun(t *testing.T) {
	var scrapes atomic.Int32
	sensor := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, password, _ := r.BasicAuth(); user != "u" || password != "secret" {
			http.Error(w, "not authorized", http.StatusUnauthorized)
			return
		}
		if strings.HasPrefix(r.URL.Path, "/api/") {
			http.NotFound(w, r)
			return
		}
		n := scrapes.Add(1)
		if n == 2 {
			http.Error(w, "gone", http.StatusInternalServerError)
			return
		}
		fmt.Fprint(w, exposition(int(n)*100, 0))
	}))
	defer sensor.Close()
	u := strings.Replace(sensor.URL, "http://", "http://u:secret@", 1)

	t.Run("once", func(t *testing.T) {
		scrapes.Store(2)
		var out bytes.Buffer
		if err := Run(t.Context(), Options{URL: u, Interval: 10 * time.Millisecond, Once: true, Out: &out}); err != nil {
			t.Fatal(err)
		}
		if n := scrapes.Load() - 2; n != 2 {
			t.Errorf("%d scrapes, want 2", n)
		}
		if got := strings.Count(out.String(), "WORKLOAD"); got != 1 {
			t.Errorf("%d tables, want 1:\n%s", got, &out)
		}
		if strings.Contains(out.String(), "\x1b") {
			t.Errorf("escape sequences where there is no terminal: %q", &out)
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
	g := uses(nil, mustParse(t, exposition(1, 0), 1)).grid()
	for range 2 {
		out.Reset()
		if err := s.draw(nil, g); err != nil {
			t.Fatal(err)
		}
	}
	text := out.String()
	if !strings.HasPrefix(text, "\x1b[Htitle") || !strings.HasSuffix(text, "\x1b[J") {
		t.Errorf("not a redraw: %q", text)
	}
	if n := strings.Count(text, "\n"); n > 4 {
		t.Errorf("%d lines on a terminal of 5 would scroll", n)
	}
	if !strings.Contains(text, "… 3 more") {
		t.Errorf("truncated lines are not reported: %q", text)
	}
}

// TestGPUs checks the table of GPUs, with and without HCAs.
func TestGPUs(t *testing.T) {
	const exposition = `accelscope_build_info 1
# TYPE gpu_info gauge
gpu_info{gpu_id="0",uuid="GPU-0",vendor="nvidia",name="NVIDIA H100"} 1
gpu_info{gpu_id="0",uuid="aa",vendor="amd"} 1
# TYPE container_gpu_processes gauge
container_gpu_processes{workload="docker:a",gpu_id="0",uuid="GPU-0"} 2
container_gpu_processes{workload="docker:a",gpu_id="0",uuid="aa"} 1
container_gpu_processes{workload="",gpu_id="0",uuid="GPU-0"} 0
# TYPE container_gpu_memory_used_bytes gauge
container_gpu_memory_used_bytes{workload="docker:a",gpu_id="0",uuid="GPU-0"} 1073741824
container_gpu_memory_used_bytes{workload="",gpu_id="0",uuid="GPU-0"} 0
# TYPE container_gpu_utilization_ratio gauge
container_gpu_utilization_ratio{workload="docker:a",gpu_id="0",uuid="GPU-0",engine="memory"} 0.125
container_gpu_utilization_ratio{workload="docker:a",gpu_id="0",uuid="GPU-0",engine="sm"} 0.75
# TYPE container_gpu_allocated gauge
container_gpu_allocated{workload="docker:b",gpu_id="1",uuid="GPU-9"} 1
`
	s := mustParse(t, exposition, 1)
	var out bytes.Buffer
	if err := newScreen(&out, true, false, "").draw(nil, uses(nil, s).grid()); err != nil {
		t.Fatal(err)
	}
	want := `WORKLOAD    DEVICE   PROCESSES   MEMORY  BUSIEST  ALLOCATED  MODEL
docker:a    amd0             1        -        -          -      -
docker:a    nvidia0          2  1.0 GiB   sm 75%          -   H100
docker:b                     -        -        -        yes      -
(no owner)  nvidia0          0      0 B        -          -   H100
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	out.Reset()
	both := mustParse(t, exposition+`# TYPE container_rdma_resources gauge
container_rdma_resources{workload="docker:a",device="mlx5_0",type="qp"} 4
`, 1)
	if err := newScreen(&out, true, false, "").draw(nil, uses(nil, both).grid()); err != nil {
		t.Fatal(err)
	}
	want = `WORKLOAD    DEVICE   QP  CQ  MR  REGISTERED  TX/S  RX/S  VERBS/S  ERRORS  P99  MISSING  PROCESSES   MEMORY  BUSIEST  ALLOCATED  MODEL
docker:a    amd0      -   -   -           -     -     -        -       -    -        -          1        -        -          -      -
docker:a    mlx5_0    4   -   -           -     -     -        -       -    -        -          -        -        -          -      -
docker:a    nvidia0   -   -   -           -     -     -        -       -    -        -          2  1.0 GiB   sm 75%          -   H100
docker:b              -   -   -           -     -     -        -       -    -        -          -        -        -        yes      -
(no owner)  nvidia0   -   -   -           -     -     -        -       -    -        -          0      0 B        -          -   H100
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("GPUs and HCAs (-want +got):\n%s", diff)
	}
}

func TestBusiest(t *testing.T) {
	for want, engines := range map[string]map[string]float64{
		format.None: nil,
		"0%":        {"decoder": 0, "sm": 0}, // none of them is the busiest
		"sm 25%":    {"decoder": 0.1, "sm": 0.25},
		"sm 100%":   {"memory": 0.5, "sm": 1},
	} {
		if got := busiest(engines); got.text != want {
			t.Errorf("%v: %q, want %q", engines, got.text, want)
		}
	}
}
