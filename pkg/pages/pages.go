// SPDX-License-Identifier: Apache-2.0

// Package pages shows a node in a browser: what is wrong, who uses what, where the devices are, the last 15 minutes, and why figures
// are absent. FleetHandlers show all nodes, from a Prometheus; what both have in common is in the templates of frame.html.
//
// Every page is complete HTML that the server renders, so it works without JavaScript: search, sort order and filters are in the
// query. The script only requests the same page again every few seconds, or while one types, and replaces the parts that changed.
// The figures are the Go values that /api/v1/workloads, /devices, /topology, /verdicts, /history and /doctor encode.
//
// Names of workloads are chosen by their owners and are hostile: html/template escapes them for their place, unprintable characters
// are shown as escapes, and the Content-Security-Policy permits no inline code and no request to another host. Bars and pictures
// are SVG with attributes, as the policy permits no inline style either.
package pages

import (
	"bytes"
	"embed"
	"fmt"
	"hash/fnv"
	"html/template"
	"io/fs"
	"net/http"
	"path"
	"sync"
	"time"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/format"
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

// policy permits our own script, style sheet, icon and requests, and nothing else.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'"

//go:embed assets templates
var files embed.FS

// templates are parsed for the first page: a sensor whose pages nobody opens has no use for them.
var templates = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("").Funcs(template.FuncMap{
		"utc": utc, "shown": format.Escape, "clock": clock, "counts": counts,
	}).ParseFS(files, "templates/*.html"))
})

// Handlers returns the handlers of the pages by the patterns of http.ServeMux.
func Handlers(o Options) map[string]http.Handler {
	kept := api.Kept(recent(o.Facts), o.Slots, refuse)
	handlers := map[string]http.Handler{
		"GET /{$}":      kept(o.page("node.html", new(nodePage).node)),
		"GET /workload": kept(o.page("workload.html", o.workload)),
		"GET /device":   kept(o.page("device.html", o.device)),
	}
	addAssets(handlers)
	return handlers
}

// addAssets adds the handlers of the style sheet, the script and the icon.
func addAssets(handlers map[string]http.Handler) {
	for name, contentType := range map[string]string{
		"page.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml",
	} {
		text, err := fs.ReadFile(files, path.Join("assets", name))
		if err != nil {
			panic(err) // the file is embedded
		}
		handlers["GET /assets/"+name] = asset(text, contentType)
	}
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

// asset answers with an embedded file.
func asset(text []byte, contentType string) http.Handler {
	sum := fnv.New64a()
	_, _ = sum.Write(text)
	tag := fmt.Sprintf("\"%016x\"", sum.Sum64())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secure(w.Header())
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("ETag", tag)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
	})
}

func secure(h http.Header) {
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache")
}

func refuse(w http.ResponseWriter, err error) {
	secure(w.Header())
	http.Error(w, err.Error(), api.StatusOf(err))
}

// frame is what all pages have.
type frame struct {
	Title, Node, Version, MetricsPath string
	Fleet                             bool      // the page of all nodes
	At                                time.Time // of the refresh
	Rates                             string    // of which interval the rates are
	View                              any
}

// page returns the answer of a page. view returns the title and what its template shows.
func (o Options) page(
	name string, view func(*http.Request, *api.Known) (title string, shown any, err error),
) func(http.ResponseWriter, *http.Request, *api.Known) {
	return func(w http.ResponseWriter, r *http.Request, k *api.Known) {
		f := frame{Node: k.Node, Version: o.Version, MetricsPath: o.MetricsPath, At: k.At.UTC()}
		var err error
		if f.Title, f.View, err = view(r, k); err != nil {
			refuse(w, fmt.Errorf("making the page: %w", err))
			return
		}
		f.write(w, name)
	}
}

// write writes a page.
func (f *frame) write(w http.ResponseWriter, name string) {
	var body bytes.Buffer
	if err := templates().ExecuteTemplate(&body, name, f); err != nil {
		refuse(w, fmt.Errorf("rendering the page: %w", err))
		return
	}
	secure(w.Header())
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(body.Bytes()) // into the memory of the answer
}
