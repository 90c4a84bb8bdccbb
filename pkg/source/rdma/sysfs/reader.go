// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
)

// Reader makes the system calls on the files of one device and counts them. Unlike package boundedfile, it keeps
// descriptors open. An open may block: the call for the device has a deadline.
type Reader struct {
	Calls  int
	kept   *atomic.Int64 // descriptors that may still be kept, shared by all devices
	Buffer []byte
}

// NewReader returns a reader that keeps no descriptors.
func NewReader() *Reader { return &Reader{Buffer: make([]byte, BufferSize), kept: new(atomic.Int64)} }

// Buffers has buffers for the readers of devices.
var Buffers = sync.Pool{New: func() any { return new([BufferSize]byte) }}

// BufferSize exceeds any attribute (a page) and any single netlink reply (NLMSG_GOODSIZE), and holds a directory of a
// hundred devices.
const BufferSize = 8 << 10

// MaxDevices bounds the entries of a directory that are kept, and the devices of a node.
const MaxDevices = 4096

// InFlight is the number of devices that are read at the same time.
const InFlight = 16

// file is one attribute below an open directory.
type file struct {
	Attempt
	fd int // -1 while not kept open
}

func newFile(name string) file { return file{Attempt: Attempt{Name: name}, fd: -1} }

// read returns the start of the file, at most size bytes, valid until the next call. A
// kept descriptor returns fresh values. After the device was removed it returns ENODEV,
// and the file is opened again once.
func (r *Reader) read(dir int, f *file, size int) ([]byte, error) {
	buf := r.Buffer[:size]
	if f.fd >= 0 {
		n, err := r.pread(f.fd, buf)
		if err == nil || !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ESTALE) {
			return buf[:n], err
		}
		r.forget(f)
	}
	fd, err := r.Openat(dir, f.Name, 0)
	if err != nil {
		return nil, err
	}
	n, err := r.pread(fd, buf)
	if err == nil && r.kept.Add(-1) >= 0 {
		f.fd = fd
		return buf[:n], nil
	}
	if err == nil {
		r.kept.Add(1)
	}
	r.Close(fd)
	return buf[:n], err
}

// Line returns an attribute without keeping its descriptor open, or "" if the attribute does not exist.
func (r *Reader) Line(dir int, path string) string { return ParseLine(r.content(dir, path)) }

// name returns an attribute that is the name of a device, which may begin or end with a space.
func (r *Reader) name(dir int, path string) string {
	return strings.TrimSuffix(string(r.content(dir, path)), "\n")
}

// content returns an attribute in the buffer, or nil if the attribute does not exist.
func (r *Reader) content(dir int, path string) []byte {
	fd, err := r.Openat(dir, path, 0)
	if err != nil {
		return nil
	}
	defer r.Close(fd)
	n, err := r.pread(fd, r.Buffer)
	if err != nil || n == len(r.Buffer) {
		return nil
	}
	return r.Buffer[:n]
}

// Link returns the target of a symbolic link, or "" if path is not a symbolic link.
func (r *Reader) Link(path string) string {
	r.Calls++
	n, err := boundedfile.Retry(func() (int, error) { return unix.Readlink(path, r.Buffer) })
	if err != nil {
		return ""
	}
	return string(r.Buffer[:n])
}

// forget closes a kept descriptor.
func (r *Reader) forget(f *file) {
	if f.fd >= 0 {
		r.Close(f.fd)
		f.fd = -1
		r.kept.Add(1)
	}
}

// Openat opens a file below an open directory, or below unix.AT_FDCWD.
func (r *Reader) Openat(dir int, path string, flags int) (int, error) {
	r.Calls++
	return boundedfile.Open(dir, path, flags)
}

func (r *Reader) dup(fd int) (int, error) {
	r.Calls++
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
}

func (r *Reader) pread(fd int, buf []byte) (int, error) {
	r.Calls++
	return boundedfile.ReadStart(fd, buf)
}

// Close closes a descriptor.
func (r *Reader) Close(fd int) {
	r.Calls++
	_ = unix.Close(fd)
}

// List returns the sorted names in an open directory that valid accepts, at most MaxDevices.
func (r *Reader) List(dir int, valid func(string) bool) ([]string, error) {
	names := []string{}
	err := r.Entries(dir, func(e boundedfile.Entry) {
		if name := string(e.Name); valid(name) && len(names) < MaxDevices {
			names = append(names, name)
		}
	})
	slices.Sort(names)
	return names, err
}

// Directory lists a directory by its path, which may be relative to an open directory. An unreadable directory is
// empty.
func (r *Reader) Directory(dir int, path string, valid func(string) bool) []string {
	fd, err := r.Openat(dir, path, unix.O_DIRECTORY)
	if err != nil {
		return nil
	}
	defer r.Close(fd)
	names, _ := r.List(fd, valid)
	return names
}

// Entries reads an open directory from its start.
func (r *Reader) Entries(dir int, fn func(boundedfile.Entry)) error {
	r.Calls++
	if _, err := unix.Seek(dir, 0, 0); err != nil {
		return err
	}
	for {
		r.Calls++
		n, err := boundedfile.Retry(func() (int, error) { return unix.ReadDirent(dir, r.Buffer) })
		if err != nil || n <= 0 {
			return err
		}
		for e := range boundedfile.Entries(r.Buffer[:n]) {
			fn(e)
		}
	}
}
