// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/accelscope/accelscope/pkg/exposition"

func devicesMetrics() []metric {
	return []metric{
		{
			name: "accelscope_workload_device_info", typ: gauge, owned: true,
			labels: []string{"device", "resource", "pci_address", "pf_device", "guid", "method"},
			help:   "Device assigned to the workload.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.Assigned {
					s := &v.shares.Assigned[i]
					b.Share(1, v.owners[s.Owner], s.Device, s.Resource, s.PCIAddress, s.PF, s.GUID, string(s.Origin))
				}
			},
		},
		{
			name: "accelscope_workload_device_unhealthy", typ: gauge, owned: true, labels: []string{"device", "resource"},
			help: "Device of the workload that the kubelet lists as unhealthy, always 1.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.Assigned {
					if s := &v.shares.Assigned[i]; s.Unhealthy {
						b.Share(1, v.owners[s.Owner], s.Device, s.Resource)
					}
				}
			},
		},
		{
			name: "container_rdma_allocated", typ: gauge, owned: true, labels: []string{"device", "method"},
			help: "HCA allocated to the workload, by source, always 1.",
			emit: func(v *view, b *exposition.Builder) {
				for i := range v.shares.Assigned {
					if s := &v.shares.Assigned[i]; s.HCA != nil && s.Allocated != "" {
						b.Share(1, v.owners[s.Owner], s.Device, string(s.Allocated))
					}
				}
			},
		},
	}
}
