// SPDX-License-Identifier: Apache-2.0

package attribution

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

func claim(container, device string, nodes ...string) model.Allocation {
	return model.Allocation{
		Namespace: "ml", Pod: "train-0", Container: container, Claim: "gpus", Nodes: nodes,
		Resource: "gpu.nvidia.com/node7", ID: device,
	}
}

// TestClaims checks the devices of resource claims, with the device nodes of NVIDIA's driver for a GPU and for a MIG
// instance, which include the GPU's node.
func TestClaims(t *testing.T) {
	gpu0 := []string{"/dev/nvidia0", "/dev/dri/card0", "/dev/dri/renderD128"}
	mig2 := []string{"/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap75", "/dev/nvidia-caps/nvidia-cap76"}
	container := func(name string, nodes ...string) model.Container {
		return worker(func(c *model.Container) { c.ID, c.Name, c.Devices = name, name, nodes })
	}
	dranet := func(device string) model.Allocation {
		a := claim("worker", device)
		a.Resource = "dra.net/node7"
		return a
	}
	shareOf := func(a model.Allocation, id string) model.Allocation {
		a.ShareID = id
		return a
	}
	for name, c := range map[string]struct {
		gpus        []model.GPU
		allocations []model.Allocation
		containers  []model.Container
		want        []string // workload, device, evidence, claim, share, given
	}{
		"a GPU": {
			mixed(),
			[]model.Allocation{claim("worker", "gpu-0", gpu0...)},
			nil,
			[]string{"ml/train-0/worker GPU-0 kubelet gpus  false"},
		},
		"and the nodes in the container": {
			mixed(),
			[]model.Allocation{claim("worker", "gpu-0", gpu0...)},
			[]model.Container{container("worker", "/dev/nvidiactl", "/dev/nvidia0")},
			[]string{"ml/train-0/worker GPU-0 kubelet gpus  false"},
		},
		"a MIG instance": {
			mixed(),
			[]model.Allocation{claim("worker", "gpu-1-mig-1g10gb-19-1", mig2...)},
			nil,
			[]string{"ml/train-0/worker MIG-2 kubelet gpus  false"},
		},
		"a MIG instance that is not listed yet": {
			mixed()[:4],
			[]model.Allocation{claim("worker", "gpu-1-mig-1g10gb-19-1", mig2...)},
			nil,
			[]string{"ml/train-0/worker gpu-1-mig-1g10gb-19-1  gpus  false"},
		},
		"one claim of two containers": {
			mixed(),
			[]model.Allocation{claim("a", "gpu-0", gpu0...), claim("b", "gpu-0", gpu0...)},
			[]model.Container{container("a"), container("b")},
			[]string{"ml/train-0/a GPU-0 kubelet gpus  false", "ml/train-0/b GPU-0 kubelet gpus  false"},
		},
		// The kubelet lists all devices of a claim for each container; the second device has the nodes of the first,
		// too.
		"requests of one claim in different containers": {
			mixed(),
			[]model.Allocation{
				claim("a", "gpu-0", gpu0...), claim("a", "gpu-1-mig-1g10gb-19-1", slices.Concat(gpu0, mig2)...),
				claim("b", "gpu-0", gpu0...), claim("b", "gpu-1-mig-1g10gb-19-1", slices.Concat(gpu0, mig2)...),
			},
			[]model.Container{container("a", gpu0[0], "/dev/nvidiactl"), container("b", append(mig2, "/dev/nvidiactl")...)},
			[]string{"ml/train-0/a GPU-0 kubelet gpus  false", "ml/train-0/b MIG-2 kubelet gpus  false"},
		},
		"requests of one container": {
			mixed(),
			[]model.Allocation{claim("worker", "gpu-0", gpu0...), claim("worker", "gpu-1-mig-1g10gb-19-1", slices.Concat(gpu0, mig2)...)},
			[]model.Container{container("worker", slices.Concat(gpu0[:2], mig2)...)},
			[]string{"ml/train-0/worker GPU-0 kubelet gpus  false", "ml/train-0/worker MIG-2 kubelet gpus  false"},
		},
		"HCAs of requests in different containers": {
			nil,
			[]model.Allocation{
				claim("a", "hca-1", "/dev/infiniband/uverbs1"), claim("a", "hca-2", "/dev/infiniband/uverbs1", "/dev/infiniband/uverbs2"),
			},
			[]model.Container{container("a", "/dev/infiniband/uverbs2")},
			[]string{"ml/train-0/a mlx5_1 kubelet gpus  false"},
		},
		"a part of a GPU": {
			mixed(),
			[]model.Allocation{shareOf(claim("worker", "gpu-0", gpu0...), "5c0e")},
			nil,
			[]string{"ml/train-0/worker GPU-0 kubelet gpus 5c0e false"},
		},
		"no specification": {
			mixed(), []model.Allocation{claim("worker", "gpu-0")}, nil, // index and minor number agree
			[]string{"ml/train-0/worker GPU-0 kubelet gpus  false"},
		},
		"no specification, of a MIG instance": {
			mixed(), []model.Allocation{claim("worker", "gpu-1-mig-1g10gb-19-0")}, nil, // an unknown instance
			[]string{"ml/train-0/worker gpu-1-mig-1g10gb-19-0  gpus  false"},
		},
		"no source of GPUs": {
			nil,
			[]model.Allocation{claim("worker", "gpu-0", gpu0...)},
			[]model.Container{container("worker", "/dev/nvidia0")},
			[]string{"ml/train-0/worker gpu-0  gpus  false"},
		},
		"an HCA by its device node": {
			nil,
			[]model.Allocation{claim("worker", "hca-1", "/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm")},
			nil,
			[]string{"ml/train-0/worker mlx5_1 kubelet gpus  false"},
		},
		"a function of DRANET": {
			nil,
			[]model.Allocation{dranet("pci-0000-18-00-a")},
			nil,
			[]string{"ml/train-0/worker mlx5_2 kubelet gpus  true"},
		},
		"a function of DRANET without an HCA": {
			nil, []model.Allocation{dranet("pci-0000-99-00-1")}, nil, []string{"ml/train-0/worker   gpus  true"},
		},
		"a shared function": {
			nil,
			[]model.Allocation{shareOf(dranet("pci-0000-18-00-a"), "5c0e")},
			nil,
			[]string{"ml/train-0/worker mlx5_2 kubelet gpus 5c0e false"},
		},
		"a function as a network interface only": {
			nil,
			[]model.Allocation{dranet("pci-0000-18-00-a")},
			[]model.Container{container("worker", "/dev/infiniband/uverbs9")},
			[]string{"ml/train-0/worker mlx5_2  gpus  true"},
		},
		"an interface": {
			nil, []model.Allocation{dranet("eth1")}, nil, []string{"ml/train-0/worker mlx5_1 kubelet gpus  true"},
		},
		"an interface whose name is no label": { // ETH_2
			nil, []model.Allocation{dranet("net-ivkeqxzs")}, nil, []string{"ml/train-0/worker mlx5_2 kubelet gpus  true"},
		},
		"hostile names": {
			nil,
			[]model.Allocation{dranet("pci-0000-18-00"), dranet("pci-"), dranet("net-!"), dranet("")},
			nil,
			[]string{
				"ml/train-0/worker pci-0000-18-00  gpus  false", "ml/train-0/worker pci-  gpus  false",
				"ml/train-0/worker net-!  gpus  false", "ml/train-0/worker   gpus  false",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			hcas := sriov()
			hcas[1].Ports[0].Netdev, hcas[2].Ports[0].Netdev = "eth1", "ETH_2"
			if c.containers == nil {
				c.containers = []model.Container{container("worker")}
			}
			a := attribute(facts{Snapshot: model.Snapshot{
				HCAs: hcas, GPUs: c.gpus, Allocations: c.allocations, Containers: c.containers,
			}})
			got := []string{}
			for _, s := range a.Assigned {
				got = append(got, fmt.Sprintf("%s %s %s %s %s %v", a.Owners[s.Owner].Workload, s.Device, s.Allocated, s.Claim, s.ShareID, s.Given))
			}
			slices.Sort(got)
			slices.Sort(c.want)
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
		})
	}
}

// TestCountGPUs counts GPUs of device plugins and claims. The node has six GPUs that can be allocated: two of AMD, one
// of NVIDIA, two MIG instances, which count instead of their GPU, and one of Intel.
func TestCountGPUs(t *testing.T) {
	plugin := func(resource string, ids ...string) model.Allocatable {
		return model.Allocatable{Resource: resource, IDs: ids}
	}
	for name, c := range map[string]struct {
		gpus           []model.GPU
		allocations    []model.Allocation
		allocatable    []model.Allocatable
		allocated, all int
	}{
		"unknown allocations": {mixed(), nil, []model.Allocatable{}, 0, 0},
		"unknown devices":     {mixed(), []model.Allocation{}, nil, 0, 0},
		"no plugin, no claim": {mixed(), []model.Allocation{}, []model.Allocatable{}, 0, 6},
		"no longer listed": {
			nil,
			[]model.Allocation{given("nvidia.com/gpu", "GPU-0"), given("nvidia.com/gpu", "GPU-1")},
			[]model.Allocatable{plugin("nvidia.com/gpu", "GPU-1")},
			2, 2,
		},
		"a plugin": { // which may not list all GPUs
			mixed(), []model.Allocation{given("nvidia.com/gpu", "GPU-0")}, []model.Allocatable{plugin("nvidia.com/gpu", "GPU-0", "GPU-1")}, 1, 2,
		},
		"claims": {
			mixed(),
			[]model.Allocation{claim("a", "gpu-0", "/dev/nvidia0"), claim("b", "gpu-0", "/dev/nvidia0")},
			[]model.Allocatable{},
			1, 6,
		},
		"claims, and a plugin of another vendor": {
			mixed(),
			[]model.Allocation{given("amd.com/gpu", "0000:c1:00.0"), claim("a", "gpu-1-mig", "/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap66")},
			[]model.Allocatable{plugin("amd.com/gpu", "0000:c1:00.0", "0000:c2:00.0")},
			2, 5,
		},
		"a claim without a specification": {mixed()[2:3], []model.Allocation{claim("a", "gpu-0")}, []model.Allocatable{}, 1, 1},
		"more claims than GPUs": {
			mixed()[2:3], []model.Allocation{claim("a", "gpu-vfio-0"), claim("a", "gpu-vfio-1")}, []model.Allocatable{}, 2, 2,
		},
		"a claim, no source": {nil, []model.Allocation{claim("a", "gpu-0")}, []model.Allocatable{plugin("amd.com/gpu", "x")}, 1, 2},
		"a claim of something else": {
			mixed(),
			[]model.Allocation{{Pod: "p", Claim: "c", Resource: "dra.net/node7", ID: "eth0"}},
			[]model.Allocatable{plugin("nvidia.com/gpu", "GPU-0")},
			0, 1,
		},
		"shares of a plugin that chooses the GPU": {
			mixed(),
			[]model.Allocation{given("nvidia.com/gpu", "GPU-0-4")},
			[]model.Allocatable{plugin("nvidia.com/gpu", "GPU-0-3", "GPU-0-4", "GPU-1-0", "GPU-1-1")},
			0, 0,
		},
		"shares, no source": {
			nil,
			[]model.Allocation{given("nvidia.com/gpu", "GPU-33333333-3333-4333-8333-333333333333-1")},
			[]model.Allocatable{plugin("nvidia.com/gpu", "GPU-33333333-3333-4333-8333-333333333333-1")},
			0, 0,
		},
		"shares, none allocated, no source": {
			nil, []model.Allocation{}, []model.Allocatable{plugin("nvidia.com/gpu",
				"GPU-33333333-3333-4333-8333-333333333333-1", "GPU-33333333-3333-4333-8333-333333333333-2")}, 0, 1,
		},
		"before Kubernetes 1.31": {
			mixed(),
			[]model.Allocation{{Pod: "p", Claim: "c", Resource: "k8s.gpu.nvidia.com/claim", ID: "k8s.gpu.nvidia.com/claim=u-gpu-0"}},
			[]model.Allocatable{},
			1, 6,
		},
	} {
		t.Run(name, func(t *testing.T) {
			allocated, all := CountGPUs(&model.Snapshot{GPUs: c.gpus, Allocations: c.allocations, Allocatable: c.allocatable})
			if allocated != c.allocated || all != c.all {
				t.Errorf("%d of %d GPUs, want %d of %d", allocated, all, c.allocated, c.all)
			}
		})
	}
}
