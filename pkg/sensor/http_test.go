// SPDX-License-Identifier: Apache-2.0

package sensor

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/httpserver"
	"github.com/accelscope/accelscope/pkg/metrics"
	"github.com/accelscope/accelscope/pkg/model"
)

// verbs is a source of one verb, which has a histogram.
type verbs struct{}

func (verbs) Name() string { return "probe" }
func (verbs) Close() error { return nil }
func (verbs) Read(context.Context) (model.Snapshot, error) {
	v := model.Series[model.VerbKey, model.Histogram]{
		Cgroup: 1, Key: model.VerbKey{Device: "mlx5_0", Verb: "reg_mr"}, Value: model.Histogram{Count: 1},
	}
	v.Value.Buckets[3] = 1
	return model.Snapshot{Objects: []model.Objects{}, Verbs: []model.Series[model.VerbKey, model.Histogram]{v}}, nil
}

// startEngine returns an engine that reads the sources until the test ends.
func startEngine(t *testing.T, o engine.Options, sources ...engine.Registration) *engine.Engine {
	t.Helper()
	e := engine.New(o)
	for _, r := range sources {
		e.Add(r)
	}
	e.Start()
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// encodeVerbs encodes the metrics of the source verbs.
func encodeVerbs(t *testing.T, sets ...string) EncodeFunc {
	t.Helper()
	e := startEngine(t, engine.Options{}, engine.Registration{Source: verbs{}})
	return metrics.New(e, metrics.Options{Compat: sets}).Encode
}

func serve(t *testing.T, f config.WebFlags, encode EncodeFunc, ready func() (bool, []string)) *httptest.Server {
	t.Helper()
	handler, err := newHandler(f, backend{encode, nil, nil, ready, ""}, httpserver.NewClients(zap.NewNop()), zap.NewNop())
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
	s := serve(t, config.WebFlags{TelemetryPath: "/metrics"}, encodeVerbs(t, metrics.Process), func() (bool, []string) {
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
		{"/metrics", "container_rdma_verbs_duration_seconds_count{"},
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

// Families must be sorted by name, including the sensor's own metrics: a text parser rejects a duplicate family, but
// not a wrong order.
func TestMetricsFormats(t *testing.T) {
	s := serve(t, config.WebFlags{TelemetryPath: "/metrics"}, encodeVerbs(t), nil)
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
				if last == "container_rdma_verbs_duration_seconds" {
					native = len(mf.Metric[0].GetHistogram().GetPositiveSpan()) > 0
				}
			}
			if want := name == "protobuf"; native != want {
				t.Errorf("native histogram: %v, want %v", native, want)
			}
		})
	}
}

func TestGzip(t *testing.T) {
	s := serve(t, config.WebFlags{TelemetryPath: "/metrics"}, encodeVerbs(t), nil)
	for header, want := range map[string]bool{
		"": false, "gzip": true, "deflate, gzip;q=0.5": true, "gzip;q=0": false, "*": true, "gzip; q=0.0, identity": false,
		"zstd": false, "gzip;q=x": false,
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept-Encoding", header)
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		body := io.Reader(resp.Body)
		got := resp.Header.Get("Content-Encoding") == "gzip"
		if got {
			if body, err = gzip.NewReader(resp.Body); err != nil {
				t.Fatal(err)
			}
		}
		text, err := io.ReadAll(body)
		resp.Body.Close()
		if got != want || err != nil || !strings.Contains(string(text), "# TYPE ") || resp.ContentLength <= 0 {
			t.Errorf("Accept-Encoding %q: gzip %v, length %d, %v\n%s", header, got, resp.ContentLength, err, text)
		}
	}
}

func TestTelemetryPath(t *testing.T) {
	for _, path := range []string{"", "metrics", "/", "/healthz", "/readyz", "/pods", "/gpus", "/openapi.yaml", "/api/v1/peers", api.FabricPath, "/{x}", "GET /x", "/a//b", "/a/../b"} {
		if _, err := newHandler(config.WebFlags{TelemetryPath: path}, backend{encodeVerbs(t), nil, nil, nil, ""}, httpserver.NewClients(zap.NewNop()), zap.NewNop()); err == nil {
			t.Errorf("--web.telemetry-path=%q is accepted", path)
		}
	}
}

// A refresh that failed answers 500 with its error, never 200 with an empty body.
func TestScrapeFails(t *testing.T) {
	s := serve(t, config.WebFlags{TelemetryPath: "/metrics"}, func(expfmt.Format, bool, ...string) ([]byte, error) {
		return nil, errors.New("refreshing: panic: boom")
	}, nil)
	if code, _, body := get(t, s.URL+"/metrics", ""); code != http.StatusInternalServerError || !strings.Contains(body, "boom") {
		t.Errorf("%d %q, want 500", code, body)
	}
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

// TestCollect checks the parameter collect[] of a scrape.
func TestCollect(t *testing.T) {
	s := serve(t, config.WebFlags{TelemetryPath: "/metrics"}, encodeVerbs(t, metrics.Process), func() (bool, []string) { return true, nil })
	for _, tt := range []struct {
		query     string
		code      int
		has, lack string
	}{
		{"", 200, "go_goroutines ", ""},
		{"?collect[]=probe", 200, "container_rdma_verbs_duration_seconds_count{", "go_goroutines "},
		{"?collect[]=probe&collect%5B%5D=sensor", 200, "go_goroutines ", "node_"},
		{"?collect[]=cpu", 400, `"cpu": there is no such collector`, "container_"},
		{"?collect=probe", 200, "go_goroutines ", ""},
	} {
		code, _, body := get(t, s.URL+"/metrics"+tt.query, "")
		if code != tt.code || !strings.Contains(body, tt.has) || tt.lack != "" && strings.Contains(body, tt.lack) {
			t.Errorf("%q: %d with %q and without %q expected, got %d:\n%s", tt.query, tt.code, tt.has, tt.lack, code, body)
		}
	}
}
