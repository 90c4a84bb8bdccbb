// SPDX-License-Identifier: Apache-2.0

package nvidia

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/accelscope/accelscope/pkg/source/nvidia/wire"
)

// platformLibraries are the places of NVML where the driver is no PCI driver of this kernel: the Windows Subsystem for Linux, with a
// directory for each version of the driver, and Jetson.
var platformLibraries = []string{
	"usr/lib/wsl/lib/libnvidia-ml.so.1", "usr/lib/wsl/drivers/*/libnvidia-ml.so.1",
	"usr/lib/aarch64-linux-gnu/nvidia/libnvidia-ml.so.1", "usr/lib/aarch64-linux-gnu/tegra/libnvidia-ml.so.1",
}

// platformLibrary returns the first existing platform library below the root of the node, or "".
func platformLibrary(root string) string {
	for _, pattern := range platformLibraries {
		if found, err := filepath.Glob(filepath.Join(root, pattern)); err == nil && len(found) > 0 {
			return wire.Below(root, strings.TrimPrefix(slices.Max(found), filepath.Clean(root)))
		}
	}
	return ""
}
