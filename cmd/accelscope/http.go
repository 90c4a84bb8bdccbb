// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/exporter-toolkit/web"
	"go.uber.org/zap"
)

// Bounds of the HTTP server. A scraper that is slow, or many of them, must not
// hold memory or goroutines without end.
const (
	maxScrapes        = 16 // at once; more are told to come back
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second
	writeTimeout      = time.Minute
	idleTimeout       = 5 * time.Minute // longer than scrape intervals: connections are kept
	maxHeaderBytes    = 64 << 10
)

func newServer(handler http.Handler, log *zap.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          zap.NewStdLog(log.Named("http")),
	}
}

// newHandler serves the landing page, the metrics, /healthz (the process
// answers) and /readyz. ready says whether the first refresh is done and what
// is not ok.
func newHandler(f webFlags, g prometheus.TransactionalGatherer, ready func() (bool, []string), log *zap.Logger) (http.Handler, error) {
	switch {
	case !strings.HasPrefix(f.TelemetryPath, "/") || strings.ContainsAny(f.TelemetryPath, " {}"):
		return nil, fmt.Errorf("--web.telemetry-path: %q is not a path like /metrics", f.TelemetryPath)
	case f.TelemetryPath == "/" || f.TelemetryPath == "/healthz" || f.TelemetryPath == "/readyz":
		return nil, fmt.Errorf("--web.telemetry-path: %s is taken", f.TelemetryPath)
	}
	landing, err := web.NewLandingPage(web.LandingConfig{
		Name:        "accelscope",
		Description: "Which container uses which RDMA HCA, how hard, and how well is it going?",
		Version:     versionString(),
		Profiling:   "false",
		Links: []web.LandingLinks{
			{Address: f.TelemetryPath, Text: "Metrics"},
			{Address: "/healthz", Text: "Health", Description: "the process answers"},
			{Address: "/readyz", Text: "Readiness", Description: "the first refresh is done; what is not ok"},
		},
	})
	if err != nil {
		return nil, err
	}
	if !f.NoSelfMetrics {
		g = withSelfMetrics(g)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", landing)
	mux.Handle("GET "+f.TelemetryPath, promhttp.HandlerForTransactional(g, promhttp.HandlerOpts{
		ErrorLog:            zap.NewStdLog(log.Named("scrape")),
		ErrorHandling:       promhttp.ContinueOnError,
		EnableOpenMetrics:   true,
		MaxRequestsInFlight: maxScrapes,
		OfferedCompressions: []promhttp.Compression{promhttp.Identity, promhttp.Gzip},
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		done, problems := ready()
		if !done {
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprintln(w, "not ready: the first refresh is not done")
		} else {
			fmt.Fprintln(w, "ready")
		}
		for _, p := range problems {
			fmt.Fprintln(w, p)
		}
	})
	return mux, nil
}

// withSelfMetrics adds go_* and process_* of this process. Their names are
// disjoint from the sensor's, so the families are only sorted, not checked
// again on every scrape.
func withSelfMetrics(g prometheus.TransactionalGatherer) prometheus.TransactionalGatherer {
	self := prometheus.NewRegistry()
	self.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return prometheus.NewMultiTRegistry(g, prometheus.ToTransactionalGatherer(self))
}
