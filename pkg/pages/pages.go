// SPDX-License-Identifier: Apache-2.0

// Package pages shows a node in a browser: what is wrong, who uses what, where the devices are, the last 15 minutes, and why figures
// are absent. Package web has what this page shares with the page of all nodes.
//
// Every page is complete HTML that the server renders, so it works without JavaScript: search, sort order and filters are in the
// query. The script only requests the same page again every few seconds, or while one types, and replaces the parts that changed.
// The figures are the Go values that /api/v1/workloads, /devices, /topology, /verdicts, /history and /doctor encode.
package pages

import (
	"embed"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/web"
)

// Options of the pages.
type Options struct {
	Facts api.Facts
	Peers api.ListPeers // nil if peers are not listed
	Slots api.Slots     // which the pages share with the REST requests
	// Series returns all metrics in the text format.
	Series  func() ([]byte, error)
	Version string
	// MetricsPath is the path of the metrics.
	MetricsPath string
}

//go:embed templates
var files embed.FS

// templates are parsed for the first page: a sensor whose pages nobody opens has no use for them.
var templates = web.Templates(files, nil)

// Handlers returns the handlers of the pages by the patterns of http.ServeMux.
func Handlers(o Options) map[string]http.Handler {
	kept := api.Kept(recent(o.Facts), o.Slots, web.Refuse)
	handlers := map[string]http.Handler{
		"GET /{$}":      kept(o.page("node.html", new(nodePage).node)),
		"GET /workload": kept(o.page("workload.html", o.workload)),
		"GET /device":   kept(o.page("device.html", o.device)),
	}
	web.AddAssets(handlers)
	return handlers
}

// maxAge is how old the facts of a page may be. Viewers request pages at different times: without it, ten of them would cause a refresh
// every second.
const maxAge = 5 * time.Second

// recent returns facts that are at most maxAge old.
func recent(facts api.Facts) api.Facts {
	var mu sync.Mutex
	var last api.Known
	return func() api.Known {
		mu.Lock()
		defer mu.Unlock()
		if last.At.IsZero() || last.Err != nil || time.Since(last.At) >= maxAge {
			last = facts()
		}
		return last
	}
}

// page returns the answer of a page. view returns the title and what its template shows.
func (o Options) page(
	name string, view func(*http.Request, *api.Known) (title string, shown any, err error),
) func(http.ResponseWriter, *http.Request, *api.Known) {
	return func(w http.ResponseWriter, r *http.Request, k *api.Known) {
		f := web.Frame{Node: k.Node, Version: o.Version, MetricsPath: o.MetricsPath, At: k.At.UTC()}
		var err error
		if f.Title, f.View, err = view(r, k); err != nil {
			web.Refuse(w, fmt.Errorf("making the page: %w", err))
			return
		}
		f.Write(w, templates, name)
	}
}
