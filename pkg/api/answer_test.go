// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/identity"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/openapi"
)

var loaded = struct {
	sync.Once
	openapi.Description
}{}

// described is openapi.yaml.
func described(t *testing.T) openapi.Description {
	t.Helper()
	loaded.Do(func() { loaded.Description = openapi.Load(t, description) })
	return loaded.Description
}

// request sends a request as a client does, and checks the answer against openapi.yaml.
func request(t *testing.T, facts Facts, list ListPeers, method, target string) (status int, body string) {
	t.Helper()
	mux := http.NewServeMux()
	for path, h := range Handlers(facts, list, NewSlots()) {
		mux.Handle(path, h)
	}
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), method, target, nil))
	path, _, _ := strings.Cut(target, "?")
	if err := described(t).Check(t, path, answer.Code, answer.Header(), answer.Body.Bytes()); err != nil {
		t.Errorf("%s %s is not as openapi.yaml describes it: %v", method, target, err)
	}
	if allow := answer.Header().Get("Allow"); (answer.Code == http.StatusMethodNotAllowed) != (allow == "GET, HEAD") {
		t.Errorf("%s %s: %d, Allow: %q", method, target, answer.Code, allow)
	}
	return answer.Code, answer.Body.String()
}

// attributed returns the shares of the facts of a first refresh.
func attributed(s model.Snapshot) attribution.Attribution {
	var owners identity.Table
	var counters attribution.Counters
	owners.Resolve(&s, nil)
	counters.Credit(&s, &owners, nil)
	return attribution.Attribute(&s, &owners, &counters, func(*attribution.Attribution) {})
}

// knows returns the facts of a sensor that has all its sources in one state.
func knows(s model.Snapshot, state model.State) Facts {
	k := Known{Facts: s, Shares: attributed(s)}
	for _, source := range []string{"rdma", "drm", "nvidia", "amdgpu", "intel"} {
		k.States = append(k.States, model.SourceState{Source: source, State: state, Reason: "of a reason"})
	}
	return func() Known { return k }
}

// seeds are the answers that the Primus Lens node exporter documents, by path.
var seeds = map[string]string{
	"/gpus": `{"code":0,"data":[{"gpu":0,"asic":{"market_name":"AMD Instinct MI300X","device_id":"0x74a1",
		"asic_serial":"0x123456789"},"bus":{"bdf":"0000:c1:00.0"},"dri_device":{"card":"/dev/dri/card0",
		"render":"/dev/dri/renderD128","pci_addr":"0000:c1:00.0"}}],"message":"success"}`,
	"/gpuDriverVersion": `{"code":0,"data":"6.2.4","message":"success"}`,
	"/cardMetrics":      `{"code":0,"data":[{"gpu":0,"gpu_use_percent":75.5,"memory_use_percent":60.2}],"message":"success"}`,
	"/driMapping": `{"code":0,"data":{"/dev/dri/card0":{"card":"/dev/dri/card0","render":"/dev/dri/renderD128",
		"pci_addr":"0000:c1:00.0","card_id":0}},"message":"success"}`,
	"/rdma": `{"code":0,"data":[{"if_index":0,"if_name":"mlx5_0","node_guid":"98:03:9b:ff:fe:12:34:56",
		"sys_image_guid":"98:03:9b:ff:fe:12:34:56","port_guid":"98:03:9b:12:34:56:78:90","link_layer":"InfiniBand"}],
		"message":"success"}`,
	"/pods": `[{"id":"abc123...","pod_name":"gpu-workload-pod","pod_namespace":"default","pod_uuid":"uuid-123","devices":{
		"gpu":[{"name":"AMD Instinct MI300X","id":0,"path":"/dev/dri/card0","kind":"GPU","uuid":"0x74a1",
		"serial":"0x123456789","slot":"0000:c1:00.0"}],"infiniband":[{"name":"mlx5_0","id":0,
		"path":"/dev/infiniband/uverbs0","kind":"RDMA","uuid":"98:03:9b:ff:fe:12:34:56"}]}}]`,
}

// seedNode is the node of those answers. The UUID of its GPU is the device id.
var seedNode = model.Snapshot{
	HCAs: []model.HCA{{
		Name: "mlx5_0", NodeGUID: "0x98039bfffe123456", SysImageGUID: "0x98039bfffe123456", CharDevice: "uverbs0",
		Ports: []model.Port{{Number: 1, PortGUID: "0x98039b1234567890", LinkLayer: "InfiniBand"}},
	}},
	GPUs: []model.GPU{{
		Vendor: model.AMD, ID: "0", UUID: "0x74a1", Name: "AMD Instinct MI300X", Serial: "0x123456789",
		PCIAddress: "0000:c1:00.0", PCIDevice: "0x74a1", Nodes: []string{"/dev/dri/card0", "/dev/dri/renderD128"},
		Utilization: model.Some(0.755), Memory: model.VideoMemory{Used: model.Some(602), Total: model.Some(1000)},
	}},
	GPUDrivers: []model.GPUDriver{{Vendor: model.AMD, Version: "6.2.4"}},
	DRI:        []model.DRIDevice{{Card: "/dev/dri/card0", Render: "/dev/dri/renderD128", PCIAddress: "0000:c1:00.0", Driver: "amdgpu"}},
	Containers: []model.Container{{
		ID: "abc123...", Name: "worker", Pod: "gpu-workload-pod", Namespace: "default", PodUID: "uuid-123",
		Status: model.ContainerRunning, Devices: []string{"/dev/dri/card0", "/dev/infiniband/uverbs0"},
	}},
}

// TestSeed: every answer has the fields of the seed with the same types and values, and may have more fields.
func TestSeed(t *testing.T) {
	for path, seed := range seeds {
		status, body := request(t, knows(seedNode, model.StateOK), nil, http.MethodGet, path)
		var want, got any
		if err := errors.Join(json.Unmarshal([]byte(seed), &want), json.Unmarshal([]byte(body), &got)); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, reduce(got, want)); d != "" || status != http.StatusOK {
			t.Errorf("%s: %d (-want +got):\n%s\n%s", path, status, d, body)
		}
	}
}

// reduce removes the fields of got that want does not have.
func reduce(got, want any) any {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return got
		}
		out := map[string]any{}
		for k := range w {
			if v, ok := g[k]; ok {
				out[k] = reduce(v, w[k])
			}
		}
		return out
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return got
		}
		for i := range w {
			g[i] = reduce(g[i], w[i])
		}
	}
	return got
}

// TestStates: a node without devices gets an empty answer; an unknown number of devices is an error.
func TestStates(t *testing.T) {
	lists := map[string]string{"/gpus": "[]", "/cardMetrics": "[]", "/driMapping": "{}", "/rdma": "[]"}
	source := map[string]string{"/gpus": "amdgpu", "/cardMetrics": "amdgpu", "/driMapping": "drm", "/rdma": "rdma", "/gpuDriverVersion": "amdgpu"}
	for path, empty := range lists {
		status, body := request(t, knows(model.Snapshot{}, model.StateAbsent), nil, http.MethodGet, path)
		if want := `{"code":0,"data":` + empty + `,"message":"success"}`; status != http.StatusOK || body != want {
			t.Errorf("%s of nothing: %d %s", path, status, body)
		}
	}
	none := `{"code":404,"data":null,"message":"there is no GPU driver"}`
	if status, body := request(t, knows(model.Snapshot{}, model.StateAbsent), nil, http.MethodGet, "/gpuDriverVersion"); status != 404 || body != none {
		t.Errorf("no driver: %d %s", status, body)
	}
	for _, path := range slices.Collect(maps.Keys(source)) {
		for state, want := range map[model.State]string{
			model.StateFailed: source[path] + " is failed: of a reason", model.StateStuck: " is stuck: of a reason",
			model.StateUnsupported: " is unsupported: of a reason", model.StateOK: "has not told it yet",
		} {
			status, body := request(t, knows(model.Snapshot{}, state), nil, http.MethodGet, path)
			if status != http.StatusServiceUnavailable || !strings.HasPrefix(body, `{"code":503,"data":null,`) || !strings.Contains(body, want) {
				t.Errorf("%s, all sources %s: %d %s", path, state, status, body)
			}
		}
		broken := func() Known { return Known{Err: errors.New("panic")} }
		if status, body := request(t, broken, nil, http.MethodGet, path); status != 500 || !strings.Contains(body, "panic") {
			t.Errorf("%s, a refresh that failed: %d %s", path, status, body)
		}
		off := func() Known { return Known{} }
		if status, body := request(t, off, nil, http.MethodGet, path); status != 503 || !strings.Contains(body, "switched off") {
			t.Errorf("%s, no sources: %d %s", path, status, body)
		}
		status, body := request(t, knows(seedNode, model.StateOK), nil, http.MethodPost, path)
		if status != http.StatusMethodNotAllowed || body != `{"code":405,"data":null,"message":"only GET and HEAD are answered"}` {
			t.Errorf("POST %s: %d %s", path, status, body)
		}
		if status, _ := request(t, knows(seedNode, model.StateOK), nil, http.MethodHead, path); status != http.StatusOK {
			t.Errorf("HEAD %s: %d", path, status)
		}
	}
	for _, path := range []string{"/pods", "/api/v1/peers", "/openapi.yaml"} {
		status, body := request(t, nil, nil, http.MethodDelete, path)
		if status != http.StatusMethodNotAllowed || body != `{"error":"only GET and HEAD are answered"}` {
			t.Errorf("DELETE %s: %d %s", path, status, body)
		}
	}
}

// TestFailedSourceDropsItsVendor: a failed source drops only the GPUs of its vendor, and the message reports this.
func TestFailedSourceDropsItsVendor(t *testing.T) {
	k := Known{Facts: seedNode, States: []model.SourceState{
		{Source: "nvidia", State: model.StateFailed, Reason: "no\nlibrary"}, {Source: "amdgpu", State: model.StateOK},
	}}
	facts := func() Known { return k }
	const partial = `"message":"partial: nvidia is failed: no\nlibrary"}`
	for _, path := range []string{"/gpus", "/cardMetrics"} {
		status, body := request(t, facts, nil, http.MethodGet, path)
		if status != http.StatusOK || !strings.HasSuffix(body, partial) || !strings.HasPrefix(body, `{"code":0,"data":[{"gpu":0,`) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	// The version of AMD's driver is a complete answer.
	for query, want := range map[string]string{
		"":               `200 {"code":0,"data":"6.2.4","message":"success"}`,
		"?vendor=amd":    `200 {"code":0,"data":"6.2.4","message":"success"}`,
		"?vendor=nvidia": `503 {"code":503,"data":null,"message":"nvidia is failed: no\nlibrary"}`,
		"?vendor=other":  `400 {"code":400,"data":null,"message":"vendor is \"other\", and has to be amd or nvidia or intel"}`,
	} {
		status, body := request(t, facts, nil, http.MethodGet, "/gpuDriverVersion"+query)
		if got := fmt.Sprint(status, " ", body); got != want {
			t.Errorf("%s: %s, want %s", query, got, want)
		}
	}
}

// TestDescribed: openapi.yaml describes every request (pkg/sensor checks the opposite), and is served unchanged.
func TestDescribed(t *testing.T) {
	paths := described(t).Paths()
	for path := range Handlers(nil, nil, nil) {
		if !slices.Contains(paths, path) {
			t.Errorf("%s is not described", path)
		}
	}
	if _, body := request(t, nil, nil, http.MethodGet, "/openapi.yaml"); body != string(description) {
		t.Error("/openapi.yaml is not the description")
	}
}

// TestMutants: an answer with an additional field, a missing field or a field of another type does not match
// openapi.yaml. Otherwise the tests above would prove nothing.
func TestMutants(t *testing.T) {
	d := described(t)
	json200 := http.Header{"Content-Type": {"application/json"}}
	answers := map[string]string{}
	for path := range seeds {
		_, answers[path] = request(t, knows(seedNode, model.StateOK), nil, http.MethodGet, path)
	}
	_, answers["/api/v1/peers"] = request(t, knows(model.Snapshot{}, model.StateOK), func() ([]attribution.PeerShare, error) {
		return []attribution.PeerShare{{Peer: model.Peer{Device: "mlx5_0", QPN: 17}}}, nil
	}, http.MethodGet, "/api/v1/peers")
	_, answers["/api/v1/fabric"] = request(t, fabricState(aFabric(), model.StateOK, ""), nil, http.MethodGet, "/api/v1/fabric")
	const failure = `{"code":503,"data":null,"message":"x"}`
	for path, body := range answers {
		killed := 0
		for what, mutant := range mutants(t, body) {
			if d.Check(t, path, http.StatusOK, json200, mutant) == nil {
				t.Errorf("%s, %s: the description accepts %s", path, what, mutant)
			}
			killed++
		}
		if killed < 4 {
			t.Errorf("%s: %d mutants of %s", path, killed, body)
		}
		if path == "/pods" || path == "/api/v1/peers" {
			continue
		}
		for what, mutant := range mutants(t, failure) {
			if d.Check(t, path, http.StatusServiceUnavailable, json200, mutant) == nil {
				t.Errorf("%s, %s: the description accepts the failure %s", path, what, mutant)
			}
		}
		if d.Check(t, path, http.StatusOK, json200, []byte(failure)) == nil || d.Check(t, path, 503, json200, []byte(body)) == nil {
			t.Errorf("%s: the description accepts one of an error and a success for the other", path)
		}
		if d.Check(t, path, http.StatusTeapot, json200, []byte(failure)) == nil {
			t.Errorf("%s: the description accepts any status", path)
		}
	}
}

// mutants returns variants of a JSON text with one error each.
func mutants(t *testing.T, body string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	var root any
	if err := json.Unmarshal([]byte(body), &root); err != nil {
		t.Fatal(err)
	}
	keep := func(what string) {
		b, err := json.Marshal(root)
		if err != nil {
			t.Fatal(err)
		}
		out[what] = b
	}
	var walk func(at string, v any, set func(any))
	walk = func(at string, v any, set func(any)) {
		set(map[string]any{"mutant": true})
		keep(at + " of another type")
		set(v)
		switch v := v.(type) {
		case map[string]any:
			named := !strings.HasSuffix(at, ".counters") // the keys of counters are not fields
			if named {
				v["mutant"] = 1
				keep(at + " with a field more")
				delete(v, "mutant")
			}
			for _, k := range slices.Sorted(maps.Keys(v)) {
				if old := v[k]; named && !strings.HasPrefix(k, "/") { // a key of /driMapping is not a field
					delete(v, k)
					keep(at + "." + k + " left out")
					v[k] = old
				}
				walk(at+"."+k, v[k], func(x any) { v[k] = x })
			}
		case []any:
			for i := range v {
				walk(fmt.Sprint(at, "[", i, "]"), v[i], func(x any) { v[i] = x })
			}
		}
	}
	walk("it", root, func(x any) { root = x })
	return out
}
