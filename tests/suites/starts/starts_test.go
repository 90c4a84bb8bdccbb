// SPDX-License-Identifier: Apache-2.0

// Package starts shows with a real Prometheus that no increment of a workload is lost: increase() of many short
// workloads adds up to their work if Prometheus reads start timestamps, and to less otherwise. Thanos and
// VictoriaMetrics read the same node.
package starts

import (
	"context"
	"encoding/json"
	"errors"
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
	"github.com/accelscope/accelscope/tests/machines/stores"
	"github.com/accelscope/accelscope/tests/tools/child"
)

const (
	workloads = 1000
	life      = 5 * time.Second
	apart     = 40 * time.Millisecond // between the begins of two workloads
	scrapes   = 2 * time.Second
)

// node is a fake node whose workloads begin one after the other. A workload calls its verbs but the last and uses its CPU
// time in its first half second. After its end the probe keeps its counters, as in the grace period; its cgroup is gone.
type node struct {
	begin  time.Time
	mu     sync.Mutex
	listed time.Time // the last reading
	absent map[int]time.Time
}

// did returns the number of verbs that workload i calls: a few, or hundreds.
func did(i int) uint64 { return uint64(2+i%7) * []uint64{1, 100}[i%2] }

// calls returns the number of verbs that workload i has called at an age.
func calls(i int, age time.Duration) uint64 {
	switch {
	case age < life/10:
		return 1
	case age < life*3/5:
		return did(i) - 1
	default:
		return did(i)
	}
}

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
		h := model.Histogram{Count: calls(i, age), Sum: calls(i, age) * 1e6}
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

// server is a running program with Prometheus's API.
type server struct{ url string }

// text is the configuration of a scrape of the text format, with start times.
const text = "metrics_path: /created, scrape_protocols: [OpenMetricsText1.0.0]"

// configure writes the configuration of scrapes of the target, which Prometheus and VictoriaMetrics read.
func configure(t *testing.T, target, scrape string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "prometheus.yml")
	content := fmt.Sprintf("global: {scrape_interval: %[1]s, scrape_timeout: %[1]s, external_labels: {cluster: c}}\n"+
		"scrape_configs: [{job_name: accelscope, static_configs: [{targets: [%[2]q]}], %[3]s}]\n", scrapes, target, scrape)
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// prometheus starts a Prometheus that scrapes the target, and returns the directory of its data, too.
func prometheus(t *testing.T, binary, target, scrape string, features ...string) (s server, data string) {
	t.Helper()
	address, data := free(t), t.TempDir()
	features = append(features, "promql-extended-range-selectors")
	return run(t, address, binary, "--config.file="+configure(t, target, scrape), "--storage.tsdb.path="+data, "--web.listen-address="+address,
		"--enable-feature="+strings.Join(features, ",")), data
}

// thanos starts a querier of Thanos over a Prometheus.
func thanos(t *testing.T, binary string, of server, data string) server {
	t.Helper()
	grpc, address := free(t), free(t)
	run(t, "", binary, "sidecar", "--prometheus.url="+of.url, "--tsdb.path="+data, "--grpc-address="+grpc, "--http-address="+free(t))
	return run(t, address, binary, "query", "--grpc-address="+free(t), "--http-address="+address, "--endpoint="+grpc)
}

// victoria starts a VictoriaMetrics that scrapes the target.
func victoria(t *testing.T, binary, target, scrape string) server {
	t.Helper()
	address := free(t)
	return run(t, address, binary, "-httpListenAddr="+address, "-storageDataPath="+t.TempDir(), "-promscrape.config="+configure(t, target, scrape),
		"-search.latencyOffset=0s", "-search.disableCache")
}

// free returns a free address.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// run runs a program until the end of the test.
func run(t *testing.T, address, binary string, args ...string) server {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := child.Command(context.Background(), binary, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
		if lines, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("%v: %s", args, lines[max(0, len(lines)-4000):])
		}
		_ = log.Close()
	})
	return server{"http://" + address}
}

// query returns the single value of an expression, or 0; an error if the server answers with an error.
func (p server) query(t *testing.T, expr string, at float64) (float64, error) {
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
	if err := json.Unmarshal(body, &data); err != nil {
		t.Fatalf("%s: %v: %s", expr, err, body)
	}
	switch {
	case data.Error != "":
		return 0, errors.New(data.Error)
	case len(data.Data.Result) == 0:
		return 0, nil
	}
	v, err := strconv.ParseFloat(fmt.Sprint(data.Data.Result[0].Value[1]), 64)
	if err != nil {
		t.Fatal(err)
	}
	return v, nil
}

// What increase() sees of the work.
const (
	all  = true
	less = false
)

// The expressions, whose results at the last scrape extrapolation does not change.
const (
	verbs   = `sum(increase(container_rdma_verbs_total[3m]))`
	count   = `sum(increase(container_rdma_verbs_duration_seconds_count[3m]))`
	cpu     = `sum(increase(container_cpu_usage_seconds_total[3m] anchored))`
	pure    = `sum(increase_pure(container_rdma_verbs_total[3m]))`
	pureCPU = `sum(increase_pure(container_cpu_usage_seconds_total[3m]))`
)

func TestIncrease(t *testing.T) {
	binary := os.Getenv("ACCELSCOPE_PROMETHEUS")
	if binary == "" {
		t.Skip("needs a Prometheus with start timestamps, Thanos, VictoriaMetrics and two minutes: make test-starts")
	}
	ofThanos, err := stores.Thanos(t.Context())
	ofVictoria, other := stores.Victoria(t.Context(), "victoria-metrics")
	if err := errors.Join(err, other); err != nil {
		t.Fatal(err)
	}
	n := &node{begin: time.Now().Add(20 * time.Second), absent: map[int]time.Time{}}
	target := n.serve(t)
	type reader struct {
		server
		sees map[string]bool // nil: it cannot read what is stored
	}
	exact, lost := map[string]bool{verbs: all, count: all, cpu: all}, map[string]bool{verbs: less, count: less, cpu: less}
	servers := map[string]reader{}
	for features, sees := range map[string]map[string]bool{
		"": lost, "created-timestamp-zero-ingestion": exact, "st-storage,use-start-timestamps": exact,
	} {
		p, data := prometheus(t, binary, target, "", features)
		servers["Prometheus, "+features] = reader{p, sees}
		ofQuery := map[string]bool{verbs: sees[verbs], count: sees[count]}
		if strings.HasPrefix(features, "st-storage") {
			ofQuery = nil // chunks of another encoding
		}
		servers["Thanos, "+features] = reader{thanos(t, ofThanos, p, data), ofQuery}
	}
	p, _ := prometheus(t, binary, target, text, "created-timestamp-zero-ingestion")
	servers["Prometheus, created-timestamp-zero-ingestion, text"] = reader{p, exact}
	servers["VictoriaMetrics"] = reader{victoria(t, ofVictoria, target, ""), map[string]bool{verbs: less, count: less, pure: all, pureCPU: all}}

	truth := map[string]float64{}
	for i := range workloads {
		truth[verbs] += float64(did(i))
		truth[cpu] += (life / 10).Seconds()
	}
	truth[count], truth[pure], truth[pureCPU] = truth[verbs], truth[verbs], truth[cpu]
	time.Sleep(time.Until(n.begin.Add(workloads*apart + life + 2*scrapes)))

	for _, name := range slices.Sorted(maps.Keys(servers)) {
		s := servers[name]
		at, err := s.query(t, `max(timestamp(container_rdma_verbs_total))`, 0)
		if s.sees == nil && err != nil {
			t.Logf("%-50s %v", name, err)
			continue
		}
		if s.sees == nil || err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, expr := range slices.Sorted(maps.Keys(s.sees)) {
			got, err := s.query(t, expr, at)
			if err != nil {
				t.Errorf("%s: %s: %v", name, expr, err)
				continue
			}
			t.Logf("%-50s %-67s %8.1f of %.1f", name, expr, got, truth[expr])
			if exact := math.Abs(got-truth[expr]) <= truth[expr]/1e6; exact != s.sees[expr] {
				t.Errorf("%s: %s is %g, the workloads did %g", name, expr, got, truth[expr])
			}
		}
	}
}
