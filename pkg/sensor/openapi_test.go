// SPDX-License-Identifier: Apache-2.0

package sensor

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"
	"go.uber.org/zap"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/config"
	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/httpserver"
	"github.com/accelscope/accelscope/pkg/metrics"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/overview"
	"github.com/accelscope/accelscope/tests/tools/openapi"
)

// source is a source with fixed facts.
type source struct {
	name  string
	facts model.Snapshot
	err   error
}

func (s source) Name() string                                 { return s.name }
func (s source) Read(context.Context) (model.Snapshot, error) { return s.facts, s.err }
func (s source) Close() error                                 { return nil }

// restNode returns a sensor with fake sources. The source of AMD's GPUs fails with amd.
func restNode(t *testing.T, amd error) *Sensor {
	t.Helper()
	var sources []engine.Registration
	for _, s := range []source{
		{"rdma", model.Snapshot{HCAs: []model.HCA{{Name: "mlx5_0", NodeGUID: "0x98039bfffe123456", Ports: []model.Port{{
			Number: 1, GIDs: []model.GID{{Index: 3, Type: model.GIDRoCEv2, Address: netip.MustParseAddr("::ffff:10.0.0.1"), Netdev: "eth0"}},
			LinkLayer: "InfiniBand", LID: "0x1f",
		}}}}}, nil},
		{"pci", model.Snapshot{PCI: []model.PCIFunction{{
			Address: "0000:c1:00.0", NUMANode: "1", Path: []string{"pci0000:c0", "0000:c0:01.0", "0000:c1:00.0"},
			PCIEnd: model.PCIEnd{Link: model.PCILink{Speed: 32e9, MaxSpeed: 32e9, Width: 16, MaxWidth: 16}},
		}}}, nil},
		{"nvidia", model.Snapshot{
			GPUs: []model.GPU{{
				Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0", Name: "H100", PCIAddress: "0000:c1:00.0", Nodes: []string{"/dev/nvidia0"},
			}},
			GPUDrivers: []model.GPUDriver{{Vendor: model.NVIDIA, Version: "570.1"}},
		}, nil},
		{"amdgpu", model.Snapshot{}, amd},
		{"drm", model.Snapshot{DRI: []model.DRIDevice{{Card: "/dev/dri/card0"}}}, nil},
		{"runtime", model.Snapshot{Containers: []model.Container{{
			ID: "c1", Runtime: "docker", Name: "x", Status: model.ContainerRunning, GPURequests: []string{"all"},
		}}}, nil},
		{"fabric", model.Snapshot{Fabric: &model.Fabric{Nodes: []model.FabricNode{
			{GUID: "0x0000000000000001", Kind: model.FabricSwitch, Name: "leaf", Ports: []model.FabricPort{{
				Number: 1, Width: 4, Speed: "NDR", Peer: &model.FabricPeer{GUID: "0x0000000000000001", Port: 1},
				Counters: []model.Counter{{Name: "PortXmitData", Value: 1}},
			}}},
		}}}, nil},
		{"kernellog", model.Snapshot{
			Faults: []model.Series[model.FaultKey, model.Count]{}, FaultTotals: []model.FaultTotal{},
			FaultHistory: []model.Fault{{ID: 1, FaultKey: model.FaultKey{Driver: model.DriverNVIDIA, PCIAddress: "0000:c1:00.0", Code: "31"}}},
		}, nil},
		{"events", model.Snapshot{Events: &model.EventStats{Recent: []model.RecentEvent{
			{Time: time.Unix(1700000000, 0), Name: "device.link_flap", Text: "eth0 of mlx5_0 lost its carrier once", Device: "mlx5_0"},
		}}}, nil},
		{"collective", model.Snapshot{
			Clock: &model.Clock{Synchronized: true, EstimatedError: time.Millisecond, MaximumError: time.Second},
			Communicators: []model.Communicator{{
				Cgroup: 7, Library: "nccl", Key: "5b0c4be9f3c1a2d7", Rank: "0", Ranks: 2, Numbered: true, Launched: 1,
				Kept: []model.KeptLaunch{{Number: 1, Time: time.Unix(1700000000, 0)}},
			}},
		}, nil},
		{"gpudriver", model.Snapshot{
			DriverTasks: []model.DriverTask{{Driver: "nvidia", Request: 0xc020462a, PID: 7, TID: 8, Process: "train", Function: "nvidia_ioctl"}},
		}, nil},
	} {
		sources = append(sources, engine.Registration{Source: s})
	}
	s := &Sensor{engine: startEngine(t, engine.Options{}, sources...), recorder: overview.NewRecorder(true)}
	s.metrics = metrics.New(s.engine, metrics.Options{})
	s.peers = func() ([]model.Peer, error) {
		return []model.Peer{{Cgroup: 7, Device: "mlx5_0", QPN: 1, Type: "RC"}}, nil
	}
	return s
}

// restServer serves the node like the program, including the description.
func restServer(t *testing.T, s *Sensor, encode EncodeFunc, ready bool) (map[string]http.Handler, openapi.Description) {
	t.Helper()
	routes, err := newRoutes(config.WebFlags{TelemetryPath: "/metrics", Pages: true}, backend{
		encode, s.known, s.peerShares, func() (bool, []string) { return ready, nil }, "",
	}, httpserver.NewClients(zap.NewNop()), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	answer := httptest.NewRecorder()
	routes["/openapi.yaml"].ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/openapi.yaml", nil))
	return routes, openapi.Load(t, answer.Body.Bytes())
}

// TestOpenAPI compares all that the program serves with its description: the paths, and an answer of each kind.
func TestOpenAPI(t *testing.T) {
	sick := errors.New("the driver is gone")
	for name, tt := range map[string]struct {
		amd    error
		peers  error
		encode EncodeFunc
		method string
		status map[string]int // where it differs from the status of ""
	}{
		"all is well":    {model.ErrAbsent, nil, nil, http.MethodGet, map[string]int{"": 200}},
		"another method": {model.ErrAbsent, nil, nil, http.MethodPut, map[string]int{"": 405}},
		"failures": {
			sick, sick, func(expfmt.Format, bool, ...string) ([]byte, error) { return nil, sick }, http.MethodGet,
			map[string]int{"": 200, "/gpuDriverVersion": 503, api.PeersPath: 503, "/metrics": 500, "/readyz": 503},
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := restNode(t, tt.amd)
			if tt.peers != nil {
				s.peers = noPeers(tt.peers)
			}
			if tt.encode == nil {
				tt.encode = s.metrics.Encode
			}
			routes, description := restServer(t, s, tt.encode, tt.peers == nil)
			mux := http.NewServeMux()
			var paths []string
			for pattern, h := range routes {
				mux.Handle(pattern, h)
				paths = append(paths, strings.TrimSuffix(strings.TrimPrefix(pattern, "GET "), "{$}"))
			}
			slices.Sort(paths)
			if d := cmp.Diff(description.Paths(), paths); d != "" {
				t.Fatalf("described and served are not the same (-described +served):\n%s", d)
			}
			for _, path := range paths {
				answer := httptest.NewRecorder()
				mux.ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), tt.method, path, nil))
				want, ok := tt.status[path]
				if !ok {
					want = tt.status[""]
				}
				if answer.Code != want {
					t.Errorf("%s %s: %d, want %d\n%s", tt.method, path, answer.Code, want, answer.Body)
				}
				if err := description.Check(t, path, answer.Code, answer.Header(), answer.Body.Bytes()); err != nil {
					t.Errorf("%s %s: %v", tt.method, path, err)
				}
			}
		})
	}
}

// The described formats of the metrics are those that are served.
func TestOpenAPIMetrics(t *testing.T) {
	s := restNode(t, model.ErrAbsent)
	routes, description := restServer(t, s, s.metrics.Encode, true)
	for _, accept := range []string{
		"text/plain", "application/openmetrics-text;version=1.0.0",
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited",
	} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
		r.Header.Set("Accept", accept)
		answer := httptest.NewRecorder()
		routes["GET /metrics"].ServeHTTP(answer, r)
		want, _, _ := strings.Cut(accept, ";")
		if got := answer.Header().Get("Content-Type"); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s", accept, got)
		}
		if err := description.Check(t, "/metrics", answer.Code, answer.Header(), answer.Body.Bytes()); err != nil {
			t.Errorf("%s: %v", accept, err)
		}
	}
}

// TestRESTMatchesMetrics: the REST API returns the same source states as the metrics, and the owners of assigned devices.
func TestRESTMatchesMetrics(t *testing.T) {
	k := restNode(t, model.ErrUnsupported).known()
	states := map[string]model.SourceState{}
	for _, st := range k.States {
		states[st.Source] = st
	}
	want := map[string]model.State{
		"rdma": model.StateOK, "nvidia": model.StateOK, "amdgpu": model.StateUnsupported, "drm": model.StateOK, "runtime": model.StateOK,
		"fabric": model.StateOK, "gpudriver": model.StateOK, "kernellog": model.StateOK, "pci": model.StateOK,
		"events": model.StateOK, "collective": model.StateOK,
	}
	got := map[string]model.State{}
	for name := range maps.Keys(states) {
		got[name] = states[name].State
	}
	if d := cmp.Diff(want, got); d != "" || states["amdgpu"].Reason != "unsupported" {
		t.Errorf("%s%+v", d, states)
	}
	if !slices.ContainsFunc(k.Shares.Assigned, func(d attribution.DeviceShare) bool { return d.Device == "GPU-0" }) {
		t.Errorf("%+v", k.Shares.Assigned)
	}
}
