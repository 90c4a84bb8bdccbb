// SPDX-License-Identifier: Apache-2.0

package boundedfile

import (
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// OpenBelow opens a path for reading as a process with the root directory root sees it: absolute symbolic links, such
// as in the node's /etc, begin at root. flags are added to O_RDONLY and O_CLOEXEC.
func OpenBelow(root, path string, flags int) (int, error) {
	fd, err := openBelow(root, path, flags)
	if err != nil {
		return -1, &os.PathError{Op: "openat2", Path: filepath.Join(root, path), Err: err}
	}
	return fd, nil
}

func openBelow(root, path string, flags int) (int, error) {
	if root == "/" { // links begin there anyway, and RestrictSUIDSGID of systemd forbids openat2
		return Open(unix.AT_FDCWD, filepath.Join(root, path), flags)
	}
	dir, err := Open(unix.AT_FDCWD, root, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	how := unix.OpenHow{
		Flags:   uint64(unix.O_RDONLY | unix.O_CLOEXEC | flags), //nolint:gosec // flags are positive
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	return Retry(func() (int, error) { return unix.Openat2(dir, path, &how) })
}

// Below returns the path at which this process sees a path of a root directory, without symbolic links.
func Below(root, path string) (string, error) {
	fd, err := OpenBelow(root, path, unix.O_PATH)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
}

// ReadFileBelow is ReadFile of a path of a root directory.
func ReadFileBelow(root, path string, buf []byte, limit int) ([]byte, error) {
	fd, err := OpenBelow(root, path, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return readAll(fd, filepath.Join(root, path), buf, limit)
}
