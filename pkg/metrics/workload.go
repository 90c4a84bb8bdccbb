// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/accelscope/accelscope/pkg/attribution"
	"github.com/accelscope/accelscope/pkg/exposition"
)

// resourceMetrics are the devices' own figures, which the shares add up to.
func resourceMetrics() []metric {
	return []metric{
		{
			name: "rdma_resources", typ: gauge, labels: []string{"device", "type"},
			help: "RDMA objects that exist on the device, those of the kernel included.",
			emit: func(v *view, b *exposition.Builder) {
				for _, d := range v.shares.Devices {
					b.Value(float64(d.Count), d.Device, string(d.Type))
				}
			},
		},
	}
}

// workloadMetrics are the shares. Those of the zero owner have five empty identity labels.
func workloadMetrics() []metric {
	return []metric{
		{
			name: "container_rdma_resources", typ: gauge, owned: true, labels: []string{"device", "type"},
			help: "RDMA objects that the workload holds. The shares of a device add up to rdma_resources; " +
				"what nobody is known to own has empty identity labels.",
			emit: func(v *view, b *exposition.Builder) {
				for _, s := range v.shares.Objects {
					b.Share(float64(s.Current), v.owners[s.Owner], s.Device, string(s.Type))
				}
			},
		},
		{
			name: "container_rdma_objects_created_total", typ: counter, owned: true, labels: []string{"device", "type"},
			help: "RDMA objects that the workload has made since the sensor watches it.",
			emit: func(v *view, b *exposition.Builder) {
				for _, s := range v.shares.Objects {
					if s.Method == attribution.MethodProbe {
						b.Share(float64(s.Created), v.owners[s.Owner], s.Device, string(s.Type))
					}
				}
			},
		},
		{
			name: "container_rdma_registered_bytes", typ: gauge, owned: true, labels: []string{"device", "memory"},
			help: "Length of the memory regions that the workload has registered, by where the memory lies: " +
				"host, gpu (GPUDirect), or dmabuf for a buffer of any other device.",
			emit: func(v *view, b *exposition.Builder) {
				for _, s := range v.shares.Registered {
					b.Share(float64(s.Bytes), v.owners[s.Owner], s.Device, string(s.Memory))
				}
			},
		},
		{
			name: "container_rdma_verbs_total", typ: counter, owned: true, labels: []string{"device", "verb"},
			help: "Control-path verbs that the workload has called, those that failed included.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.Verbs {
					s := &v.shares.Verbs[i]
					b.Share(float64(s.Value.Count), v.owners[s.Owner], s.Key.Device, s.Key.Verb)
				}
			},
		},
		{
			name: "container_rdma_verbs_errors_total", typ: counter, owned: true,
			labels: []string{"device", "verb", "errno"},
			help:   "Control-path verbs that failed, by errno.",
			emit: func(v *view, b *exposition.Builder) {
				for _, s := range v.shares.VerbErrors {
					b.Share(float64(s.Value), v.owners[s.Owner], s.Key.Device, s.Key.Verb, s.Key.Errno)
				}
			},
		},
		{
			name: "container_rdma_verbs_duration_seconds", typ: histogram, owned: true, labels: []string{"device", "verb"},
			help: "How long the control-path verbs of the workload took in the kernel.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.Verbs {
					s := &v.shares.Verbs[i]
					b.Histogram(&s.Value, v.owners[s.Owner], s.Key.Device, s.Key.Verb)
				}
			},
		},
		rdmaCgroup("container_rdma_hca_handles", "Verbs contexts that the rdma cgroup controller charges to the workload.",
			func(s attribution.RDMACgroupShare) uint64 { return s.Handles }),
		rdmaCgroup("container_rdma_hca_objects", "RDMA objects that the rdma cgroup controller charges to the workload.",
			func(s attribution.RDMACgroupShare) uint64 { return s.Objects }),
	}
}

func rdmaCgroup(name, help string, of func(attribution.RDMACgroupShare) uint64) metric {
	return metric{
		name: name, help: help, typ: gauge, owned: true, labels: []string{"device"},
		emit: func(v *view, b *exposition.Builder) {
			for _, s := range v.shares.RDMACgroups {
				b.Share(float64(of(s)), v.owners[s.Owner], s.Device)
			}
		},
	}
}
