// SPDX-License-Identifier: Apache-2.0

// Package procfile reads files of a process in /proc. prometheus/procfs needs more than three times as long for a stat,
// and Slurm's ranks read the stat of each process of a job.
package procfile

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/accelscope/accelscope/pkg/boundedfile"
)

const (
	maxStat   = 1024    // a name has 16 bytes, 50 numbers have at most 20 digits
	maxStatus = 4 << 10 // Uid is within it; the lists of groups, CPUs and NUMA nodes after Uid may be long
	maxUptime = 100 * 365 * 24 * time.Hour
)

// userTick is the unit of times in stat, 1/USER_HZ: USER_HZ is 100 on each architecture that Go supports.
const userTick = time.Second / 100

// ErrFormat is the error of a file in another format than the kernel's.
var ErrFormat = errors.New("not the format of /proc/PID/stat")

// Stat is a part of /proc/PID/stat (fs/proc/array.c, do_task_stat).
type Stat struct {
	Name  string        // comm: chosen by the process, any bytes
	State string        // R, S, D, Z (zombie), X (dead) and others
	Flags uint64        // PF_*
	Start time.Duration // since boot, including the time in suspend
}

// ReadStat reads the stat of a process in a directory of procfs: /proc/PID.
func ReadStat(dir string) (Stat, error) {
	b, err := boundedfile.ReadOnce(filepath.Join(dir, "stat"), make([]byte, maxStat))
	if err != nil {
		return Stat{}, err
	}
	return ParseStat(b)
}

// ParseStat parses the content of stat. The name is between the first and the last parenthesis, and may contain both.
func ParseStat(b []byte) (Stat, error) {
	begin, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if begin < 0 || end < begin {
		return Stat{}, fmt.Errorf("%w: no name", ErrFormat)
	}
	const flags, start = 9 - 3, 22 - 3 // field 3 follows the name
	fields := bytes.Fields(b[end+1:])
	if len(fields) <= start {
		return Stat{}, fmt.Errorf("%w: %d fields", ErrFormat, len(fields)+2)
	}
	s := Stat{Name: string(b[begin+1 : end]), State: string(fields[0])}
	var err error
	if s.Flags, err = strconv.ParseUint(string(fields[flags]), 10, 64); err != nil {
		return Stat{}, fmt.Errorf("%w: flags: %w", ErrFormat, err)
	}
	ticks, err := strconv.ParseUint(string(fields[start]), 10, 64)
	if err != nil {
		return Stat{}, fmt.Errorf("%w: starttime: %w", ErrFormat, err)
	}
	if ticks > uint64(maxUptime/userTick) {
		return Stat{}, fmt.Errorf("%w: starttime %d", ErrFormat, ticks)
	}
	s.Start = time.Duration(ticks) * userTick
	return s, nil
}

// RealUser reads the real user ID of a process from the status in its directory, as the user namespace of the reader
// numbers it. It returns "" if the file cannot be read.
func RealUser(dir string) string {
	b, err := boundedfile.ReadOnce(filepath.Join(dir, "status"), make([]byte, maxStatus))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(b), "\nUid:")
	line, _, _ := strings.Cut(rest, "\n")
	if fields := strings.Fields(line); len(fields) == 4 {
		return fields[0]
	}
	return ""
}
