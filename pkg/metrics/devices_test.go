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
	"github.com/accelscope/accelscope/pkg/identity/identitytest"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/tools/library"
)

// TestDeviceInfo checks a VF in its pod's network namespace, a GPU, and a VF that only a pod's annotation names.
func TestDeviceInfo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		facts := model.Snapshot{
			HCAs: []model.HCA{
				{Name: "mlx5_0", PCIAddress: "0000:18:00.0", NodeGUID: "n0"},
				{Name: "mlx5_1", PCIAddress: "0000:18:00.1", NodeGUID: "n1", VF: true, PF: "mlx5_0", Netns: 4026532001},
				{Name: "mlx5_2", PCIAddress: "0000:18:00.2", NodeGUID: "n2", VF: true, PF: "mlx5_0", Netns: 4026532002},
			},
			Registered: []model.Registered{{Cgroup: 7, Device: "mlx5_1", Memory: model.HostMemory, Bytes: 5}},
			Objects:    []model.Objects{},
			Containers: []model.Container{
				{ID: "c1", Name: "worker", Namespace: "ml", Pod: "train-0", PodUID: "u1"},
				{ID: "c2", Name: "worker", Namespace: "ml", Pod: "eval-0", PodUID: "u2"},
			},
			Pods: []model.Pod{{UID: "u2", Namespace: "ml", Name: "eval-0", Networks: []model.PodNetwork{{PCIAddress: "0000:18:00.2"}}}},
			Allocations: []model.Allocation{
				{Namespace: "ml", Pod: "train-0", Container: "worker", Resource: "nvidia.com/ib", ID: "0000:18:00.1"},
				{Namespace: "ml", Pod: "train-0", Container: "worker", Resource: "nvidia.com/gpu", ID: "GPU-1", Unhealthy: true},
			},
			Namespaces: []model.Namespace{{Inode: 4026532001, PID: 9, Cgroup: 7}},
		}
		text := library.Encode(t, gather(t, []engine.Registration{
			{Source: &fake{name: "rdma", facts: facts}},
			{Source: names(map[model.CgroupID]identitytest.Entity{7: {Workload: "pod:u1/c1", ContainerID: "c1", PodUID: "u1"}})},
		}), expfmt.TypeTextPlain)
		var got []string
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, "accelscope_workload_device_") || strings.HasPrefix(line, "infiniband_device_info{") ||
				strings.HasPrefix(line, "container_rdma_registered_bytes{") || strings.HasPrefix(line, "container_rdma_allocated{") {
				got = append(got, strings.TrimSpace(line))
			}
		}
		slices.Sort(got)
		const owner = `container="worker",container_id="c1",`
		const where = `namespace="ml",`
		want := []string{
			`accelscope_workload_device_info{container="",container_id="",device="mlx5_2",guid="n2",method="network",` + where +
				`pci_address="0000:18:00.2",pf_device="mlx5_0",pod="eval-0",resource="",workload="ml/eval-0"} 1`,
			`accelscope_workload_device_info{` + owner + `device="GPU-1",guid="",method="kubelet",` + where +
				`pci_address="",pf_device="",pod="train-0",resource="nvidia.com/gpu",workload="ml/train-0/worker"} 1`,
			`accelscope_workload_device_info{` + owner + `device="mlx5_1",guid="n1",method="kubelet",` + where +
				`pci_address="0000:18:00.1",pf_device="mlx5_0",pod="train-0",resource="nvidia.com/ib",workload="ml/train-0/worker"} 1`,
			`accelscope_workload_device_unhealthy{` + owner + `device="GPU-1",` + where +
				`pod="train-0",resource="nvidia.com/gpu",workload="ml/train-0/worker"} 1`,
		}
		// Memory registered on the moved device is attributed as on any device.
		for _, s := range []struct{ labels, value string }{
			{`container="",container_id="",device="mlx5_0",memory="gpu",namespace="",pod="",workload=""`, "0"},
			{`container="",container_id="",device="mlx5_0",memory="host",namespace="",pod="",workload=""`, "0"},
			{`container="",container_id="",device="mlx5_1",memory="gpu",namespace="",pod="",workload=""`, "0"},
			{`container="",container_id="",device="mlx5_1",memory="host",namespace="",pod="",workload=""`, "0"},
			{`container="",container_id="",device="mlx5_2",memory="gpu",namespace="",pod="",workload=""`, "0"},
			{`container="",container_id="",device="mlx5_2",memory="host",namespace="",pod="",workload=""`, "0"},
			{owner + `device="mlx5_1",memory="host",` + where + `pod="train-0",workload="ml/train-0/worker"`, "5"},
		} {
			want = append(want, `container_rdma_registered_bytes{`+s.labels+`} `+s.value)
		}
		want = slices.Insert(want, 4, `container_rdma_allocated{`+owner+`device="mlx5_1",method="kubelet",`+where+
			`pod="train-0",workload="ml/train-0/worker"} 1`)
		for _, d := range []string{
			`board_id="",device="mlx5_0",firmware="",hca_type="",is_vf="false",netns="",node_desc="",node_guid="n0",` +
				`node_type="",numa_node="",pci_address="0000:18:00.0",pf_device="",sys_image_guid="",uverbs=""`,
			`board_id="",device="mlx5_1",firmware="",hca_type="",is_vf="true",netns="4026532001",node_desc="",node_guid="n1",` +
				`node_type="",numa_node="",pci_address="0000:18:00.1",pf_device="mlx5_0",sys_image_guid="",uverbs=""`,
			`board_id="",device="mlx5_2",firmware="",hca_type="",is_vf="true",netns="4026532002",node_desc="",node_guid="n2",` +
				`node_type="",numa_node="",pci_address="0000:18:00.2",pf_device="mlx5_0",sys_image_guid="",uverbs=""`,
		} {
			want = append(want, `infiniband_device_info{`+d+`} 1`)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	})
}
