// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/accelscope/accelscope/pkg/exposition"

// devicesMetrics tell which device belongs to which workload.
func devicesMetrics() []metric {
	return []metric{{
		name: "accelscope_workload_device_info", typ: gauge, owned: true,
		labels: []string{"device", "resource", "pci_address", "pf_device", "guid"},
		help: "A device that the workload was given: by the kubelet, as a device node, as a network of its pod, or as one " +
			"in its network namespace. What is not known is empty. The value is always 1.",
		emit: func(v *view, b *exposition.Builder) {
			for i := range v.shares.Assigned {
				s := &v.shares.Assigned[i]
				b.Share(1, v.owners[s.Owner], s.Device, s.Resource, s.PCIAddress, s.PF, s.GUID)
			}
		},
	}}
}
