// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"go.uber.org/zap"
)

// testGatherer has one native histogram, as verb durations are.
func testGatherer(t *testing.T) prometheus.TransactionalGatherer {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	h := prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: "a_seconds", Help: "A.", Buckets: []float64{1}, NativeHistogramBucketFactor: 2,
	})
	reg.MustRegister(h)
	h.Observe(0.5)
	return prometheus.ToTransactionalGatherer(reg)
}

func serve(t *testing.T, f webFlags, g prometheus.TransactionalGatherer, ready func() (bool, []string)) *httptest.Server {
	t.Helper()
	handler, err := newHandler(f, g, ready, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s
}

func get(t *testing.T, url, accept string) (int, http.Header, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(body)
}

func TestHandler(t *testing.T) {
	done := false
	s := serve(t, webFlags{TelemetryPath: "/metrics"}, testGatherer(t), func() (bool, []string) {
		return done, []string{"rdma: absent: no HCA"}
	})
	if code, _, body := get(t, s.URL+"/readyz", ""); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz before the first refresh: %d %q, want 503", code, body)
	}
	done = true
	for _, tt := range []struct{ path, want string }{
		{"/", `href="/metrics"`},
		{"/healthz", "ok\n"},
		{"/readyz", "ready\nrdma: absent: no HCA\n"},
		{"/metrics", "a_seconds_count 1\n"},
		{"/metrics", "go_goroutines "},
		{"/metrics", "process_cpu_seconds_total "},
	} {
		if code, _, body := get(t, s.URL+tt.path, ""); code != http.StatusOK || !strings.Contains(body, tt.want) {
			t.Errorf("GET %s: %d without %q:\n%s", tt.path, code, tt.want, body)
		}
	}
	for _, path := range []string{"/debug/pprof/", "/nothing", "/metrics/"} {
		if code, _, _ := get(t, s.URL+path, ""); code != http.StatusNotFound {
			t.Errorf("GET %s: %d, want 404", path, code)
		}
	}
}

// Families must be sorted by name, also when the own metrics are among them:
// a text parser refuses a family that comes twice, not one out of order.
func TestMetricsFormats(t *testing.T) {
	s := serve(t, webFlags{TelemetryPath: "/metrics"}, testGatherer(t), nil)
	tests := map[string]struct{ accept, contentType string }{
		"text":        {"text/plain", "text/plain; version=0.0.4"},
		"OpenMetrics": {"application/openmetrics-text;version=1.0.0", "application/openmetrics-text; version=1.0.0"},
		"protobuf": {
			"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
			"application/vnd.google.protobuf",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, header, body := get(t, s.URL+"/metrics", tt.accept)
			if got := header.Get("Content-Type"); !strings.HasPrefix(got, tt.contentType) {
				t.Fatalf("Content-Type %q, want %q", got, tt.contentType)
			}
			if name == "OpenMetrics" {
				if !strings.HasSuffix(body, "# EOF\n") {
					t.Error("no # EOF")
				}
				return
			}
			decoder := expfmt.NewDecoder(strings.NewReader(body), expfmt.ResponseFormat(header))
			last, native := "", false
			for {
				var mf dto.MetricFamily
				err := decoder.Decode(&mf)
				if errors.Is(err, io.EOF) {
					break
				}
				if err != nil {
					t.Fatal(err)
				}
				if name == "protobuf" && mf.GetName() <= last {
					t.Errorf("%s after %s", mf.GetName(), last)
				}
				last = mf.GetName()
				if last == "a_seconds" {
					native = len(mf.Metric[0].GetHistogram().GetPositiveSpan()) > 0
				}
			}
			if want := name == "protobuf"; native != want {
				t.Errorf("native histogram: %v, want %v", native, want)
			}
		})
	}
}

func TestWithoutSelfMetrics(t *testing.T) {
	s := serve(t, webFlags{TelemetryPath: "/m", NoSelfMetrics: true}, testGatherer(t), nil)
	if _, _, body := get(t, s.URL+"/m", ""); strings.Contains(body, "go_") || strings.Contains(body, "process_") {
		t.Errorf("own metrics though disabled:\n%s", body)
	}
}

func TestTelemetryPath(t *testing.T) {
	for _, path := range []string{"", "metrics", "/", "/healthz", "/readyz", "/{x}", "GET /x"} {
		if _, err := newHandler(webFlags{TelemetryPath: path}, testGatherer(t), nil, zap.NewNop()); err == nil {
			t.Errorf("--web.telemetry-path=%q is accepted", path)
		}
	}
}

// gate is a gatherer that takes as long as the test wants.
type gate struct{ entered, open chan struct{} }

func (g gate) Gather() ([]*dto.MetricFamily, func(), error) {
	g.entered <- struct{}{}
	<-g.open
	return nil, func() {}, nil
}

func TestScrapesAreLimited(t *testing.T) {
	g := gate{make(chan struct{}), make(chan struct{})}
	s := serve(t, webFlags{TelemetryPath: "/metrics", NoSelfMetrics: true}, g, nil)
	var wg sync.WaitGroup
	for range maxScrapes {
		wg.Go(func() { get(t, s.URL+"/metrics", "") })
	}
	for range maxScrapes {
		<-g.entered
	}
	if code, _, _ := get(t, s.URL+"/metrics", ""); code != http.StatusServiceUnavailable {
		t.Errorf("one more than %d scrapes: %d, want 503", maxScrapes, code)
	}
	close(g.open)
	wg.Wait()
}

// hung is a sensor whose source never closes.
type hung struct{ release chan struct{} }

func (h hung) Close() error {
	<-h.release
	return nil
}

func TestCloseWithin(t *testing.T) {
	h := hung{make(chan struct{})}
	defer close(h.release)
	start := time.Now()
	closeWithin(10*time.Millisecond, h, zap.NewNop())
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("waited %v for what hangs", took)
	}
}
