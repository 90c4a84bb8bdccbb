// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"fmt"
	"slices"
	"testing"

	"github.com/accelscope/accelscope/pkg/model"
)

// TestSharedNodes checks that the node of a GPU instance belongs to all its compute instances
// and assigns none of them.
func TestSharedNodes(t *testing.T) {
	part := func(uuid, own string) model.GPU {
		return model.GPU{
			Vendor: model.NVIDIA, UUID: uuid, Parent: "GPU-0", Nodes: []string{"/dev/nvidia-caps/nvidia-cap21", own},
		}
	}
	a := attribute(facts{Snapshot: model.Snapshot{
		GPUs: []model.GPU{
			{Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0", Nodes: []string{"/dev/nvidia0"}},
			part("MIG-a", "/dev/nvidia-caps/nvidia-cap22"), part("MIG-b", "/dev/nvidia-caps/nvidia-cap23"),
		},
		Containers: []model.Container{{
			ID: "c", Runtime: "docker", Name: "second",
			Devices: []string{"/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap23"},
		}},
	}})
	if got := fmt.Sprint(gpuRows(a)); got != "[MIG-b docker:second:, allocated]" {
		t.Error(got)
	}
}

// TestPartitions checks the names of AMD's plugin: the PCI address for the first partition,
// and partition modes in the resource.
func TestPartitions(t *testing.T) {
	part := func(n int) model.GPU {
		return model.GPU{
			Vendor: model.AMD, UUID: fmt.Sprint("aa:", n), Parent: "aa", PCIAddress: "0000:c1:00.0",
			Nodes: []string{fmt.Sprint("/dev/dri/renderD", 128+n)},
		}
	}
	for _, resource := range []string{"amd.com/gpu", "amd.com/cpx_nps4"} {
		a := attribute(facts{Snapshot: model.Snapshot{
			GPUs:        []model.GPU{{Vendor: model.AMD, ID: "0", UUID: "aa", PCIAddress: "0000:c1:00.0"}, part(0), part(1)},
			Allocations: []model.Allocation{{Namespace: "n", Pod: "p", Container: "c", Resource: resource, ID: "0000:c1:00.0"}},
			Containers: []model.Container{{
				ID: "c", Runtime: "containerd", Namespace: "n", Pod: "p", Name: "c", PodUID: "u",
				Devices: []string{"/dev/kfd", "/dev/dri/renderD128"},
			}},
		}})
		if len(a.Assigned) != 1 || a.Assigned[0].GPU == nil || a.Assigned[0].GPU.UUID != "aa:0" || a.Assigned[0].Resource != resource {
			t.Errorf("%s: %+v", resource, a.Assigned)
		}
	}
	if IsGPU("amd.com/cpx") || IsGPU("example.com/cpx_nps4") {
		t.Error("not a GPU")
	}
}

// TestRequestedByAddress checks that a PCI address works as a requested name, as in
// nvidia-container-cli.
func TestRequestedByAddress(t *testing.T) {
	g := newGPUs([]model.GPU{{Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0", PCIAddress: "0000:1a:00.0"}})
	if found := g.named("0000:1A:00.0"); !slices.Equal(found, []*model.GPU{&g.list[0]}) {
		t.Error(found)
	}
}
