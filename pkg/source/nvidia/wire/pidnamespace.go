// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// initialPIDs is the inode of the node's initial process namespace (PROC_PID_INIT_INO).
const initialPIDs = 0xEFFFFFFC

// ErrWSL reports that the GPUs belong to Windows (/dev/dxg). There NVML fails to list processes, or lists PIDs that
// this kernel does not have.
var ErrWSL = fmt.Errorf("%w: NVML does not list processes in the Windows Subsystem for Linux", model.ErrUnsupported)

// ProcessesListed returns nil if NVML lists the processes of the node with this root directory. In another PID
// namespace than the node's, NVML silently omits the processes that have no PID there; the error then wraps
// model.ErrUnsupported.
func ProcessesListed(root string) error {
	if _, err := os.Stat(filepath.Join("/", root, "dev/dxg")); err == nil {
		return ErrWSL
	}
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return nil // procfs is not mounted, or restricted
	}
	if st.Ino != initialPIDs {
		return fmt.Errorf("%w: NVML omits processes of other process namespaces", model.ErrUnsupported)
	}
	return nil
}
