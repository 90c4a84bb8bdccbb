// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
)

// listing is a directory of sysfs that is read several times per second and seldom changes. It stays open, because
// opening costs more than reading. A change shows in the inode numbers and names that getdents64 returns.
type listing struct {
	path    string
	fd      int // -1 without a directory
	entries int // number of devices
	seen    []byte
	buffer  []byte
}

func newListing(path string) *listing { return &listing{path: path, fd: -1} }

// poll reports whether the entries changed since the last poll. A missing directory is empty. The modules of a driver
// may remove and create the directory: an open directory that was removed lists no entries.
func (l *listing) poll() (changed bool, err error) {
	n, err := l.read()
	if err != nil || n == 0 {
		l.close()
		n, err = l.read()
	}
	if err != nil {
		l.close()
		return false, fmt.Errorf("%s: %w", l.path, err)
	}
	changed = !bytes.Equal(l.buffer, l.seen)
	l.entries = n
	l.seen, l.buffer = l.buffer, l.seen
	return changed, nil
}

func (l *listing) close() {
	if l.fd >= 0 {
		_ = unix.Close(l.fd)
		l.fd = -1
	}
}

func (l *listing) read() (int, error) {
	l.buffer = l.buffer[:0]
	if l.fd < 0 {
		fd, err := unix.Open(l.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		l.fd = fd
	} else if _, err := unix.Seek(l.fd, 0, 0); err != nil {
		return 0, err
	}
	for {
		l.buffer = slices.Grow(l.buffer, 4096)
		end := len(l.buffer)
		n, err := unix.Getdents(l.fd, l.buffer[end:cap(l.buffer)])
		if err != nil || n <= 0 {
			return countEntries(l.buffer), err
		}
		l.buffer = l.buffer[:end+n]
	}
}

// countEntries counts the getdents64 records. It leaves out ., .. and abi_version, a file of class/infiniband_verbs.
func countEntries(b []byte) int {
	count := 0
	for e := range boundedfile.Entries(b) {
		switch string(e.Name) {
		case ".", "..", "abi_version":
		default:
			count++
		}
	}
	return count
}
