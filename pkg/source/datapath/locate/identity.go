// SPDX-License-Identifier: Apache-2.0

package locate

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// regular returns an error unless a file is a regular one that is not on FUSE. A
// FUSE server can block readers for any time, also the kernel when it attaches a
// probe.
func regular(fd int) error {
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return fmt.Errorf("%w: not a regular file", errNoProvider)
	}
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return err
	}
	if fs.Type == unix.FUSE_SUPER_MAGIC {
		return fmt.Errorf("%w: on FUSE", errNoProvider)
	}
	return nil
}

// mappedID returns the device and inode that /proc/PID/maps has for a file. It maps
// the file to find out, as stat(2) differs on overlayfs, btrfs and others.
func mappedID(procfs string, f *os.File) (FileID, error) {
	page, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return FileID{}, fmt.Errorf("map %s: %w", f.Name(), err)
	}
	defer unix.Munmap(page) //nolint:errcheck // ours
	own, err := os.Open(procfs + "/self/maps")
	if err != nil {
		return FileID{}, err
	}
	defer own.Close()
	address := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(page))))
	var id FileID
	err = eachMapping(own, func(m mapping, _ string) error {
		if m.start <= address && address < m.end {
			id = m.file
			return io.EOF
		}
		return nil
	})
	if errors.Is(err, io.EOF) {
		return id, nil
	}
	return FileID{}, cmp.Or(err, errMaps)
}

// version identifies the content of a file. If the inode number is used again or
// the content changes, the change time differs.
type version struct {
	size   int64
	change unix.Timespec
}

func versionOf(st *unix.Stat_t) version { return version{size: st.Size, change: st.Ctim} }

const (
	// overlayDevice stands for the device of files on overlayfs. The containers of one
	// image share files and their probes, and have different devices.
	overlayDevice = ^uint64(0)
	// atHandleFID is AT_HANDLE_FID: a handle that only identifies a file.
	atHandleFID = 0x200
)

var handleSeed = maphash.MakeSeed()

// identify returns the file that a probe would be attached to, and its version.
// mapped is its id in /proc/PID/maps.
func identify(f *os.File, mapped FileID) (FileID, version, error) {
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return mapped, version{}, err
	}
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return mapped, version{}, err
	}
	v := versionOf(&st)
	if fs.Type == unix.BTRFS_SUPER_MAGIC {
		// /proc/PID/maps has the device of the file system, but inode numbers are per
		// subvolume: files of two images can have the same.
		return FileID{Device: uint64(st.Dev), Inode: st.Ino}, v, nil
	}
	if fs.Type != unix.OVERLAYFS_SUPER_MAGIC || st.Ctim.Nsec == 0 { // an image that is mounted twice has two ids
		return mapped, v, nil
	}
	// The handle contains the one of the lower file. Before 6.6, which added these
	// handles, /proc/PID/maps had the id of the lower file.
	handle, _, err := unix.NameToHandleAt(int(f.Fd()), "", unix.AT_EMPTY_PATH|atHandleFID)
	if err != nil {
		return mapped, v, nil
	}
	var h maphash.Hash
	h.SetSeed(handleSeed)
	h.Write(handle.Bytes()) // contains the generation of the inode
	return FileID{Device: overlayDevice, Inode: h.Sum64()}, v, nil
}
