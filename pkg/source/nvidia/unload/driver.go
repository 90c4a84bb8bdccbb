// SPDX-License-Identifier: Apache-2.0

package unload

import (
	"path/filepath"

	"golang.org/x/sys/unix"
)

// loaded returns the inode number of /sys/module/nvidia, or 0 if the driver is not loaded. The number changes each time
// the module is loaded.
func loaded(sysfs string) uint64 {
	var st unix.Stat_t
	if unix.Stat(filepath.Join(sysfs, "module/nvidia"), &st) != nil {
		return 0
	}
	return st.Ino
}
