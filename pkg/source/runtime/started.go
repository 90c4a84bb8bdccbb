// SPDX-License-Identifier: Apache-2.0

package runtime

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// processStart returns the start time of a process, from field 22 of /proc/PID/stat in hundredths
// of a second since boot, zero if it is not known. The lists of containerd do not contain the start
// of a task.
func processStart(procfs string, pid int) time.Time {
	b, err := os.ReadFile(filepath.Join(procfs, strconv.Itoa(pid), "stat"))
	if err != nil {
		return time.Time{}
	}
	ticks, ok := parseStart(b)
	var up unix.Timespec
	if !ok || unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return time.Time{}
	}
	age := time.Duration(up.Nano()) - time.Duration(ticks)*(time.Second/100)
	return time.Now().Add(-age).Round(0)
}

// parseStart parses field 22 of a line of stat. The second field is the program's name in
// parentheses, which may contain any character.
func parseStart(b []byte) (ticks int64, ok bool) {
	i := bytes.LastIndexByte(b, ')')
	fields := bytes.Fields(b[i+1:])
	if i < 0 || len(fields) < 20 {
		return 0, false
	}
	ticks, err := strconv.ParseInt(string(fields[19]), 10, 64)
	return ticks, err == nil && ticks >= 0 && ticks < 1<<56/int64(time.Second/100)
}
