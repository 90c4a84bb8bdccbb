// SPDX-License-Identifier: Apache-2.0

// Package api answers the REST requests. It presents what the collector has
// joined and reads nothing itself.
//
// The requests that the Primus Lens node exporter has answer as that does, in its
// envelope (see answer); what we know beyond it stands behind its fields. All of
// them are described in openapi.yaml, which is served, too.
package api

import (
	_ "embed"
	"encoding/json"
	"net/http"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// Facts gives what is known now.
type Facts func() Known

// Known is what is known: the facts, who has what share of them, and how the
// sources do that they are from.
type Known struct {
	Facts  model.Snapshot
	Shares attribution.Attribution
	States []State
}

// State is how a source does, and why it is not ok.
type State struct {
	Source string
	State  model.State
	Reason string
}

//go:embed openapi.yaml
var description []byte

// Handlers are what answers the requests, by their paths. They take GET and HEAD.
func Handlers(facts Facts, list ListPeers) map[string]http.Handler {
	return map[string]http.Handler{
		"/gpus":              enveloped(facts, gpuList),
		"/gpuDriverVersion":  enveloped(facts, driverVersion),
		"/cardMetrics":       enveloped(facts, loads),
		"/driMapping":        enveloped(facts, driMapping),
		"/rdma":              enveloped(facts, rdmaList),
		"/pods":              plain(podsHandler(facts)),
		"/api/v1/peers":      plain(peersHandler(list)),
		"/api/v1/fabric":     fewAtOnce(enveloped(facts, fabricTopology)),
		"/api/v1/fabric.dot": fewAtOnce(fabricDOT(facts)),
		"/openapi.yaml": plain(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/yaml")
			_, _ = w.Write(description) // a client that has left has no one to be told
		}),
	}
}

// plain refuses other methods as the requests without an envelope refuse.
func plain(answer http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !reads(w, r) {
			fail(w, http.StatusMethodNotAllowed, errMethod)
			return
		}
		answer(w, r)
	})
}

// reads says whether a request is one that changes nothing.
func reads(w http.ResponseWriter, r *http.Request) bool {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return true
	}
	w.Header().Set("Allow", "GET, HEAD")
	return false
}

// fail says why there is no answer.
func fail(w http.ResponseWriter, status int, err error) {
	write(w, status, map[string]string{"error": err.Error()})
}

// write answers with v as JSON.
func write(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // of no value that there is here
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has left has no one to be told
}
