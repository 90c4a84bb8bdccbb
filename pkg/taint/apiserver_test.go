// SPDX-License-Identifier: Apache-2.0

package taint

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/accelscope/accelscope/pkg/taint/cluster"
)

type object = map[string]any

// apiserver stands in for the API server, as the documentation of its API describes it. TestKubernetes has the real one.
type apiserver struct {
	mu      sync.Mutex
	foreign map[string][]object // conditions of other managers, by node
	own     map[string][]object // applied by accelscope-taint
	rules   map[string]object   // DeviceTaintRules
	slices  []object
	version string // of DeviceTaintRules; empty: not served
	broken  bool
	writes  []string
}

func (a *apiserver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.Header.Get("Authorization") != "Bearer secret" || a.broken {
		reply(w, http.StatusInternalServerError, object{"kind": "Status", "message": "etcd is down"})
		return
	}
	if r.Method != http.MethodGet {
		a.writes = append(a.writes, r.Method+" "+r.URL.Path)
	}
	rules := "/apis/resource.k8s.io/" + a.version + "/devicetaintrules"
	switch path := r.URL.Path; {
	case path == "/api/v1/nodes":
		a.listNodes(w, r)
	case strings.HasPrefix(path, "/api/v1/nodes/") && r.Method == http.MethodPatch:
		a.patch(w, r)
	case path == "/apis/resource.k8s.io":
		reply(w, http.StatusOK, object{"versions": []object{{"version": "v1"}, {"version": "v1alpha3"}}})
	case path == "/apis/resource.k8s.io/v1" || path == "/apis/resource.k8s.io/v1alpha3":
		list := []object{{"name": "resourceslices"}}
		if strings.HasSuffix(path, "/"+a.version) {
			list = append(list, object{"name": "devicetaintrules"}, object{"name": "devicetaintrules/status"})
		}
		reply(w, http.StatusOK, object{"resources": list})
	case path == "/apis/resource.k8s.io/v1/resourceslices":
		reply(w, http.StatusOK, object{"items": a.slices})
	case strings.HasPrefix(path, rules) && a.version != "":
		a.serveRules(w, r, strings.TrimPrefix(path, rules))
	default:
		reply(w, http.StatusNotFound, object{"kind": "Status", "message": "the server could not find the requested resource"})
	}
}

// listNodes returns two nodes per page.
func (a *apiserver) listNodes(w http.ResponseWriter, r *http.Request) {
	names := slices.Sorted(maps.Keys(a.foreign))
	first := 0
	if token := r.FormValue("continue"); token != "" {
		_, _ = fmt.Sscan(token, &first)
	}
	items := []object{}
	for _, name := range names[first:min(first+2, len(names))] {
		items = append(items, object{"metadata": object{"name": name}, "status": object{"conditions": slices.Concat(a.foreign[name], a.own[name])}})
	}
	meta := object{}
	if first+2 < len(names) {
		meta["continue"] = fmt.Sprint(first + 2)
	}
	reply(w, http.StatusOK, object{"metadata": meta, "items": items})
}

// patch applies conditions: a manager's conditions that it no longer applies are removed.
func (a *apiserver) patch(w http.ResponseWriter, r *http.Request) {
	name, status := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/api/v1/nodes/"), "/status")
	if a.foreign[name] == nil {
		reply(w, http.StatusNotFound, object{"message": "nodes " + name + " not found"})
		return
	}
	var body struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
		Status           struct{ Conditions []object }
	}
	err := json.NewDecoder(r.Body).Decode(&body)
	if err != nil || !status || r.Header.Get("Content-Type") != "application/apply-patch+yaml" || r.FormValue("fieldManager") != "accelscope-taint" ||
		r.FormValue("force") != "" || body.APIVersion != "v1" || body.Kind != "Node" || body.Metadata.Name != name {
		reply(w, http.StatusBadRequest, object{"message": fmt.Sprint(err, r.URL, body)})
		return
	}
	a.own[name] = body.Status.Conditions
	reply(w, http.StatusOK, object{})
}

func (a *apiserver) serveRules(w http.ResponseWriter, r *http.Request, name string) {
	name = strings.TrimPrefix(name, "/")
	switch r.Method {
	case http.MethodGet:
		items := []object{}
		for _, rule := range a.rules {
			if label, _ := rule["metadata"].(object)["labels"].(object); label["app.kubernetes.io/managed-by"] == "accelscope-taint" {
				items = append(items, rule)
			}
		}
		if r.FormValue("labelSelector") != "app.kubernetes.io/managed-by=accelscope-taint" {
			reply(w, http.StatusBadRequest, object{"message": "it reads the rules of others"})
			return
		}
		reply(w, http.StatusOK, object{"items": items})
	case http.MethodPost:
		rule := object{}
		_ = json.NewDecoder(r.Body).Decode(&rule)
		meta := rule["metadata"].(object)
		meta["uid"] = fmt.Sprint("uid-", len(a.writes))
		if a.rules[meta["name"].(string)] != nil {
			reply(w, http.StatusConflict, object{"message": "it exists"})
			return
		}
		a.rules[meta["name"].(string)] = rule
		reply(w, http.StatusCreated, rule)
	case http.MethodDelete:
		var options struct{ Preconditions struct{ UID string } }
		_ = json.NewDecoder(r.Body).Decode(&options)
		if a.rules[name] == nil || options.Preconditions.UID != a.rules[name]["metadata"].(object)["uid"] {
			reply(w, http.StatusConflict, object{"message": "another object"})
			return
		}
		delete(a.rules, name)
		reply(w, http.StatusOK, object{"kind": "Status"})
	}
}

func reply(w http.ResponseWriter, status int, body object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// connect returns a connection to the server, with the token and the certificate of a pod.
func (a *apiserver) connect(t *testing.T) *cluster.Cluster {
	t.Helper()
	server := httptest.NewTLSServer(a)
	t.Cleanup(server.Close)
	dir := t.TempDir()
	token, ca := filepath.Join(dir, "token"), filepath.Join(dir, "ca.crt")
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	for path, text := range map[string][]byte{token: []byte("secret\n"), ca: certificate} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c, err := cluster.New(cluster.Options{URL: server.URL, TokenFile: token, CAFile: ca})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
