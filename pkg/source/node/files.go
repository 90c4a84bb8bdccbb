// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// The most that is read of a file of procfs, and of sysfs (128 bytes, as
// node_exporter has it).
const (
	maxProc = 16 << 20
	maxSys  = 128
)

var errMalformed = errors.New("malformed")

// reader reads whole files into a buffer of its own: what package os adds to
// each open costs more than the read.
type reader struct{ buffer []byte }

// file gives the content of a file of procfs, until the next call.
func (r *reader) file(path string) ([]byte, error) {
	fd, err := open(path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if r.buffer == nil {
		r.buffer = make([]byte, 16<<10)
	}
	for size := 0; ; {
		n, err := read(fd, r.buffer[size:])
		if err != nil {
			return nil, &os.PathError{Op: "read", Path: path, Err: err}
		}
		if size += n; n == 0 || size == maxProc {
			return r.buffer[:size], nil
		}
		if size == len(r.buffer) {
			r.buffer = append(r.buffer, make([]byte, len(r.buffer))...)
		}
	}
}

// attribute gives the content of a file of sysfs. A driver that answers EAGAIN
// is not asked again.
func attribute(path string, buf *[maxSys]byte) ([]byte, error) {
	fd, err := open(path)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	n, err := read(fd, buf[:])
	if err != nil {
		return nil, &os.PathError{Op: "read", Path: path, Err: err}
	}
	return buf[:n], nil
}

func open(path string) (int, error) {
	for {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			if err != nil {
				return -1, &os.PathError{Op: "open", Path: path, Err: err}
			}
			return fd, nil
		}
	}
}

func read(fd int, buf []byte) (int, error) {
	for {
		n, err := unix.Read(fd, buf)
		if !errors.Is(err, unix.EINTR) {
			return max(n, 0), err
		}
	}
}

// number reads an unsigned attribute.
func number(path string) (uint64, error) {
	var buf [maxSys]byte
	b, err := attribute(path, &buf)
	if err != nil {
		return 0, err
	}
	v, ok := parseUint(bytes.TrimSpace(b))
	if !ok {
		return 0, fmt.Errorf("%s: %w: %.40q", path, errMalformed, b)
	}
	return v, nil
}

// cutLine gives the next line of b and what is behind it.
func cutLine(b []byte) (line, rest []byte) {
	line, rest, _ = bytes.Cut(b, []byte("\n"))
	return line, rest
}

// cutField gives the next word of b and what is behind it.
func cutField(b []byte) (field, rest []byte) {
	start := 0
	for start < len(b) && (b[start] == ' ' || b[start] == '\t') {
		start++
	}
	end := start
	for end < len(b) && b[end] != ' ' && b[end] != '\t' {
		end++
	}
	return b[start:end], b[end:]
}

// parseUint does not take what does not fit in 64 bits.
func parseUint(b []byte) (uint64, bool) {
	if len(b) == 0 {
		return 0, false
	}
	v := uint64(0)
	for _, c := range b {
		d := uint64(c - '0')
		if d > 9 || v > (math.MaxUint64-d)/10 {
			return 0, false
		}
		v = v*10 + d
	}
	return v, true
}

// parseUints reads the numbers of a line, up to the room in values, and gives
// how many there are.
func parseUints(b []byte, values []uint64) (int, bool) {
	for i := range values {
		var field []byte
		if field, b = cutField(b); len(field) == 0 {
			return i, true
		}
		v, ok := parseUint(field)
		if !ok {
			return i, false
		}
		values[i] = v
	}
	return len(values), true
}

// parseFloat is for what may be signed or have a point.
func parseFloat(b []byte) (float64, bool) {
	v, err := strconv.ParseFloat(string(b), 64)
	return v, err == nil
}
