// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/procfile"
)

// processStart returns the start time of a process, or zero if unknown. The lists of containerd do not contain the
// start of a task.
func processStart(proc string, pid int) time.Time {
	stat, err := procfile.ReadStat(filepath.Join(proc, strconv.Itoa(pid)))
	var up unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return time.Time{}
	}
	return time.Now().Add(stat.Start - time.Duration(up.Nano())).Round(0)
}
