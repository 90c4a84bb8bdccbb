// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"maps"
	"slices"

	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/exposition"
	"github.com/accelscope/accelscope/pkg/model"
)

var kubeletNotes = []string{
	"`node_k8s_gpu_allocation_rate`: a MIG device counts as one GPU, time-slicing replicas as one together. If claims have a " +
		"vendor's GPUs, or no device plugin has GPUs, all GPUs that the sensor lists count. Absent while an ID only stands for a " +
		"share of a GPU (HAMi, Volcano).",
	"A claim's resource is DRIVER/POOL; `accelscope_kubelet_allocatable_devices` excludes it.",
	"`pod_ephemeral_storage_usage_bytes`: writable layers, logs and emptyDir volumes.",
	"`node_ephemeral_storage_usage_percent`: other exporters use this name for a ratio of 0 to 1.",
}

func kubeletMetrics() []metric {
	return []metric{
		{
			name: "node_k8s_gpu_allocation_rate", typ: gauge,
			help: "Percentage of the node's GPUs allocated to containers (0 to 100).",
			emit: func(v *view, b *exposition.Builder) {
				allocated, all := attribution.CountGPUs(v.facts)
				if all > 0 {
					b.Value(100 * float64(allocated) / float64(all))
				}
			},
		},
		{
			name: "accelscope_kubelet_allocated_devices", typ: gauge, labels: []string{"resource"},
			help: "Devices that the kubelet allocated, by resource.",
			emit: func(v *view, b *exposition.Builder) {
				given := devices{}
				for _, a := range v.facts.Allocatable { // if allocations are known, a resource without allocations is 0
					if v.facts.Allocations != nil {
						given.add(a.Resource)
					}
				}
				for i := range v.facts.Allocations {
					given.add(v.facts.Allocations[i].Resource, v.facts.Allocations[i].ID)
				}
				given.emit(b)
			},
		},
		{
			name: "accelscope_kubelet_allocatable_devices", typ: gauge, labels: []string{"resource"},
			help: "Devices that the kubelet can allocate, including allocated ones, by resource.",
			emit: func(v *view, b *exposition.Builder) {
				has := devices{}
				for _, a := range v.facts.Allocatable {
					has.add(a.Resource, a.IDs...)
				}
				has.emit(b)
			},
		},
		{
			name: "pod_ephemeral_storage_usage_bytes", typ: gauge, labels: []string{"namespace", "pod", "node"},
			help: "Ephemeral storage used by the pod.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.facts.PodStorage {
					if p := &v.facts.PodStorage[i]; v.scope.hasPod(p.Namespace, p.Pod) {
						b.Value(float64(p.UsedBytes), p.Namespace, p.Pod, v.node)
					}
				}
			},
		},
		nodeStorage("node_ephemeral_storage_usage_bytes",
			"Used space for ephemeral storage.",
			func(s *model.NodeStorage) model.Optional { return model.Some(float64(s.UsedBytes)) }),
		nodeStorage("node_ephemeral_storage_available_bytes",
			"Available space for ephemeral storage.",
			func(s *model.NodeStorage) model.Optional { return model.Some(float64(s.AvailableBytes)) }),
		nodeStorage("node_ephemeral_storage_capacity_bytes",
			"Size of the ephemeral storage.",
			func(s *model.NodeStorage) model.Optional { return model.Some(float64(s.CapacityBytes)) }),
		nodeStorage("node_ephemeral_storage_usage_percent",
			"Percentage of ephemeral storage used (0 to 100).",
			func(s *model.NodeStorage) model.Optional {
				return model.Optional{Value: 100 * float64(s.UsedBytes) / float64(s.CapacityBytes), Known: s.CapacityBytes > 0}
			}),
	}
}

func nodeStorage(name, help string, of func(*model.NodeStorage) model.Optional) metric {
	return metric{
		name: name, typ: gauge, labels: []string{"node"}, help: help,
		emit: func(v *view, b *exposition.Builder) {
			if v.facts.NodeStorage != nil {
				known(b, of(v.facts.NodeStorage), nil, v.node)
			}
		},
	}
}

type devices map[string]map[string]struct{}

func (d devices) add(resource string, ids ...string) {
	if d[resource] == nil {
		d[resource] = map[string]struct{}{}
	}
	for _, id := range ids {
		d[resource][id] = struct{}{}
	}
}

func (d devices) emit(b *exposition.Builder) {
	for _, resource := range slices.Sorted(maps.Keys(d)) { // the kubelet lists resources in any order
		b.Value(float64(len(d[resource])), resource)
	}
}
