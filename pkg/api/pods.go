// SPDX-License-Identifier: Apache-2.0

package api

import (
	"cmp"
	"net/http"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// container is one container and its devices. The fields are named as in the Primus Lens node exporter; container_name
// and workload are added.
type container struct {
	ID           string  `json:"id"`
	Name         string  `json:"container_name"`
	Workload     string  `json:"workload"`
	PodName      string  `json:"pod_name"`
	PodNamespace string  `json:"pod_namespace"`
	PodUUID      string  `json:"pod_uuid"`
	Devices      devices `json:"devices"`
}

type devices struct {
	GPU        []gpu `json:"gpu"`
	InfiniBand []hca `json:"infiniband"`
}

// gpu is a GPU that is assigned to a container or used by it. Unknown values are empty.
type gpu struct {
	Name   string `json:"name"`
	ID     *int   `json:"id"` // the number in its path, or its own; null without a number
	Path   string `json:"path"`
	Kind   string `json:"kind"`
	UUID   string `json:"uuid"`
	Serial string `json:"serial"`
	Slot   string `json:"slot"` // PCI address
}

// hca is an HCA that is assigned to a container or used by it.
type hca struct {
	Name string `json:"name"`
	ID   uint32 `json:"id"` // index of the RDMA device
	Path string `json:"path"`
	Kind string `json:"kind"`
	UUID string `json:"uuid"` // node GUID, in pairs: 98:03:9b:ff:fe:12:34:56
}

// podsAnswer answers with the live containers of the node, in pods or not, and the
// GPUs and HCAs of each: a JSON array. An HCA is listed when the container has its device
// node, is assigned the HCA, or holds objects on it.
func podsAnswer(w http.ResponseWriter, _ *http.Request, known *Known) {
	write(w, http.StatusOK, pods(&known.Facts, &known.Shares))
}

func pods(s *model.Snapshot, a *attribution.Attribution) []container {
	used := map[int][]string{} // HCAs by owner
	for _, o := range a.Objects {
		if o.Current > 0 {
			used[o.Owner] = append(used[o.Owner], o.Device)
		}
	}
	assigned := map[int][]attribution.DeviceShare{}
	for _, d := range a.Assigned {
		assigned[d.Owner] = append(assigned[d.Owner], d)
		if d.HCA != nil {
			used[d.Owner] = append(used[d.Owner], d.HCA.Name)
		}
	}
	runs := map[int][]*model.GPU{} // GPUs by the owner of processes on them
	for _, g := range a.GPUs {
		if g.Processes > 0 {
			runs[g.Owner] = append(runs[g.Owner], g.GPU)
		}
	}
	out := []container{}
	for _, c := range a.Containers {
		if c.Sandbox || c.Status == model.ContainerExited {
			continue
		}
		out = append(out, container{
			ID: c.ID, Name: c.Name, Workload: a.Owners[c.Owner].Workload,
			PodName: c.Pod, PodNamespace: c.Namespace, PodUUID: c.PodUID,
			Devices: devices{GPU: gpus(assigned[c.Owner], runs[c.Owner]), InfiniBand: hcas(s.HCAs, c.Container, used[c.Owner])},
		})
	}
	slices.SortFunc(out, func(x, y container) int {
		return cmp.Or(strings.Compare(x.Workload, y.Workload), strings.Compare(x.ID, y.ID))
	})
	return out
}

// gpus returns the GPUs that are assigned to a container (by the kubelet, its device nodes, or its runtime), and then
// the other GPUs that its processes use.
func gpus(assigned []attribution.DeviceShare, used []*model.GPU) []gpu {
	out, given := []gpu{}, map[string]bool{}
	for _, d := range assigned {
		switch {
		case d.GPU != nil:
			out = append(out, gpuOf(d.GPU, d.Node))
			given[d.GPU.UUID] = true
		case attribution.IsGPU(d.Resource):
			out = append(out, gpu{Kind: "GPU", ID: numberIn(d.Node), Path: d.Node, UUID: d.Device, Slot: d.PCIAddress})
		case d.Node != "":
			out = append(out, gpu{Kind: "GPU", ID: numberIn(d.Node), Path: d.Node, Slot: d.PCIAddress})
		}
	}
	for _, g := range used {
		if !given[g.UUID] {
			out = append(out, gpuOf(g, ""))
		}
	}
	return out
}

// gpuOf returns a known GPU with the device node that the container has, or else with the
// first device node of the GPU.
func gpuOf(g *model.GPU, node string) gpu {
	if node == "" && len(g.Nodes) > 0 {
		node = g.Nodes[0]
	}
	id := cmp.Or(numberIn(node), number(g))
	return gpu{Kind: "GPU", Name: g.Name, ID: id, Path: node, UUID: g.UUID, Serial: asicSerial(g), Slot: g.PCIAddress}
}

// numberIn returns the number in the path of a device node.
func numberIn(node string) *int {
	return parseNumber(strings.TrimLeft(node, "/abcdefghijklmnopqrstuvwxyzD"))
}

func hcas(all []model.HCA, c *model.Container, used []string) []hca {
	out := []hca{}
	for _, h := range all {
		path := ""
		if h.CharDevice != "" {
			path = "/dev/infiniband/" + h.CharDevice
		}
		if slices.Contains(used, h.Name) || path != "" && slices.Contains(c.Devices, path) {
			out = append(out, hca{Name: h.Name, ID: h.Index, Path: path, Kind: "RDMA", UUID: pairs(h.NodeGUID)})
		}
	}
	return out
}
