// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/accelscope/accelscope/pkg/model"

// placementFacts returns two GPUs and two HCAs in pairs on two NUMA nodes. The workload of cgroup 101 uses a GPU of one
// node and queue pairs on the HCA of the other node.
func placementFacts() model.Snapshot {
	hca := func(name, address string) model.HCA {
		return model.HCA{
			Name: name, PCIAddress: address,
			Ports: []model.Port{{Number: 1, State: "ACTIVE", LinkLayer: "InfiniBand", RateBits: 400e9}},
		}
	}
	function := func(address, numa string, path ...string) model.PCIFunction {
		return model.PCIFunction{Address: address, NUMANode: numa, Path: append(path, address)}
	}
	return model.Snapshot{
		HCAs: []model.HCA{hca("mlx5_0", "0000:13:00.0"), hca("mlx5_1", "0000:93:00.0")},
		GPUs: []model.GPU{
			{Vendor: model.NVIDIA, ID: "0", UUID: "GPU-0", PCIAddress: "0000:14:00.0"},
			{Vendor: model.NVIDIA, ID: "1", UUID: "GPU-1", PCIAddress: "0000:94:00.0"},
		},
		PCI: []model.PCIFunction{
			function("0000:13:00.0", "0", "pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:00.0"),
			function("0000:14:00.0", "0", "pci0000:10", "0000:10:01.0", "0000:11:00.0", "0000:12:01.0"),
			function("0000:93:00.0", "1", "pci0000:90", "0000:90:01.0", "0000:91:00.0", "0000:92:00.0"),
			function("0000:94:00.0", "1", "pci0000:90", "0000:90:01.0", "0000:91:00.0", "0000:92:01.0"),
		},
		GPUProcesses: []model.GPUProcess{{GPU: "GPU-0", PID: 7, Cgroup: 101, Memory: model.Some(1 << 30)}},
		Objects:      []model.Objects{{Cgroup: 101, Device: "mlx5_1", Type: model.QP, Current: 4}},
		Registered:   []model.Registered{{Cgroup: 101, Device: "mlx5_1", Memory: model.GPUMemory, Bytes: 1 << 20}},
	}
}
