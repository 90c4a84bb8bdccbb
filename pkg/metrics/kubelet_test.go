// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/expfmt"

	"github.com/accelscope/accelscope/pkg/engine"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/library"
)

// kubeletFacts returns a node that shares GPUs by several methods: 11 of 17 GPUs are allocated, including MIG devices
// and the GPU of a claim.
func kubeletFacts() model.Snapshot {
	given := func(pod, resource string, ids ...string) []model.Allocation {
		var a []model.Allocation
		for _, id := range ids {
			a = append(a, model.Allocation{Namespace: "ml", Pod: pod, Container: "main", Resource: resource, ID: id})
		}
		return a
	}
	s := model.Snapshot{
		Allocations: given("train", "nvidia.com/gpu", "GPU-0", "GPU-1", "GPU-2", "GPU-3"),
		Allocatable: []model.Allocatable{
			{Resource: "nvidia.com/gpu", IDs: []string{"GPU-0", "GPU-1", "GPU-2", "GPU-3", "GPU-4"}},
			{Resource: "nvidia.com/gpu.shared", IDs: []string{"GPU-5::0", "GPU-5::1", "GPU-5::2", "GPU-6::0"}},
			{Resource: "nvidia.com/mig-1g.5gb", IDs: []string{"MIG-a", "MIG-b"}},
			{Resource: "amd.com/gpu", IDs: []string{"0000:c1:00.0", "0000:c2:00.0", "0000:c3:00.0", "0000:c4:00.0"}},
			{Resource: "gpu.intel.com/i915", IDs: []string{"card0-0", "card1-0", "card2-0"}},
			{Resource: "gpu.intel.com/i915_monitoring", IDs: []string{"all"}},
			{Resource: "rdma/hca_shared", IDs: []string{"0", "1", "2"}},
		},
		PodStorage: []model.PodStorage{
			{UID: "1", Namespace: "ml", Pod: "train", UsedBytes: 4096},
			{UID: "2", Namespace: "ml", Pod: "empty", UsedBytes: 0},
			{UID: "3", Namespace: "ml", Pod: "train", UsedBytes: 1}, // recreated under the same name
		},
		NodeStorage: &model.NodeStorage{UsedBytes: 250, AvailableBytes: 700, CapacityBytes: 1000},
	}
	s.Allocations = append(s.Allocations, given("train", "rdma/hca_shared", "0")...)
	s.Allocations = append(s.Allocations, given("a", "nvidia.com/gpu.shared", "GPU-5::0")...)
	s.Allocations = append(s.Allocations, given("b", "nvidia.com/gpu.shared", "GPU-5::2")...)
	s.Allocations = append(s.Allocations, given("c", "nvidia.com/mig-1g.5gb", "MIG-a")...)
	s.Allocations = append(s.Allocations, given("d", "amd.com/gpu", "0000:c1:00.0", "0000:c2:00.0", "0000:c3:00.0")...)
	s.Allocations = append(s.Allocations, given("d", "amd.com/gpu", "0000:c1:00.0")...) // of an init container
	s.Allocations = append(s.Allocations, given("e", "gpu.intel.com/i915", "card0-0")...)
	s.Allocations = append(s.Allocations, given("f", "gpu.intel.com/i915_monitoring", "all")...)
	s.Allocations = append(s.Allocations, model.Allocation{
		Namespace: "ml", Pod: "g", Container: "main", Resource: "gpu.nvidia.com/node7", ID: "gpu-0", Claim: "mine",
	})
	return s
}

const kubeletSeries = `accelscope_kubelet_allocatable_devices{resource="amd.com/gpu"} 4
accelscope_kubelet_allocatable_devices{resource="gpu.intel.com/i915"} 3
accelscope_kubelet_allocatable_devices{resource="gpu.intel.com/i915_monitoring"} 1
accelscope_kubelet_allocatable_devices{resource="nvidia.com/gpu"} 5
accelscope_kubelet_allocatable_devices{resource="nvidia.com/gpu.shared"} 4
accelscope_kubelet_allocatable_devices{resource="nvidia.com/mig-1g.5gb"} 2
accelscope_kubelet_allocatable_devices{resource="rdma/hca_shared"} 3
accelscope_kubelet_allocated_devices{resource="amd.com/gpu"} 3
accelscope_kubelet_allocated_devices{resource="gpu.intel.com/i915"} 1
accelscope_kubelet_allocated_devices{resource="gpu.intel.com/i915_monitoring"} 1
accelscope_kubelet_allocated_devices{resource="gpu.nvidia.com/node7"} 1
accelscope_kubelet_allocated_devices{resource="nvidia.com/gpu"} 4
accelscope_kubelet_allocated_devices{resource="nvidia.com/gpu.shared"} 2
accelscope_kubelet_allocated_devices{resource="nvidia.com/mig-1g.5gb"} 1
accelscope_kubelet_allocated_devices{resource="rdma/hca_shared"} 1
node_ephemeral_storage_available_bytes{node="gpu01"} 700
node_ephemeral_storage_capacity_bytes{node="gpu01"} 1000
node_ephemeral_storage_usage_bytes{node="gpu01"} 250
node_ephemeral_storage_usage_percent{node="gpu01"} 25
node_k8s_gpu_allocation_rate 64.70588235294117
pod_ephemeral_storage_usage_bytes{namespace="ml",node="gpu01",pod="empty"} 0
pod_ephemeral_storage_usage_bytes{namespace="ml",node="gpu01",pod="train"} 4096
`

func kubeletFamilies(t *testing.T, facts model.Snapshot) string {
	t.Helper()
	names := map[string]bool{}
	for _, m := range kubeletMetrics() {
		names[m.name] = true
	}
	var out []string
	synctest.Test(t, func(t *testing.T) {
		c := newCollector(setup{Sources: []engine.Registration{{Source: &fake{name: "kubelet", facts: facts}}}, Node: "gpu01"})
		defer c.Close() //nolint:errcheck // nothing to lose
		families, err := c.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			if !names[f.GetName()] {
				continue
			}
			for line := range strings.Lines(library.Encode(t, append(families[:0:0], f), expfmt.TypeTextPlain)) {
				if !strings.HasPrefix(line, "#") {
					out = append(out, line)
				}
			}
		}
	})
	slices.Sort(out)
	return strings.Join(out, "")
}

func TestKubelet(t *testing.T) {
	if d := cmp.Diff(kubeletSeries, kubeletFamilies(t, kubeletFacts())); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestKubeletKnowsNothing checks that unknown values have no series, not 0.
func TestKubeletKnowsNothing(t *testing.T) {
	noGPU := kubeletFacts().Allocatable[6:] // rdma/hca_shared
	for name, tt := range map[string]struct {
		facts model.Snapshot
		want  string
	}{
		"nothing": {model.Snapshot{}, ""},
		"no allocatable": {
			model.Snapshot{Allocations: kubeletFacts().Allocations[:1]},
			"accelscope_kubelet_allocated_devices{resource=\"nvidia.com/gpu\"} 1\n",
		},
		"no allocations": {
			model.Snapshot{Allocatable: noGPU},
			"accelscope_kubelet_allocatable_devices{resource=\"rdma/hca_shared\"} 3\n",
		},
		"no GPU, none given": {
			model.Snapshot{Allocations: []model.Allocation{}, Allocatable: noGPU},
			"accelscope_kubelet_allocatable_devices{resource=\"rdma/hca_shared\"} 3\n" +
				"accelscope_kubelet_allocated_devices{resource=\"rdma/hca_shared\"} 0\n",
		},
		"idle": {
			model.Snapshot{Allocations: []model.Allocation{}, Allocatable: kubeletFacts().Allocatable[:1]},
			"accelscope_kubelet_allocatable_devices{resource=\"nvidia.com/gpu\"} 5\n" +
				"accelscope_kubelet_allocated_devices{resource=\"nvidia.com/gpu\"} 0\n" +
				"node_k8s_gpu_allocation_rate 0\n",
		},
		"size unknown": {
			model.Snapshot{NodeStorage: &model.NodeStorage{UsedBytes: 1}},
			"node_ephemeral_storage_available_bytes{node=\"gpu01\"} 0\n" +
				"node_ephemeral_storage_capacity_bytes{node=\"gpu01\"} 0\n" +
				"node_ephemeral_storage_usage_bytes{node=\"gpu01\"} 1\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if d := cmp.Diff(tt.want, kubeletFamilies(t, tt.facts)); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}
