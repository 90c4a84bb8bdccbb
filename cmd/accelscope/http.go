// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/exporter-toolkit/web"
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/metrics"
	"github.com/accelscope/accelscope/pkg/pages"
)

const (
	fabricPath = "/api/v1/fabric" // with the suffix .dot for Graphviz
	faultsPath = "/api/v1/faults"
	eventsPath = "/api/v1/events"
	topoPath   = "/api/v1/topology"
	tasksPath  = "/api/v1/gpu-driver-tasks"

	verdictsPath = "/api/v1/verdicts"
)

// Limits of the HTTP server. Slow or many scrapers must not hold memory or
// goroutines without end.
const (
	bodyTimeout       = 10 * time.Second // to write the body of a scrape
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

// newHandler returns a handler of all routes.
func newHandler(
	f webFlags, encode encodeFunc, facts api.Facts, peers api.ListPeers, ready func() (bool, []string), c *clients, log *zap.Logger,
) (http.Handler, error) {
	routes, err := newRoutes(f, encode, facts, peers, ready, c, log)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	for pattern, handler := range routes {
		mux.Handle(pattern, handler)
	}
	return mux, nil
}

// newRoutes returns the pages or the landing page, the metrics, the REST requests, /healthz
// and /readyz, by the patterns of http.ServeMux. ready returns whether the first
// refresh is done, and the sources that are not ok.
func newRoutes(
	f webFlags, encode encodeFunc, facts api.Facts, peers api.ListPeers, ready func() (bool, []string), c *clients, log *zap.Logger,
) (map[string]http.Handler, error) {
	version, _ := buildVersion()
	landing, err := web.NewLandingPage(web.LandingConfig{
		Name:        "accelscope",
		Description: "Which container uses which RDMA HCA and which GPU, how hard, and how well is it going?",
		Version:     version,
		Profiling:   "false",
		Links: []web.LandingLinks{
			{Address: f.TelemetryPath, Text: "Metrics"},
			{Address: verdictsPath, Text: "Verdicts", Description: "what is wrong on the node now, as JSON"},
			{Address: "/pods", Text: "Pods", Description: "containers and their devices, as JSON"},
			{Address: "/gpus", Text: "GPUs", Description: "the GPUs of the node, as JSON"},
			{Address: "/rdma", Text: "HCAs", Description: "the RDMA devices of the node, as JSON"},
			{Address: peersPath, Text: "Peers", Description: "who is connected to whom, as JSON"},
			{Address: faultsPath, Text: "Faults", Description: "the last errors of GPUs and HCAs in the kernel log, as JSON"},
			{Address: eventsPath, Text: "Events", Description: "the last events of the node, as JSON"},
			{Address: topoPath, Text: "Topology", Description: "where GPUs and HCAs are, and who uses them, as JSON"},
			{Address: tasksPath, Text: "GPU driver tasks", Description: "tasks that do not return from an ioctl of a GPU driver, as JSON"},
			{Address: fabricPath, Text: "Fabric", Description: "the InfiniBand fabric, as JSON; " + fabricPath + ".dot for Graphviz"},
			{Address: "/openapi.yaml", Text: "OpenAPI", Description: "all requests and their answers"},
			{Address: "/healthz", Text: "Health", Description: "the process answers"},
			{Address: "/readyz", Text: "Readiness", Description: "the first refresh is done; what is not ok"},
		},
	})
	if err != nil {
		return nil, err
	}
	routes := map[string]http.Handler{
		"GET /{$}": landing,
	}
	slots := api.NewSlots()
	if f.Pages {
		maps.Copy(routes, pages.Handlers(pages.Options{
			Facts: facts, Peers: peers, Slots: slots, Version: version, MetricsPath: f.TelemetryPath,
			Series: func() ([]byte, error) { return encode(expfmt.NewFormat(expfmt.TypeTextPlain), false) },
		}))
	}
	maps.Copy(routes, probeRoutes(ready))
	maps.Copy(routes, api.Handlers(facts, peers, slots))
	pattern := "GET " + f.TelemetryPath
	switch {
	case !strings.HasPrefix(f.TelemetryPath, "/") || strings.ContainsAny(f.TelemetryPath, " {}") ||
		path.Clean(f.TelemetryPath) != f.TelemetryPath: // ServeMux panics at a path that no request can have
		return nil, fmt.Errorf("--web.telemetry-path: %q is not a path like /metrics", f.TelemetryPath)
	case f.TelemetryPath == "/" || routes[f.TelemetryPath] != nil || routes[pattern] != nil:
		return nil, fmt.Errorf("--web.telemetry-path: %s is the path of another page", f.TelemetryPath)
	}
	routes[pattern] = metricsHandler(encode, c, log.Named("scrape"))
	return routes, nil
}

// probeRoutes returns what probes of the process request: /healthz and /readyz.
func probeRoutes(ready func() (bool, []string)) map[string]http.Handler {
	return map[string]http.Handler{
		"GET /healthz": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintln(w, "ok")
		}),
		"GET /readyz": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain; charset=utf-8")
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
		}),
	}
}

// newProbeHandler returns a handler of these routes alone.
func newProbeHandler(ready func() (bool, []string)) http.Handler {
	mux := http.NewServeMux()
	for pattern, handler := range probeRoutes(ready) {
		mux.Handle(pattern, handler)
	}
	return mux
}

// known returns the facts and shares for REST requests.
func (s *sensor) known() api.Known {
	now := s.engine.Refresh()
	s.observe(now)
	return api.Known{
		At: now.At, Facts: now.Facts, Shares: now.Shares, States: now.States, Placement: now.Placement, Verdicts: now.Verdicts,
		Err: now.Err, Node: s.node, Recorder: s.recorder,
		Checks: func() []api.Check { return observed(now.States, now.Facts, func() error { return nil }).Checks },
	}
}

// encode encodes the metrics, and has the history remember their refresh.
func (s *sensor) encode(format expfmt.Format, compress bool, collectors ...string) ([]byte, error) {
	body, err := s.metrics.Encode(format, compress, collectors...)
	s.observe(s.engine.Last())
	return body, err
}

func (s *sensor) observe(r *engine.Refresh) {
	if s.recorder != nil && r.Err == nil {
		s.recorder.Observe(r.At, &r.Facts, &r.Shares)
	}
}

// encodeFunc encodes the metrics of all or some collectors in a format, compressed or not.
type encodeFunc func(format expfmt.Format, compress bool, collectors ...string) ([]byte, error)

// metricsHandler answers scrapes in the format and compression that they request.
func metricsHandler(encode encodeFunc, c *clients, log *zap.Logger) http.Handler {
	formats := expfmt.DefaultOpenMetricsAcceptedFormats()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		end, ok := c.begin(r.Context(), addressOf(r.RemoteAddr))
		if !ok {
			http.Error(w, fmt.Sprintf("%d other scrapes have run for %v", maxScrapes, maxWait), http.StatusServiceUnavailable)
			return
		}
		defer end()
		format := expfmt.NegotiateAccept(r.Header, formats...)
		compress := acceptsGzip(r.Header.Get("Accept-Encoding"))
		body, err := encode(format, compress, r.URL.Query()["collect[]"]...)
		if errors.Is(err, metrics.ErrNoCollector) {
			http.Error(w, "collect[]: "+err.Error(), http.StatusBadRequest)
			return
		}
		if err != nil {
			log.Error("encoding the metrics failed", zap.Error(err))
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		h := w.Header()
		h.Set("Content-Type", string(format))
		h.Set("Content-Length", strconv.Itoa(len(body)))
		if compress {
			h.Set("Content-Encoding", "gzip")
		}
		// A scraper that does not read must not block others.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(bodyTimeout))
		_, _ = w.Write(body) // it fails if the scraper has closed the connection
	})
}

// acceptsGzip reports whether an Accept-Encoding names gzip, or *, with a weight
// that is not zero.
func acceptsGzip(header string) bool {
	for part := range strings.SplitSeq(header, ",") {
		coding, weight, _ := strings.Cut(part, ";")
		if coding = strings.TrimSpace(coding); coding != "gzip" && coding != "*" {
			continue
		}
		_, q, ok := strings.Cut(weight, "=")
		if v, err := strconv.ParseFloat(strings.TrimSpace(q), 64); !ok || err == nil && v > 0 {
			return true
		}
	}
	return false
}
