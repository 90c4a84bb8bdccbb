// SPDX-License-Identifier: Apache-2.0

package sensor

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"

	"github.com/accelscope/accelscope/pkg/api"
	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/metrics"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/overview"
)

// placed is a source with a workload that has a GPU of one NUMA node and queue pairs on the HCA of the other.
type placed struct{}

func (placed) Name() string { return "rdma" }
func (placed) Close() error { return nil }

func (placed) Read(context.Context) (model.Snapshot, error) {
	hca := func(name, address string) model.HCA {
		port := model.Port{Number: 1, State: "ACTIVE", LinkLayer: "InfiniBand", RateBits: 400e9}
		return model.HCA{Name: name, PCIAddress: address, Ports: []model.Port{port}}
	}
	function := func(numa string, path ...string) model.PCIFunction {
		return model.PCIFunction{Address: path[len(path)-1], NUMANode: numa, Path: path}
	}
	return model.Snapshot{
		HCAs: []model.HCA{hca("mlx5_0", "0000:13:00.0"), hca("mlx5_1", "0000:93:00.0")},
		GPUs: []model.GPU{{Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0", PCIAddress: "0000:14:00.0"}},
		PCI: []model.PCIFunction{
			function("0", "pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:00.0", "0000:13:00.0"),
			function("0", "pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:01.0", "0000:14:00.0"),
			function("1", "pci0000:90", "0000:90:01.0", "0000:93:00.0"),
		},
		Cgroups:      []model.Cgroup{{ID: 101, Path: "/system.slice/train.service", Workload: "unit:train.service"}},
		GPUProcesses: []model.GPUProcess{{GPU: "GPU-0", PID: 7, Cgroup: 101, Memory: model.Some(1 << 30)}},
		Objects:      []model.Objects{{Cgroup: 101, Device: "mlx5_1", Type: model.QP, Current: 4}},
	}, nil
}

// TestPlacementOnce requests the metric and the answer of one refresh, which was judged: both have the placement of that refresh, which is
// still the value that judging has read (the judge gets nothing else), and a value is computed once (TestOnce of pkg/placement).
func TestPlacementOnce(t *testing.T) {
	s := &Sensor{
		engine:   startEngine(t, engine.Options{Reuse: time.Hour}, engine.Registration{Source: placed{}}),
		recorder: overview.NewRecorder(true),
	}
	s.metrics = metrics.New(s.engine, metrics.Options{})
	routes, _ := restServer(t, s, s.encode, true)
	s.peers = func() ([]model.Peer, error) { return nil, nil }
	known := s.known()
	placed := known.Placement.Workloads()
	if len(placed) != 1 {
		t.Fatalf("%+v", placed)
	}
	text, err := s.encode(expfmt.NewFormat(expfmt.TypeTextPlain), false)
	if err != nil || !strings.Contains(string(text), `,problem="other_numa_node"`) {
		t.Errorf("metric: %v\n%s", err, text)
	}
	answer := httptest.NewRecorder()
	routes[api.TopologyPath].ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, api.TopologyPath, nil))
	if !strings.Contains(answer.Body.String(), `"problem":"other_numa_node"`) {
		t.Errorf("answer: %s", answer.Body)
	}
	if last := s.engine.Last(); last.Placement != known.Placement || &last.Placement.Workloads()[0] != &placed[0] {
		t.Error("the placement was computed again")
	}
}
