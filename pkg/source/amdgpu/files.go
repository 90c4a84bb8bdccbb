// SPDX-License-Identifier: Apache-2.0

package amdgpu

import (
	"bytes"
	"errors"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// readSome reads the start of a file of the kernel. What package os adds to an open
// costs more than the read.
func readSome(name string) ([]byte, error) {
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	var buffer [maxAttribute]byte // on the stack: most files are a number
	used := 0
	for used < len(buffer) {
		n, err := unix.Read(fd, buffer[used:])
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, &os.PathError{Op: "read", Path: name, Err: err}
		case n <= 0:
			return bytes.Clone(buffer[:used]), nil
		}
		used += n
	}
	return bytes.Clone(buffer[:]), nil
}

// readNames reads the first names of a directory, unsorted.
func readNames(dir string, limit int) ([]string, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(limit)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

// numbers are the names that are process ids or file descriptors.
func numbers(names []string) []int {
	list := make([]int, 0, len(names))
	for _, name := range names {
		if n, err := strconv.ParseUint(name, 10, 31); err == nil {
			list = append(list, int(n))
		}
	}
	return list
}
