// SPDX-License-Identifier: Apache-2.0

package drm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
)

const maxProcesses = 1 << 16

// Processes returns the processes that may have a DRM node open, sorted: those that holders returns, or all if it is nil or does not
// know them. With an error, processes are missing.
func Processes(procfs string, holders func() (pids []int, known bool)) ([]int, error) {
	if holders != nil {
		if pids, known := holders(); known {
			pids = slices.Clone(pids)
			slices.Sort(pids)
			return slices.Compact(pids), nil
		}
	}
	f, err := os.Open(procfs)
	if err != nil {
		return nil, fmt.Errorf("listing processes: %w", err)
	}
	defer f.Close()
	names, err := f.Readdirnames(maxProcesses)
	var pids []int
	for _, name := range names {
		if n, err := strconv.ParseUint(name, 10, 31); err == nil {
			pids = append(pids, int(n))
		}
	}
	slices.Sort(pids)
	if err != nil && !errors.Is(err, io.EOF) {
		return pids, fmt.Errorf("listing processes: %w", err)
	}
	return pids, nil
}
