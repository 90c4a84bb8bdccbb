// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
)

// reader makes the system calls on the files of one device and counts them. It keeps
// descriptors open, unlike package boundedfile. An open may block: the call for the device has
// a deadline.
type reader struct {
	calls  int
	kept   *atomic.Int64 // descriptors that may still be kept, shared by all devices
	buffer []byte
}

var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// bufferSize exceeds any attribute (a page) and any single netlink reply (NLMSG_GOODSIZE), and
// holds a directory of a hundred devices.
const bufferSize = 8 << 10

// maxDevices limits the entries of a directory that are kept, and the devices of a node.
const maxDevices = 4096

// file is one attribute below an open directory.
type file struct {
	attempt
	fd int // -1 while not kept open
}

func newFile(name string) file { return file{attempt: attempt{name: name}, fd: -1} }

// read returns the start of the file, at most size bytes, valid until the next call. A
// kept descriptor returns fresh values. After the device was removed it returns ENODEV,
// and the file is opened again once.
func (r *reader) read(dir int, f *file, size int) ([]byte, error) {
	buf := r.buffer[:size]
	if f.fd >= 0 {
		n, err := r.pread(f.fd, buf)
		if err == nil || !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ESTALE) {
			return buf[:n], err
		}
		r.forget(f)
	}
	fd, err := r.openat(dir, f.name, 0)
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
	r.close(fd)
	return buf[:n], err
}

// line returns an attribute without keeping its descriptor open, or "" if there is none.
func (r *reader) line(dir int, path string) string { return parseLine(r.content(dir, path)) }

// name returns an attribute that is the name of a device, which may begin or end with a space.
func (r *reader) name(dir int, path string) string {
	return strings.TrimSuffix(string(r.content(dir, path)), "\n")
}

// content returns an attribute in the buffer, nothing if there is none.
func (r *reader) content(dir int, path string) []byte {
	fd, err := r.openat(dir, path, 0)
	if err != nil {
		return nil
	}
	defer r.close(fd)
	n, err := r.pread(fd, r.buffer)
	if err != nil || n == len(r.buffer) {
		return nil
	}
	return r.buffer[:n]
}

// link returns the target of a symbolic link, or "" if path is not one.
func (r *reader) link(path string) string {
	r.calls++
	n, err := boundedfile.Retry(func() (int, error) { return unix.Readlink(path, r.buffer) })
	if err != nil {
		return ""
	}
	return string(r.buffer[:n])
}

// forget closes a kept descriptor.
func (r *reader) forget(f *file) {
	if f.fd >= 0 {
		r.close(f.fd)
		f.fd = -1
		r.kept.Add(1)
	}
}

func (r *reader) openat(dir int, path string, flags int) (int, error) {
	r.calls++
	return boundedfile.Open(dir, path, flags)
}

// dup duplicates a descriptor.
func (r *reader) dup(fd int) (int, error) {
	r.calls++
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
}

func (r *reader) pread(fd int, buf []byte) (int, error) {
	r.calls++
	return boundedfile.ReadStart(fd, buf)
}

func (r *reader) close(fd int) {
	r.calls++
	_ = unix.Close(fd)
}

// list returns the sorted names in an open directory that valid accepts, at most
// maxDevices.
func (r *reader) list(dir int, valid func(string) bool) ([]string, error) {
	names := []string{}
	err := r.entries(dir, func(e boundedfile.Entry) {
		if name := string(e.Name); valid(name) && len(names) < maxDevices {
			names = append(names, name)
		}
	})
	slices.Sort(names)
	return names, err
}

// directory lists a directory by its path, which may be relative to an open one. An unreadable directory is empty.
func (r *reader) directory(dir int, path string, valid func(string) bool) []string {
	fd, err := r.openat(dir, path, unix.O_DIRECTORY)
	if err != nil {
		return nil
	}
	defer r.close(fd)
	names, _ := r.list(fd, valid)
	return names
}

// entries reads an open directory from its start.
func (r *reader) entries(dir int, fn func(boundedfile.Entry)) error {
	r.calls++
	if _, err := unix.Seek(dir, 0, 0); err != nil {
		return err
	}
	for {
		r.calls++
		n, err := boundedfile.Retry(func() (int, error) { return unix.ReadDirent(dir, r.buffer) })
		if err != nil || n <= 0 {
			return err
		}
		for e := range boundedfile.Entries(r.buffer[:n]) {
			fn(e)
		}
	}
}

// isSysfs distinguishes the real sysfs from a copy, for which netlink does not apply.
func isSysfs(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.SYSFS_MAGIC
}
