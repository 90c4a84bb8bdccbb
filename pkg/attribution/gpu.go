// SPDX-License-Identifier: Apache-2.0

package attribution

import "strings"

// IsGPU says whether the devices of a resource of the kubelet are GPUs, or parts
// of them. Those that Intel's plugin gives for monitoring are all of them, and
// nobody's.
func IsGPU(resource string) bool {
	for _, prefix := range []string{"nvidia.com/gpu", "nvidia.com/mig-", "amd.com/gpu", "gpu.intel.com/"} {
		if strings.HasPrefix(resource, prefix) {
			return !strings.HasSuffix(resource, "_monitoring")
		}
	}
	return false
}
