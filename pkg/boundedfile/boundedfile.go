// SPDX-License-Identifier: Apache-2.0

// Package boundedfile reads small files of sysfs, procfs and cgroupfs: with a limit on the size, and again after a
// signal interrupted the system call (EINTR).
//
// It works on plain descriptors. The additional calls of package os at each open (epoll, fcntl, fstat) cost more than
// the read.
package boundedfile

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// ReadFile reads a file up to its end, but at most limit bytes, into buf, which it replaces if the file is longer. It
// takes an open, a close, a read for each part that the kernel returns, and a read for the end.
func ReadFile(name string, buf []byte, limit int) ([]byte, error) {
	fd, err := Open(unix.AT_FDCWD, name, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	return readAll(fd, name, buf, limit)
}

func readAll(fd int, name string, buf []byte, limit int) ([]byte, error) {
	buf = buf[:min(cap(buf), limit)]
	for size := 0; ; {
		if size == len(buf) {
			if size == limit {
				return buf, nil
			}
			buf = slices.Grow(buf, min(max(size, firstBuffer), limit-size))
			buf = buf[:min(cap(buf), limit)]
		}
		n, err := Read(fd, buf[size:])
		if err != nil {
			return nil, &os.PathError{Op: "read", Path: name, Err: err}
		}
		if n == 0 {
			return buf[:size], nil
		}
		size += n
	}
}

const firstBuffer = 4 << 10

// ReadOnce is ReadFile with a single read of at most len(buf) bytes. The kernel returns an attribute of sysfs or
// cgroupfs as a whole if it fits in the buffer.
func ReadOnce(name string, buf []byte) ([]byte, error) {
	fd, err := Open(unix.AT_FDCWD, name, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	defer unix.Close(fd)
	n, err := Read(fd, buf)
	if err != nil {
		return nil, &os.PathError{Op: "read", Path: name, Err: err}
	}
	return buf[:n], nil
}

// Open opens a file for reading. dir is an open directory for relative names, or unix.AT_FDCWD. flags are added to
// O_RDONLY and O_CLOEXEC.
func Open(dir int, name string, flags int) (int, error) {
	return Retry(func() (int, error) { return unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC|flags, 0) })
}

// Read reads from where the last read ended. At the end of the file it returns 0.
func Read(fd int, buf []byte) (int, error) {
	n, err := Retry(func() (int, error) { return unix.Read(fd, buf) })
	return max(n, 0), err
}

// ReadStart reads from the start of the file. On an open file of sysfs it returns fresh values.
func ReadStart(fd int, buf []byte) (int, error) {
	n, err := Retry(func() (int, error) { return unix.Pread(fd, buf, 0) })
	return max(n, 0), err
}

// Retry repeats a system call that a signal interrupted.
func Retry[T any](call func() (T, error)) (T, error) {
	for {
		v, err := call()
		if err == nil || !errors.Is(err, unix.EINTR) {
			return v, err
		}
	}
}

// Line returns the first line of b as text for a label: without white space around it, invalid UTF-8 and unprintable
// characters, and at most limit bytes long.
func Line(b []byte, limit int) string {
	line, _, _ := strings.Cut(string(b), "\n")
	line = strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(line, ""))
	if len(line) > limit {
		for limit > 0 && !utf8.RuneStart(line[limit]) {
			limit--
		}
		line = line[:limit]
	}
	return strings.TrimSpace(line)
}
