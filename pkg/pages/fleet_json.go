// SPDX-License-Identifier: Apache-2.0

package pages

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/fleet"
)

const (
	// statePath answers with all that the first page shows, and more rows.
	statePath = "/api/v1/fleet"
	// matrixPath answers with the matrix of a job: ?namespace=, ?kind= and ?name=.
	matrixPath = "/api/v1/matrix"
	// descriptionPath answers with the OpenAPI description of both.
	descriptionPath = "/openapi.yaml"
)

//go:embed fleet_openapi.yaml
var fleetDescription []byte

// failure is the answer of a request that has no other.
type failure struct {
	Error string `json:"error"`
}

// stateJSON answers with the state of all nodes. Without any answer of Prometheus, only its problems are known.
func (o FleetOptions) stateJSON(w http.ResponseWriter, _ *http.Request, _ *api.Known) {
	s := o.Reader.Read()
	status := http.StatusOK
	if s.Empty() {
		status = http.StatusServiceUnavailable
	}
	writeJSON(w, status, s)
}

// matrixJSON answers with the matrix of a job.
func (o FleetOptions) matrixJSON(w http.ResponseWriter, r *http.Request, _ *api.Known) {
	name, s := jobOf(r), o.Reader.Read()
	if !slices.ContainsFunc(s.Jobs, func(j fleet.Job) bool { return j.JobName == name }) {
		status := http.StatusNotFound
		if s.Jobs == nil {
			status = http.StatusServiceUnavailable
		}
		writeJSON(w, status, failure{lacking(s.Jobs != nil, "such job")})
		return
	}
	members, problems := o.Reader.Members(name)
	if len(members) == 0 && len(problems) > 0 {
		writeJSON(w, http.StatusServiceUnavailable, failure{strings.Join(problems, "; ")})
		return
	}
	writeJSON(w, http.StatusOK, o.Matrix.Job(name, members))
}

func writeJSON(w http.ResponseWriter, status int, answer any) {
	w.Header().Set("Content-Type", "application/json")
	secure(w.Header())
	body, err := json.Marshal(answer)
	if err != nil {
		refuse(w, fmt.Errorf("encoding an answer: %w", err))
		return
	}
	w.WriteHeader(status)
	_, _ = w.Write(body) // into the memory of the answer
}

// description answers with the OpenAPI description.
func (o FleetOptions) description(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/yaml")
	secure(w.Header())
	_, _ = w.Write(fleetDescription) // the client may have gone
}
