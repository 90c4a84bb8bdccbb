// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/fleet"
	"github.com/accelscope/accelscope/pkg/web/webtest"
	"github.com/accelscope/accelscope/tests/tools/openapi"
)

// TestFleetJSON: the answers match the OpenAPI description, which has all requests for data, and the state equals the page's state.
func TestFleetJSON(t *testing.T) {
	described := openapi.Load(t, descriptionText)
	h, _, _ := jobSite(connected(2))
	reported := site(Options{Reader: &fakeFleet{state: crowd(2), report: waiting()}})
	unanswered := site(Options{Reader: &fakeFleet{state: &fleet.State{Problems: []string{"all queries: refused"}}}})
	job := "?" + jobQuery(crowd(2).Jobs[0].JobName)
	for _, c := range []struct {
		h              http.Handler
		method, target string
		status         int
	}{
		{h, http.MethodGet, statePath, http.StatusOK},
		{h, http.MethodPost, statePath, http.StatusMethodNotAllowed},
		{unanswered, http.MethodGet, statePath, http.StatusServiceUnavailable},
		{h, http.MethodGet, matrixPath + job, http.StatusOK},
		{h, http.MethodGet, matrixPath + "?name=none", http.StatusNotFound},
		{h, http.MethodGet, jobPath + job, http.StatusOK},
		{reported, http.MethodGet, jobPath + job, http.StatusOK},
		{h, http.MethodGet, jobPath + "?name=none", http.StatusNotFound},
		{unanswered, http.MethodGet, jobPath + job, http.StatusServiceUnavailable},
		{h, http.MethodGet, descriptionPath, http.StatusOK},
	} {
		w := httptest.NewRecorder()
		c.h.ServeHTTP(w, httptest.NewRequest(c.method, c.target, nil))
		path, _, _ := strings.Cut(c.target, "?")
		if w.Code != c.status {
			t.Errorf("%s %s: %d, want %d", c.method, c.target, w.Code, c.status)
		}
		if err := described.Check(t, path, w.Code, w.Header(), w.Body.Bytes()); err != nil {
			t.Errorf("%s %s is not as it is described: %v", c.method, c.target, err)
		}
	}
	var data []string
	for pattern := range Handlers(Options{Reader: &fakeFleet{state: crowd(1)}, Matrix: &fakeMatrix{}}) {
		if path := strings.TrimPrefix(pattern, "GET "); strings.HasPrefix(path, "/api/") || path == descriptionPath {
			data = append(data, path)
		}
	}
	slices.Sort(data)
	if diff := cmp.Diff(described.Paths(), data); diff != "" {
		t.Errorf("described, and there:\n%s", diff)
	}

	state := crowd(3)
	var got fleet.State
	_, body := webtest.Get(t, site(Options{Reader: &fakeFleet{state: state}}), statePath)
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*state, got); diff != "" {
		t.Errorf("state:\n%s", diff)
	}
}

// TestFleetAttempts: an attempt that Prometheus did not answer is shown with its problems, although the figures are from an earlier attempt.
func TestFleetAttempts(t *testing.T) {
	state := crowd(1)
	state.Tried = state.At
	f := &fakeFleet{state: state}
	h := site(Options{Reader: f})
	for _, target := range []string{"/", statePath} {
		if _, body := webtest.Get(t, h, target); strings.Contains(body, "no answers since") {
			t.Fatalf("%s: %s", target, body)
		}
	}
	later := *state
	later.Tried, later.Problems = state.At.Add(time.Minute), []string{"no answers since 08:00:00 UTC"}
	f.state = &later
	for _, target := range []string{"/", statePath} {
		if _, body := webtest.Get(t, h, target); !strings.Contains(body, "no answers since 08:00:00 UTC") {
			t.Errorf("%s does not show the problem", target)
		}
	}
}
