// SPDX-License-Identifier: Apache-2.0

// Package starts shows with a real Prometheus that no increment of a workload is lost: increase() of many short
// workloads adds up to their work if Prometheus reads start timestamps, and to less otherwise.
package starts

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/metrics"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/child"
)

const (
	workloads = 1000
	life      = 5 * time.Second
	apart     = 40 * time.Millisecond // between the begins of two workloads
	scrapes   = 2 * time.Second
)

// node is a fake node whose workloads begin one after the other. A workload calls its verbs and uses its CPU time in
// its first half second. After its end the probe keeps its counters, as in the grace period; its cgroup is gone.
type node struct {
	begin  time.Time
	mu     sync.Mutex
	listed time.Time // the last reading
	absent map[int]time.Time
}

// did returns the number of verbs that workload i has called.
func did(i int) uint64 { return uint64(1 + i%7) }

func (*node) Name() string { return "probe" }
func (*node) Close() error { return nil }

// Read returns the counters of all started workloads, and the usage of running workloads.
func (n *node) Read(context.Context) (model.Snapshot, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	s := model.Snapshot{Verbs: []model.Series[model.VerbKey, model.Histogram]{}, Usages: []model.Usage{}}
	for i := range workloads {
		age := now.Sub(n.begin.Add(time.Duration(i) * apart))
		if age < 0 {
			break
		}
		h := model.Histogram{Count: did(i), Sum: did(i) * 1e6}
		if age < life/10 {
			h.Count, h.Sum = 1, 1e6
		}
		h.Buckets[5] = h.Count
		id := model.CgroupID(i + 1)
		s.Verbs = append(s.Verbs, model.Series[model.VerbKey, model.Histogram]{
			Cgroup: id, Key: model.VerbKey{Device: "mlx5_0", Verb: "reg_mr"}, Value: h,
		})
		if _, known := n.absent[i]; !known {
			n.absent[i] = n.listed
		}
		if age < life {
			s.Usages = append(s.Usages, model.Usage{
				Cgroup: id, Since: n.absent[i], CPU: model.CPUUsage{Total: model.Some(min(age, life/10).Seconds())},
			})
		}
	}
	n.listed = now
	return s, nil
}

// Resolve names the cgroups.
func (*node) Resolve(_ context.Context, ids []model.CgroupID) (model.Snapshot, error) {
	known := map[model.CgroupID]identitytest.Entity{}
	for _, id := range ids {
		c := fmt.Sprintf("%064x", id)
		known[id] = identitytest.Entity{
			Workload: "docker:" + c[52:], ContainerID: c, Runtime: "docker", Called: fmt.Sprint("job-", id), Cgroup: "/docker/" + c,
		}
	}
	return *identitytest.Facts(known), nil
}

// serve exports the node's metrics over HTTP; below /created, OpenMetrics has start times, too.
func (n *node) serve(t *testing.T) string {
	e := engine.New(engine.Options{})
	e.Add(engine.Registration{Source: n})
	e.Start()
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	exporters := map[string]*metrics.Exporter{
		"/metrics": metrics.New(e, metrics.Options{}),
		"/created": metrics.New(e, metrics.Options{Histograms: metrics.Forms{CreatedLines: true}}),
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		format := expfmt.NegotiateAccept(r.Header, expfmt.DefaultOpenMetricsAcceptedFormats()...)
		body, err := exporters[r.URL.Path].Encode(format, false)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", string(format))
		_, _ = w.Write(body) // the scrape is over
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// prometheus is a running Prometheus.
type prometheus struct{ url string }

// text is the configuration of a scrape of the text format, with start times.
const text = "metrics_path: /created, scrape_protocols: [OpenMetricsText1.0.0]"

func start(t *testing.T, binary, target, scrape string, features ...string) prometheus {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	content := fmt.Sprintf("global: {scrape_interval: %[1]s, scrape_timeout: %[1]s}\n"+
		"scrape_configs: [{job_name: accelscope, static_configs: [{targets: [%[2]q]}], %[3]s}]\n", scrapes, target, scrape)
	if err := os.WriteFile(config, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	features = append(features, "promql-extended-range-selectors")
	cmd := child.Command(context.Background(), binary, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--enable-feature="+strings.Join(features, ","))
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		if lines, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("%v: %s", features, lines)
		}
		_ = log.Close()
	})
	return prometheus{"http://" + address}
}

// query returns the single value of an expression, or 0.
func (p prometheus) query(t *testing.T, expr string, at float64) float64 {
	t.Helper()
	values := url.Values{"query": {expr}}
	if at > 0 {
		values.Set("time", strconv.FormatFloat(at, 'f', 3, 64))
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.url+"/api/v1/query?"+values.Encode(), nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	var data struct {
		Error string
		Data  struct{ Result []struct{ Value [2]any } }
	}
	if err := json.Unmarshal(body, &data); err != nil || data.Error != "" {
		t.Fatalf("%s: %v %s", expr, err, body)
	}
	if len(data.Data.Result) == 0 {
		return 0
	}
	v, err := strconv.ParseFloat(fmt.Sprint(data.Data.Result[0].Value[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestIncrease(t *testing.T) {
	binary := os.Getenv("ACCELSCOPE_PROMETHEUS")
	if binary == "" {
		t.Skip("needs a Prometheus with start timestamps and two minutes: make test-starts")
	}
	n := &node{begin: time.Now().Add(10 * time.Second), absent: map[int]time.Time{}}
	target := n.serve(t)
	servers := map[string]prometheus{
		"none":                                   start(t, binary, target, ""),
		"created-timestamp-zero-ingestion":       start(t, binary, target, "", "created-timestamp-zero-ingestion"),
		"created-timestamp-zero-ingestion, text": start(t, binary, target, text, "created-timestamp-zero-ingestion"),
		"use-start-timestamps":                   start(t, binary, target, "", "st-storage", "use-start-timestamps"),
	}
	var verbs, seconds float64
	for i := range workloads {
		verbs += float64(did(i))
		seconds += (life / 10).Seconds()
	}
	time.Sleep(time.Until(n.begin.Add(workloads*apart + life + 2*scrapes)))

	for _, features := range slices.Sorted(maps.Keys(servers)) {
		p := servers[features]
		// At the last scrape, extrapolation adds nothing.
		at := p.query(t, `max(timestamp(container_rdma_verbs_total))`, 0)
		for _, c := range []struct {
			expr  string
			truth float64
		}{
			{`sum(increase(container_rdma_verbs_total[3m]))`, verbs},
			{`sum(increase(container_rdma_verbs_duration_seconds_count[3m]))`, verbs},
			{`sum(increase(container_cpu_usage_seconds_total[3m] anchored))`, seconds},
		} {
			got := p.query(t, c.expr, at)
			t.Logf("%-39s %-67s %8.1f of %.1f", features, c.expr, got, c.truth)
			lost := math.Abs(got-c.truth) > c.truth/1e6
			if lost != (features == "none") {
				t.Errorf("%s: %s is %g, the workloads did %g", features, c.expr, got, c.truth)
			}
		}
	}
}
