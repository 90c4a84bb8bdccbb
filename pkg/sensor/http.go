// SPDX-License-Identifier: Apache-2.0

package sensor

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/exporter-toolkit/web"
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/doctor"
	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/httpserver"
	"github.com/accelscope/accelscope/pkg/metrics"
	"github.com/accelscope/accelscope/pkg/pages"
)

// bodyTimeout is how long the body of a scrape may take to write.
const bodyTimeout = 10 * time.Second

// backend is what the routes answer from.
type backend struct {
	encode  EncodeFunc
	facts   api.Facts
	peers   api.ListPeers
	ready   httpserver.Ready
	version string
}

// newHandler returns a handler of all routes.
func newHandler(f config.WebFlags, b backend, c *httpserver.Clients, log *zap.Logger) (http.Handler, error) {
	routes, err := newRoutes(f, b, c, log)
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
// and /readyz, by the patterns of http.ServeMux.
func newRoutes(f config.WebFlags, b backend, c *httpserver.Clients, log *zap.Logger) (map[string]http.Handler, error) {
	landing, err := web.NewLandingPage(web.LandingConfig{
		Name:        "accelscope",
		Description: "Which container uses which RDMA HCA and which GPU, how hard, and how well is it going?",
		Version:     b.version,
		Profiling:   "false",
		Links: []web.LandingLinks{
			{Address: f.TelemetryPath, Text: "Metrics"},
			{Address: api.VerdictsPath, Text: "Verdicts", Description: "what is wrong on the node now, as JSON"},
			{Address: "/pods", Text: "Pods", Description: "containers and their devices, as JSON"},
			{Address: "/gpus", Text: "GPUs", Description: "the GPUs of the node, as JSON"},
			{Address: "/rdma", Text: "HCAs", Description: "the RDMA devices of the node, as JSON"},
			{Address: api.PeersPath, Text: "Peers", Description: "who is connected to whom, as JSON"},
			{Address: api.CollectivesPath, Text: "Collectives", Description: "communicators with times of launches, as JSON"},
			{Address: api.FaultsPath, Text: "Faults", Description: "the last errors of GPUs and HCAs in the kernel log, as JSON"},
			{Address: api.EventsPath, Text: "Events", Description: "the last events of the node, as JSON"},
			{Address: api.TopologyPath, Text: "Topology", Description: "where GPUs and HCAs are, and who uses them, as JSON"},
			{
				Address: api.TasksPath, Text: "GPU driver tasks",
				Description: "tasks that do not return from an ioctl of a GPU driver, as JSON",
			},
			{
				Address: api.FabricPath, Text: "Fabric",
				Description: "the InfiniBand fabric, as JSON; " + api.FabricPath + ".dot for Graphviz",
			},
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
			Facts: b.facts, Peers: b.peers, Slots: slots, Version: b.version, MetricsPath: f.TelemetryPath,
			Series: func() ([]byte, error) { return b.encode(expfmt.NewFormat(expfmt.TypeTextPlain), false) },
		}))
	}
	maps.Copy(routes, httpserver.ProbeRoutes(b.ready))
	maps.Copy(routes, api.Handlers(b.facts, b.peers, slots))
	pattern := "GET " + f.TelemetryPath
	switch {
	case !strings.HasPrefix(f.TelemetryPath, "/") || strings.ContainsAny(f.TelemetryPath, " {}") ||
		path.Clean(f.TelemetryPath) != f.TelemetryPath: // ServeMux panics at a path that no request can have
		return nil, fmt.Errorf("--web.telemetry-path: %q is not a path like /metrics", f.TelemetryPath)
	case f.TelemetryPath == "/" || routes[f.TelemetryPath] != nil || routes[pattern] != nil:
		return nil, fmt.Errorf("--web.telemetry-path: %s is the path of another page", f.TelemetryPath)
	}
	routes[pattern] = c.Limit(MetricsHandler(b.encode, log.Named("scrape")))
	return routes, nil
}

// known returns the facts and shares for REST requests.
func (s *Sensor) known() api.Known {
	now := s.engine.Refresh()
	s.observe(now)
	return api.Known{
		At: now.At, Facts: now.Facts, Shares: now.Shares, States: now.States, Placement: now.Placement, Verdicts: now.Verdicts,
		Err: now.Err, Node: s.node, Recorder: s.recorder,
		Checks: func() []api.Check { return doctor.Observed(now.States, now.Facts) },
	}
}

// encode encodes the metrics, and has the history remember their refresh.
func (s *Sensor) encode(format expfmt.Format, compress bool, collectors ...string) ([]byte, error) {
	body, err := s.metrics.Encode(format, compress, collectors...)
	s.observe(s.engine.Last())
	return body, err
}

func (s *Sensor) observe(r *engine.Refresh) {
	if s.recorder != nil && r.Err == nil {
		s.recorder.Observe(r.At, &r.Facts, &r.Shares)
	}
}

// EncodeFunc encodes the metrics of all or some collectors in a format, compressed or not.
type EncodeFunc func(format expfmt.Format, compress bool, collectors ...string) ([]byte, error)

// MetricsHandler answers scrapes in the format and compression that they request.
func MetricsHandler(encode EncodeFunc, log *zap.Logger) http.Handler {
	formats := expfmt.DefaultOpenMetricsAcceptedFormats()
	var last negotiation
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		format := last.negotiate(r.Header, formats)
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

// negotiation keeps the format for the last Accept header: parsing it takes a hundredth of a scrape, and a scraper always
// sends the same.
type negotiation struct{ last atomic.Pointer[accepted] }

type accepted struct {
	header string
	format expfmt.Format
}

func (n *negotiation) negotiate(h http.Header, formats []expfmt.Format) expfmt.Format {
	header := h.Get("Accept")
	if a := n.last.Load(); a != nil && a.header == header {
		return a.format
	}
	a := &accepted{header, expfmt.NegotiateAccept(h, formats...)}
	n.last.Store(a)
	return a.format
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
