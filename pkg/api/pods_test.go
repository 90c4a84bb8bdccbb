// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// The node: one pod that was assigned a GPU and has a device node, one container
// of Docker with GPUs by their nodes, one that only holds objects, and some that
// are not to be shown.
func facts() (model.Snapshot, attribution.Attribution) {
	id := func(c string) string { return c + "123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef" }
	s := model.Snapshot{
		HCAs: []model.HCA{
			{Name: "mlx5_0", Index: 3, NodeGUID: "9803:9bff:fe12:3456", CharDevice: "uverbs0"},
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
			{Cgroup: 9, Device: "mlx5_0", Type: model.QP, Current: 0, Created: 1},
		},
		Entities: map[uint64]model.Entity{9: {Workload: "docker:x", ContainerID: id("e"), Runtime: "docker"}},
	}
	s.Entities = attribution.Name(&s, nil)
	return s, attribution.Attribute(s)
}

func TestPods(t *testing.T) {
	mux := http.NewServeMux()
	Register(mux, facts, nil)
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/pods", nil))
	if answer.Code != http.StatusOK || answer.Header().Get("Content-Type") != "application/json" {
		t.Errorf("%d %s", answer.Code, answer.Header())
	}
	var got []map[string]any
	if err := json.Unmarshal(answer.Body.Bytes(), &got); err != nil {
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

// A node without containers has a list, and an empty one.
func TestNoPods(t *testing.T) {
	mux := http.NewServeMux()
	Register(mux, func() (model.Snapshot, attribution.Attribution) {
		return model.Snapshot{}, attribution.Attribute(model.Snapshot{})
	}, nil)
	answer := httptest.NewRecorder()
	mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/pods", nil))
	if answer.Body.String() != "[]" {
		t.Errorf("%q", answer.Body)
	}
	if got := pairs("9803:9bff:fe12:3456"); got != "98:03:9b:ff:fe:12:34:56" {
		t.Error(got)
	}
}
