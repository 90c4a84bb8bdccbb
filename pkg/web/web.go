// SPDX-License-Identifier: Apache-2.0

// Package web has what the pages of a node and the pages of all nodes share: the frame, the style sheet, the script, headers and formats.
//
// Names of workloads are chosen by their owners and are hostile: html/template escapes them for their place, unprintable characters
// are shown as escapes, and the Content-Security-Policy permits no inline code and no request to another host. Bars and pictures
// are SVG with attributes, as the policy permits no inline style either.
package web

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

// Policy permits our own script, style sheet, icon and requests, and nothing else.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'"

//go:embed assets templates
var files embed.FS

// Templates returns the templates of the pages and of the frame. They are parsed when they are first needed.
func Templates(pages fs.FS, more template.FuncMap) func() *template.Template {
	return sync.OnceValue(func() *template.Template {
		t := template.New("").Funcs(template.FuncMap{"utc": UTC, "shown": format.Escape, "clock": Clock}).Funcs(more)
		return template.Must(template.Must(t.ParseFS(files, "templates/*.html")).ParseFS(pages, "templates/*.html"))
	})
}

// AddAssets adds the handlers of the style sheet, the script and the icon.
func AddAssets(handlers map[string]http.Handler) {
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

// asset answers with an embedded file.
func asset(text []byte, contentType string) http.Handler {
	sum := fnv.New64a()
	_, _ = sum.Write(text)
	tag := fmt.Sprintf("\"%016x\"", sum.Sum64())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		Secure(w.Header())
		w.Header().Set("Content-Type", contentType)
		w.Header().Set("ETag", tag)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
	})
}

// Secure sets the headers of all answers.
func Secure(h http.Header) {
	h.Set("Content-Security-Policy", Policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache")
}

// Refuse answers with an error.
func Refuse(w http.ResponseWriter, err error) {
	Secure(w.Header())
	http.Error(w, err.Error(), api.StatusOf(err))
}

// Frame is what all pages have.
type Frame struct {
	Title, Node, Version, MetricsPath string
	Fleet                             bool      // the page of all nodes
	At                                time.Time // of the refresh
	Rates                             string    // the interval of the rates
	View                              any
}

// Write writes a page.
func (f *Frame) Write(w http.ResponseWriter, templates func() *template.Template, name string) {
	var body bytes.Buffer
	if err := templates().ExecuteTemplate(&body, name, f); err != nil {
		Refuse(w, fmt.Errorf("rendering the page: %w", err))
		return
	}
	Secure(w.Header())
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	_, _ = w.Write(body.Bytes()) // into the memory of the answer
}
