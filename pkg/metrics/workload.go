// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/exposition"
)

func resourceMetrics() []metric {
	return []metric{
		{
			name: "rdma_resources", typ: gauge, labels: []string{"device", "type"},
			help: "RDMA objects on the device, including the kernel's, by type.",
			emit: func(v *view, b *exposition.Builder) {
				for _, d := range v.shares.Devices {
					b.Value(float64(d.Count), d.Device, string(d.Type))
				}
			},
		},
	}
}

var workloadNotes = []string{
	"`container_rdma_resources`: a device's shares add up to `rdma_resources`, with the device `other` of workloads with too " +
		"many series. Kernel users have `pd`, `cm_id` and its `qp`.",
	"`container_rdma_objects_created_total` and the `container_rdma_verbs` families count from the probe's attachment. ",
	"`container_rdma_registered_bytes`: `memory` is `host`, `gpu` (GPU dma-buf), `dmabuf` (other), `device` (HCA memory), " +
		"`implicit_odp` (0 bytes: no length), or `unknown` (before the sensor's start, and what [the kernel does not " +
		"report](../docs/limits.md#objects-and-peers)).",
	"`container_rdma_hca_handles`, `container_rdma_hca_objects`: absent without a charge on the HCA.",
}

func workloadMetrics() []metric {
	return []metric{
		{
			name: "container_rdma_verbs_errors_total", typ: counter, owned: true,
			labels: []string{"device", "verb", "errno"}, detail: []string{"errno", "verb", "device"},
			help: "Failed control-path verbs, by errno.",
			emit: func(v *view, b *exposition.Builder) {
				for _, s := range v.shares.VerbErrors {
					b.Since(s.Since).Share(float64(s.Value), v.owners[s.Owner], s.Key.Device, s.Key.Verb, s.Key.Errno)
				}
			},
		},
		{
			name: "container_rdma_verbs_total", typ: counter, owned: true, labels: []string{"device", "verb"},
			detail: []string{"verb", "device"},
			help:   "Control-path verbs called, including failed calls.",
			emit: each(verbsOf, func(v *view, b *exposition.Builder, s *verbShare) {
				b.Since(s.Since).Share(float64(s.Value.Count), v.owners[s.Owner], s.Key.Device, s.Key.Verb)
			}),
		},
		{
			name: "container_rdma_objects_created_total", typ: counter, owned: true, labels: []string{"device", "type"},
			detail: []string{"type", "device"},
			help:   "RDMA objects created, by type.",
			emit: each(objectsOf, func(v *view, b *exposition.Builder, s *attribution.ObjectShare) {
				if s.Method == attribution.MethodProbe && (s.Owner != 0 || s.Created > 0) {
					b.Since(s.Since).Share(float64(s.Created), v.owners[s.Owner], s.Device, string(s.Type))
				}
			}),
		},
		{
			name: "container_rdma_verbs_duration_seconds", typ: histogram, owned: true, labels: []string{"device", "verb"},
			detail: []string{"verb", "device"},
			help:   "Time of control-path verbs in the kernel.",
			emit: each(verbsOf, func(v *view, b *exposition.Builder, s *verbShare) {
				b.Since(s.Since).Histogram(&s.Value, v.owners[s.Owner], s.Key.Device, s.Key.Verb)
			}),
		},
		{
			name: "container_rdma_resources", typ: gauge, owned: true, labels: []string{"device", "type"},
			detail: []string{"type", "device"},
			help:   "RDMA objects held, by type.",
			emit: each(objectsOf, func(v *view, b *exposition.Builder, s *attribution.ObjectShare) {
				b.Share(float64(s.Current), v.owners[s.Owner], s.Device, string(s.Type))
			}),
		},
		{
			name: "container_rdma_registered_bytes", typ: gauge, owned: true, labels: []string{"device", "memory"},
			detail: []string{"memory", "device"},
			help:   "Length of registered memory regions, by kind of memory.",
			emit: func(v *view, b *exposition.Builder) {
				for _, s := range v.shares.Registered {
					b.Share(float64(s.Bytes), v.owners[s.Owner], s.Device, string(s.Memory))
				}
			},
		},
		rdmaCgroup("container_rdma_hca_handles", "Verbs contexts charged by the rdma cgroup controller.",
			func(s attribution.RDMACgroupShare) uint64 { return s.Handles }),
		rdmaCgroup("container_rdma_hca_objects", "RDMA objects charged by the rdma cgroup controller.",
			func(s attribution.RDMACgroupShare) uint64 { return s.Objects }),
	}
}

func rdmaCgroup(name, help string, of func(attribution.RDMACgroupShare) uint64) metric {
	return metric{
		name: name, help: help, typ: gauge, owned: true, labels: []string{"device"}, detail: []string{"device"},
		emit: func(v *view, b *exposition.Builder) {
			for _, s := range v.shares.RDMACgroups {
				b.Share(float64(of(s)), v.owners[s.Owner], s.Device)
			}
		},
	}
}
