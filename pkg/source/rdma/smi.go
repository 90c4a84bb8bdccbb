// SPDX-License-Identifier: Apache-2.0

package rdma

import "github.com/accelscope/accelscope/pkg/model"

// findManagement finds management devices (smi1) if RDMA netlink, which marks them, is not read: InfiniBand devices
// without a uverbs device, at the PCI function of an HCA that has a uverbs device. Subfunctions are at the function of
// another HCA, too.
func findManagement(hcas []model.HCA) {
	own := map[string]string{}
	for i := range hcas {
		if h := &hcas[i]; h.CharDevice != "" && h.PCIAddress != "" && !h.Subfunction {
			own[h.PCIAddress] = h.Name
		}
	}
	for i := range hcas {
		if h := &hcas[i]; h.Parent == "" && h.CharDevice == "" && h.NodeType == "CA" && !h.Subfunction && infiniband(h) {
			h.Parent = own[h.PCIAddress]
		}
	}
}

// infiniband reports whether a device has ports, and all are InfiniBand.
func infiniband(h *model.HCA) bool {
	for i := range h.Ports {
		if h.Ports[i].LinkLayer != "InfiniBand" {
			return false
		}
	}
	return len(h.Ports) > 0
}
