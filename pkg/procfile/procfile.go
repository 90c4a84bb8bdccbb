// SPDX-License-Identifier: Apache-2.0

// Package procfile reads files of a process in /proc. prometheus/procfs is slower (a stat takes 17 µs instead of 5),
// and Slurm's ranks need the stat of each process of a job.
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
	maxStat   = 1024                       // a name has 16 bytes, 50 numbers have at most 20 digits
	maxStatus = 4 << 10                    // Uid is within it; the lists of groups, CPUs and NUMA nodes after Uid may be long
	maxTicks  = 100 * 365 * 24 * time.Hour // of uptime, and of CPU time
)

// userTick is the unit of times in stat, 1/USER_HZ: USER_HZ is 100 on each architecture that Go supports.
const userTick = time.Second / 100

// ErrFormat is the error of a file that does not have the kernel's format.
var ErrFormat = errors.New("not the format of /proc/PID/stat")

// Stat is a part of /proc/PID/stat (fs/proc/array.c, do_task_stat).
type Stat struct {
	Name  string        // comm: chosen by the process, any bytes
	State string        // R, S, D, Z (zombie), X (dead) and others
	Flags uint64        // PF_*
	Start time.Duration // since boot, including the time in suspend
	CPU   time.Duration // used by all its threads so far
	// Threads is the number of threads. The State is of the first thread, which may end before the others.
	Threads uint64
}

// ReadStat reads the stat of a process in a directory of procfs: /proc/PID.
func ReadStat(dir string) (Stat, error) {
	b, err := boundedfile.ReadOnce(filepath.Join(dir, "stat"), make([]byte, maxStat))
	if err != nil {
		return Stat{}, err
	}
	return ParseStat(b)
}

// ParseStat parses the content of stat. The name is between the first and the last parenthesis, and may contain
// parentheses.
func ParseStat(b []byte) (Stat, error) {
	begin, end := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if begin < 0 || end < begin {
		return Stat{}, fmt.Errorf("%w: no name", ErrFormat)
	}
	const flags, user, system, threads, start = 9 - 3, 14 - 3, 15 - 3, 20 - 3, 22 - 3 // field 3 follows the name
	fields := bytes.Fields(b[end+1:])
	if len(fields) <= start {
		return Stat{}, fmt.Errorf("%w: %d fields", ErrFormat, len(fields)+2)
	}
	s := Stat{Name: string(b[begin+1 : end]), State: string(fields[0])}
	var err error
	if s.Flags, err = strconv.ParseUint(string(fields[flags]), 10, 64); err != nil {
		return Stat{}, fmt.Errorf("%w: flags: %w", ErrFormat, err)
	}
	if s.Threads, err = strconv.ParseUint(string(fields[threads]), 10, 64); err != nil {
		return Stat{}, fmt.Errorf("%w: num_threads: %w", ErrFormat, err)
	}
	if s.Start, err = parseTicks(fields[start]); err != nil {
		return Stat{}, fmt.Errorf("starttime: %w", err)
	}
	inUser, err := parseTicks(fields[user])
	if err != nil {
		return Stat{}, fmt.Errorf("utime: %w", err)
	}
	inKernel, err := parseTicks(fields[system])
	if err != nil {
		return Stat{}, fmt.Errorf("stime: %w", err)
	}
	s.CPU = inUser + inKernel
	return s, nil
}

func parseTicks(field []byte) (time.Duration, error) {
	ticks, err := strconv.ParseUint(string(field), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if ticks > uint64(maxTicks/userTick) {
		return 0, fmt.Errorf("%w: %d", ErrFormat, ticks)
	}
	return time.Duration(ticks) * userTick, nil
}

// RealUser reads a process's real user ID from the status in its directory, in the reader's user namespace. It returns
// "" if the file cannot be read.
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
