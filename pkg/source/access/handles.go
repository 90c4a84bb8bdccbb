// SPDX-License-Identifier: Apache-2.0

package access

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

// maxHandles bounds the counted open files; a node has some thousand.
const maxHandles = 65536

// ofCgroup is the part of maxHandles for a cgroup, as a divisor, so that a cgroup cannot use up the space of the
// others.
const ofCgroup = 8

const listLimit = 10 * time.Second

type handle struct {
	cgroup model.CgroupID
	rdev   uint32
}

type handles struct {
	counts map[handle]uint64 // distinct open files
	pids   map[int]bool      // processes with open files; true if a file is a GPU's
	lost   uint64            // files that exceeded the limits
}

// initialPIDs is the inode of the node's initial process namespace (PROC_PID_INIT_INO).
const initialPIDs = 0xEFFFFFFC

// nodePIDs returns an error in any other process namespace: the iterator lists the processes of the reader's namespace
// only.
func nodePIDs() error {
	var st unix.Stat_t
	if err := unix.Stat("/proc/self/ns/pid", &st); err != nil {
		return fmt.Errorf("process namespace: %w", err)
	}
	if st.Ino != initialPIDs {
		return fmt.Errorf("%w: share the node's process namespace (hostPID)", model.ErrUnsupported)
	}
	return nil
}

// listFiles runs the iterator over all open files of all processes. A file that is open in several processes, or twice
// in a process, is counted once for each of their cgroups.
func (s *sensor) listFiles(isGPU func(rdev uint32) bool) (handles, error) {
	r, err := s.files.Open()
	if err != nil {
		return handles{}, fmt.Errorf("iterator over open files: %w", err)
	}
	defer r.Close() //nolint:errcheck // only read
	return readFiles(again{r, time.Now().Add(listLimit)}, isGPU, maxHandles)
}

// readFiles reads a struct open_file for each file.
func readFiles(r io.Reader, isGPU func(rdev uint32) bool, limit int) (handles, error) {
	type file struct {
		address uint64
		cgroup  model.CgroupID
	}
	seen, mine := map[file]bool{}, map[model.CgroupID]int{}
	out := handles{counts: map[handle]uint64{}, pids: map[int]bool{}}
	var raw [24]byte
	for in := bufio.NewReaderSize(r, 1<<15); ; {
		if _, err := io.ReadFull(in, raw[:]); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return out, fmt.Errorf("iterator over open files: %w", err)
		}
		order := binary.NativeEndian
		f := gen.DevicesOpenFile{
			File: order.Uint64(raw[:]), Cgroup: order.Uint64(raw[8:]),
			Rdev: order.Uint32(raw[16:]), Tgid: order.Uint32(raw[20:]),
		}
		if len(out.pids) < limit || out.pids[int(f.Tgid)] {
			out.pids[int(f.Tgid)] = out.pids[int(f.Tgid)] || isGPU(f.Rdev)
		}
		switch key := (file{f.File, model.CgroupID(f.Cgroup)}); {
		case seen[key]:
		case len(seen) == limit || mine[model.CgroupID(f.Cgroup)] == max(limit/ofCgroup, 1):
			out.lost++
		default:
			seen[key] = true
			mine[model.CgroupID(f.Cgroup)]++
			out.counts[handle{model.CgroupID(f.Cgroup), f.Rdev}]++
		}
	}
}

// again continues reading where the kernel pauses: after each million files without a result. It has a deadline:
// processes may share a large descriptor table at no cost, and the kernel walks it for each of them.
type again struct {
	io.Reader
	until time.Time
}

var errTooMany = errors.New("more files are open than can be listed in time")

func (a again) Read(p []byte) (int, error) {
	for {
		if time.Now().After(a.until) {
			return 0, errTooMany
		}
		if n, err := a.Reader.Read(p); !errors.Is(err, unix.EAGAIN) {
			return n, err
		}
	}
}
