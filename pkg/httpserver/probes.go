// SPDX-License-Identifier: Apache-2.0

package httpserver

import (
	"fmt"
	"net/http"
)

// ProbeRoutes returns what probes of the process request: /healthz and /readyz.
func ProbeRoutes(ready Ready) map[string]http.Handler {
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
func newProbeHandler(ready Ready) http.Handler {
	mux := http.NewServeMux()
	for pattern, handler := range ProbeRoutes(ready) {
		mux.Handle(pattern, handler)
	}
	return mux
}
