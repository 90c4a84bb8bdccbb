// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/model"
)

// The node: a pod with an assigned GPU and a device node, a Docker container with the device
// nodes of GPUs, a container that only holds objects, and containers that are not listed.
func facts() Known {
	id := func(c string) string { return c + "123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
	s := model.Snapshot{
		HCAs: []model.HCA{
			{Name: "mlx5_0", Index: 3, NodeGUID: "0x98039bfffe123456", CharDevice: "uverbs0"},
			{Name: "mlx5_1", Index: 4, NodeGUID: "odd", CharDevice: "uverbs1"},
			{Name: "siw0", Index: 5},
		},
		Containers: []model.Container{
			{
				ID: id("a"), Runtime: "containerd", Name: "worker", Namespace: "ml", Pod: "train-0", PodUID: "u1",
				Status: model.ContainerRunning, Devices: []string{"/dev/infiniband/uverbs1", "/dev/nvidia7", "/dev/null"},
			},
			{ID: id("b"), Runtime: "containerd", Name: "POD", Namespace: "ml", Pod: "train-0", PodUID: "u1", Sandbox: true},
			{
				ID: id("c"), Runtime: "docker", Name: "web", Status: model.ContainerRunning,
				Devices: []string{"/dev/nvidiactl", "/dev/nvidia3", "/dev/dri/card1", "/dev/dri/renderD129"},
			},
			{ID: id("f"), Runtime: "containerd", Name: "two", Namespace: "ml", Pod: "train-1", Status: model.ContainerRunning},
			{ID: id("d"), Runtime: "docker", Name: "old", Status: model.ContainerExited},
			{ID: id("e"), Runtime: "docker", Name: "quiet", Status: model.ContainerRunning},
		},
		Allocations: []model.Allocation{
			{Namespace: "ml", Pod: "train-0", Container: "worker", Resource: "nvidia.com/gpu", ID: "GPU-1"},
			{Namespace: "ml", Pod: "train-1", Container: "two", Resource: "nvidia.com/gpu", ID: "GPU-2"},
		},
		Objects: []model.Objects{
			{Cgroup: 9, Device: "siw0", Type: model.QP, Current: 1},
			{Cgroup: 9, Device: "mlx5_0", Type: model.QP, Current: 0},
		},
		Created: []model.Series[model.ObjectKey, model.Count]{
			{Cgroup: 9, Key: model.ObjectKey{Device: "mlx5_0", Type: model.QP}, Value: 1},
		},
		Cgroups: []model.Cgroup{{ID: 9, Workload: "docker:x", ContainerID: id("e"), Runtime: "docker"}},
	}
	return Known{Facts: s, Shares: attributed(s)}
}

func TestPods(t *testing.T) {
	status, body := request(t, facts, nil, http.MethodGet, "/pods")
	if status != http.StatusOK {
		t.Errorf("%d %s", status, body)
	}
	var got []map[string]any
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	for _, c := range got {
		c["id"] = c["id"].(string)[:1]
	}
	type object = map[string]any
	gpu := func(id any, path, uuid string) object {
		return object{"name": "", "id": id, "path": path, "kind": "GPU", "uuid": uuid, "serial": "", "slot": ""}
	}
	hca := func(name string, id float64, path, uuid string) object {
		return object{"name": name, "id": id, "path": path, "kind": "RDMA", "uuid": uuid}
	}
	want := []map[string]any{
		{
			"id": "e", "container_name": "quiet", "workload": "docker:quiet",
			"pod_name": "", "pod_namespace": "", "pod_uuid": "",
			"devices": object{"gpu": []any{}, "infiniband": []any{hca("siw0", 5, "", "")}},
		},
		{
			"id": "c", "container_name": "web", "workload": "docker:web",
			"pod_name": "", "pod_namespace": "", "pod_uuid": "",
			"devices": object{"gpu": []any{gpu(3.0, "/dev/nvidia3", ""), gpu(1.0, "/dev/dri/card1", "")}, "infiniband": []any{}},
		},
		{
			"id": "a", "container_name": "worker", "workload": "ml/train-0/worker",
			"pod_name": "train-0", "pod_namespace": "ml", "pod_uuid": "u1",
			"devices": object{
				"gpu":        []any{gpu(7.0, "/dev/nvidia7", "GPU-1")},
				"infiniband": []any{hca("mlx5_1", 4, "/dev/infiniband/uverbs1", "odd")},
			},
		},
		{
			"id": "f", "container_name": "two", "workload": "ml/train-1/two",
			"pod_name": "train-1", "pod_namespace": "ml", "pod_uuid": "",
			"devices": object{"gpu": []any{gpu(nil, "", "GPU-2")}, "infiniband": []any{}},
		},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestPodsGPUs: GPUs that a source reports have names: the GPUs that are assigned to a container in any way, and the
// other GPUs that it uses.
func TestPodsGPUs(t *testing.T) {
	s := twoVendors
	s.Containers = []model.Container{
		{ID: "a", Runtime: "docker", Name: "all", Status: model.ContainerRunning, AllDevices: true, Devices: []string{"/dev/nvidia0"}},
		{ID: "b", Runtime: "docker", Name: "by-node", Status: model.ContainerRunning, Devices: []string{"/dev/dri/renderD129", "/dev/dri/card2"}},
		{ID: "c", Runtime: "docker", Name: "by-request", Status: model.ContainerRunning, GPURequests: []string{"1"}},
		{ID: "d", Runtime: "containerd", Name: "worker", Namespace: "ml", Pod: "p", Status: model.ContainerRunning},
		{ID: "e", Runtime: "containerd", Name: "other", Namespace: "ml", Pod: "p", Status: model.ContainerRunning},
	}
	s.Allocations = []model.Allocation{
		{Namespace: "ml", Pod: "p", Container: "worker", Resource: "nvidia.com/mig-1g.10gb", ID: "MIG-1"},
		{Namespace: "ml", Pod: "p", Container: "other", Resource: "nvidia.com/gpu", ID: "GPU-gone"},
	}
	s.GPUProcesses = []model.GPUProcess{ // a container without an assigned GPU, and a container that uses its GPU
		{GPU: "GPU-1", PID: 10, Cgroup: 1}, {GPU: "GPU-1", PID: 11, Cgroup: 1}, {GPU: "MIG-1", PID: 12, Cgroup: 4},
	}
	s.Cgroups = []model.Cgroup{{ID: 1, Workload: "x", ContainerID: "a"}, {ID: 4, Workload: "y", ContainerID: "d"}}
	_, body := request(t, knows(s, model.StateOK), nil, http.MethodGet, "/pods")
	var containers []container
	if err := json.Unmarshal([]byte(body), &containers); err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, c := range containers {
		for _, g := range c.Devices.GPU {
			id := "-"
			if g.ID != nil {
				id = strconv.Itoa(*g.ID)
			}
			got[c.Workload] = append(got[c.Workload], strings.Join([]string{g.UUID, g.Name, id, g.Path, g.Serial, g.Slot}, "|"))
		}
	}
	want := map[string][]string{
		"docker:all":        {"GPU-1||1|||"},
		"docker:by-node":    {"c1d2-1||129|/dev/dri/renderD129||0000:c1:00.0"},
		"docker:by-request": {"GPU-1||1|||"},
		"ml/p/worker":       {"MIG-1|H100 MIG 1g.10gb|0|/dev/nvidia-caps/nvidia-cap21||0000:18:00.0"},
		"ml/p/other":        {"GPU-gone||-|||"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// TestNoPods: a node without containers has an empty list.
func TestNoPods(t *testing.T) {
	none := Known{Shares: attributed(model.Snapshot{})}
	broken := func() Known { return Known{Err: errors.New("panic")} }
	if status, body := request(t, broken, nil, http.MethodGet, "/pods"); status != 500 || body != `{"error":"panic"}` {
		t.Errorf("a refresh that failed: %d %s", status, body)
	}
	if _, body := request(t, func() Known { return none }, nil, http.MethodGet, "/pods"); body != "[]" {
		t.Errorf("%q", body)
	}
	if got := pairs("0x98039bfffe123456"); got != "98:03:9b:ff:fe:12:34:56" {
		t.Error(got)
	}
}
