// SPDX-License-Identifier: Apache-2.0

package page

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/web"
)

const (
	// statePath answers with all that the first page shows, and more rows.
	statePath = "/api/v1/fleet"
	// matrixPath answers with the matrix of a job: ?namespace=, ?kind= and ?name=.
	matrixPath = "/api/v1/matrix"
	// jobPath answers with what is known about a job: ?namespace=, ?kind= and ?name=.
	jobPath = "/api/v1/job"
	// descriptionPath answers with the OpenAPI description of all.
	descriptionPath = "/openapi.yaml"
)

//go:embed openapi.yaml
var descriptionText []byte

// failure is the answer of a request that has no other.
type failure struct {
	Error string `json:"error"`
}

// stateJSON answers with the state of all nodes. Without any answer of Prometheus, only its problems are known.
func stateJSON(w http.ResponseWriter, _ *http.Request, s *fleet.State, _ *asked) {
	status := http.StatusOK
	if s.Empty() {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, s)
}

// jobJSON answers with what is known about a job.
func jobJSON(w http.ResponseWriter, _ *http.Request, s *fleet.State, a *asked) {
	writeJob(w, s, a, func() any { return a.report })
}

// matrixJSON answers with the matrix of a job.
func matrixJSON(w http.ResponseWriter, _ *http.Request, s *fleet.State, a *asked) {
	writeJob(w, s, a, func() any { return a.matrix })
}

// writeJob answers a request for a job.
func writeJob(w http.ResponseWriter, s *fleet.State, a *asked, answer func() any) {
	if !a.job {
		status := http.StatusNotFound
		if s.Jobs == nil {
			status = http.StatusServiceUnavailable
		}
		writeJSON(w, status, failure{lacking(s.Jobs != nil, "such job")})
		return
	}
	if a.unanswered() {
		writeJSON(w, http.StatusServiceUnavailable, failure{strings.Join(a.problems, "; ")})
		return
	}
	writeJSON(w, http.StatusOK, answer())
}

func writeJSON(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	web.Secure(w.Header())
	body, err := json.Marshal(answer)
	if err != nil {
		web.Refuse(w, fmt.Errorf("encoding an answer: %w", err))
		return
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // into the memory of the answer
}

// description answers with the OpenAPI description.
func (o Options) description(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	web.Secure(w.Header())
	_, _ = w.Write(descriptionText) // the client may have gone
}
