// SPDX-License-Identifier: Apache-2.0

package drm

import (
	"fmt"
	"slices"
)

const maxProcesses = 1 << 16

// Processes returns the processes that may have a DRM node open, sorted: the holders or, if holders is nil or does not
// know them, all processes. With an error, processes are missing.
func Processes(procfs string, holders func() (pids []int, known bool)) ([]int, error) {
	if holders != nil {
		if pids, known := holders(); known {
			pids = slices.Clone(pids)
			slices.Sort(pids)
			return slices.Compact(pids), nil
		}
	}
	names, err := ReadNames(procfs, maxProcesses)
	if err != nil {
		err = fmt.Errorf("listing processes: %w", err)
	}
	pids := Numbers(names)
	slices.Sort(pids)
	return pids, err
}
