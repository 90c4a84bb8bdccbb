// SPDX-License-Identifier: Apache-2.0

package access

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/gen"
)

// maxHandles bounds the open files that are told apart; a node has some thousand.
const maxHandles = 65536

// A handle is what an open file is counted for.
type handle struct {
	cgroup uint64
	rdev   uint32
}

// handles are the open files of watched devices at one moment.
type handles struct {
	counts map[handle]uint64 // distinct open files
	pids   map[int]bool      // who has them; whether any of them is a GPU's
	lost   uint64            // for how many was no room
}

// listFiles runs the iterator over all open files of all processes. A file that
// several processes have, or one has twice, is one for each of their cgroups.
func (s *sensor) listFiles(isGPU func(rdev uint32) bool) (handles, error) {
	r, err := s.files.Open()
	if err != nil {
		return handles{}, fmt.Errorf("iterator over open files: %w", err)
	}
	defer r.Close() //nolint:errcheck // only read
	return readFiles(again{r}, isGPU, maxHandles)
}

// readFiles reads a struct open_file for each.
func readFiles(r io.Reader, isGPU func(rdev uint32) bool, limit int) (handles, error) {
	type file struct {
		address uint64
		cgroup  uint64
	}
	seen := map[file]bool{}
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
		switch key := (file{f.File, f.Cgroup}); {
		case seen[key]:
		case len(seen) == limit:
			out.lost++
		default:
			seen[key] = true
			out.counts[handle{f.Cgroup, f.Rdev}]++
		}
	}
}

// again goes on where the kernel pauses: after each million files of which none
// was to be told.
type again struct{ io.Reader }

func (a again) Read(p []byte) (int, error) {
	for {
		if n, err := a.Reader.Read(p); !errors.Is(err, unix.EAGAIN) {
			return n, err
		}
	}
}
