// SPDX-License-Identifier: Apache-2.0

// Package api answers the REST requests. It presents what the collector has
// joined and reads nothing itself.
package api

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/model"
)

// Facts gives what is known now: the facts, and who has what share of them.
type Facts func() (model.Snapshot, attribution.Attribution)

// container is one container and its devices. The names of the fields are those
// of the Primus Lens node exporter; container_name and workload are added.
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

// gpu is a GPU that a container was given. What nobody tells is empty.
type gpu struct {
	Name   string `json:"name"`
	ID     *int   `json:"id"` // the number in its path; null without one
	Path   string `json:"path"`
	Kind   string `json:"kind"`
	UUID   string `json:"uuid"`
	Serial string `json:"serial"`
	Slot   string `json:"slot"` // PCI address
}

// hca is an HCA that a container was given or uses.
type hca struct {
	Name string `json:"name"`
	ID   uint32 `json:"id"` // index of the RDMA device
	Path string `json:"path"`
	Kind string `json:"kind"`
	UUID string `json:"uuid"` // node GUID, in pairs: 98:03:9b:ff:fe:12:34:56
}

// Register adds the requests to mux.
func Register(mux *http.ServeMux, facts Facts, list ListPeers) {
	mux.Handle("GET /pods", podsHandler(facts))
	mux.Handle("GET /api/v1/peers", peersHandler(list))
}

// podsHandler answers with the live containers of the node, in pods or not, and the
// GPUs and HCAs of each: a JSON array. An HCA is named when the container was
// given its device node, was assigned it, or holds objects on it.
func podsHandler(facts Facts) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s, a := facts()
		body, err := json.Marshal(pods(&s, &a))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(body) // a client that has left has no one to be told
	})
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
	out := []container{}
	for _, c := range a.Containers {
		if c.Sandbox || c.Status == model.ContainerExited {
			continue
		}
		out = append(out, container{
			ID: c.ID, Name: c.Name, Workload: a.Owners[c.Owner].Workload,
			PodName: c.Pod, PodNamespace: c.Namespace, PodUUID: c.PodUID,
			Devices: devices{GPU: gpus(assigned[c.Owner]), InfiniBand: hcas(s.HCAs, c.Container, used[c.Owner])},
		})
	}
	slices.SortFunc(out, func(x, y container) int {
		return cmp.Or(strings.Compare(x.Workload, y.Workload), strings.Compare(x.ID, y.ID))
	})
	return out
}

// gpus are those that the kubelet assigned, by their UUIDs; without any, those
// whose device nodes the container was given.
func gpus(assigned []attribution.DeviceShare) []gpu {
	out := []gpu{}
	for _, d := range assigned {
		g := gpu{Kind: "GPU", Path: d.Node, Slot: d.PCIAddress}
		switch {
		case attribution.IsGPU(d.Resource):
			g.UUID = d.Device
		case d.Node == "":
			continue
		}
		if id, err := strconv.Atoi(strings.TrimLeft(d.Node, "/abcdefghijklmnopqrstuvwxyzD")); err == nil {
			g.ID = &id
		}
		out = append(out, g)
	}
	return out
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

// pairs writes a GUID of the kernel (9803:9bff:fe12:3456) in pairs of digits.
func pairs(guid string) string {
	digits := strings.ReplaceAll(guid, ":", "")
	if len(digits) != 16 {
		return guid
	}
	out := make([]string, 0, 8)
	for i := 0; i < len(digits); i += 2 {
		out = append(out, digits[i:i+2])
	}
	return strings.Join(out, ":")
}
