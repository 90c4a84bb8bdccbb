// SPDX-License-Identifier: Apache-2.0

// Package api answers the REST requests from the refreshes of the engine.
//
// Requests of the Primus Lens node exporter get the same answers in the same envelope (see answer), with additional
// fields after the original fields. openapi.yaml describes all requests and is served, too.
package api

import (
	_ "embed"
	"encoding/json"
	"net/http"
	"time"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/overview"
	"github.com/accelscope/accelscope/pkg/placement"
	"github.com/accelscope/accelscope/pkg/verdict"
)

// Facts returns the current facts.
type Facts func() Known

// Known holds the facts of a refresh, the shares of owners, the states of the sources, and the verdicts.
type Known struct {
	At     time.Time // of the refresh
	Facts  model.Snapshot
	Shares attribution.Attribution
	States []model.SourceState
	// Placement is where the GPUs and HCAs are, and who uses them; nil without devices.
	Placement *placement.Refresh
	// Verdicts are the conditions that hold.
	Verdicts verdict.Result
	// Err is why the other fields are empty.
	Err error

	// Node is the name of the node.
	Node string
	// Checks returns the state of each thing that the sensor uses; nil without checks.
	Checks func() []Check
	// Recorder has the rates and the history, or is nil.
	Recorder *overview.Recorder
}

// Paths of requests.
const (
	PeersPath       = "/api/v1/peers"
	CollectivesPath = "/api/v1/collectives"
	FaultsPath      = "/api/v1/faults"
	EventsPath      = "/api/v1/events"
	VerdictsPath    = "/api/v1/verdicts"
	TasksPath       = "/api/v1/gpu-driver-tasks"
	TopologyPath    = "/api/v1/topology"
	FabricPath      = "/api/v1/fabric" // with the suffix .dot for Graphviz
	WorkloadsPath   = "/api/v1/workloads"
	DevicesPath     = "/api/v1/devices"
	HistoryPath     = "/api/v1/history"
	DoctorPath      = "/api/v1/doctor"
)

//go:embed openapi.yaml
var description []byte

// Handlers returns the handlers of the requests by path. They accept GET and HEAD.
func Handlers(facts Facts, list ListPeers, slots Slots) map[string]http.Handler {
	p := newPages(facts, slots)
	lens := func(ask func(*Known, *http.Request) (any, error)) http.Handler {
		return p.handler(refuse, enveloped(ask))
	}
	return map[string]http.Handler{
		"/gpus":             lens(gpuList),
		"/gpuDriverVersion": lens(driverVersion),
		"/cardMetrics":      lens(loads),
		"/driMapping":       lens(driMapping),
		"/rdma":             lens(rdmaList),
		"/pods":             p.handler(fail, podsAnswer),
		PeersPath:           p.handler(fail, peersAnswer(list)),
		CollectivesPath:     lens(collectiveList),
		FaultsPath:          lens(faultHistory),
		EventsPath:          lens(recentEvents),
		VerdictsPath:        lens(verdicts),
		TasksPath:           lens(driverTasks),
		TopologyPath:        lens(topology),
		FabricPath:          lens(fabricTopology),
		WorkloadsPath:       lens(workloadTable),
		DevicesPath:         lens(deviceList),
		HistoryPath:         lens(history),
		DoctorPath:          lens(doctor),
		FabricPath + ".dot": p.handler(refuse, fabricDOT),
		"/openapi.yaml": plain(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/yaml")
			_, _ = w.Write(description) // the client may have gone
		}),
	}
}

// plain answers GET and HEAD, and errors without an envelope.
func plain(answer http.HandlerFunc) http.HandlerFunc { return reads(fail, answer) }

// reads refuses methods other than GET and HEAD.
func reads(refuse func(http.ResponseWriter, error), answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			refuse(w, errMethod)
			return
		}
		answer(w, r)
	}
}

// fail answers with an error as {"error": …}.
func fail(w http.ResponseWriter, err error) {
	write(w, statusOf(err), map[string]string{"error": err.Error()})
}

// write answers with v as JSON.
func write(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil { // does not happen with the types of this package
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have gone
}
