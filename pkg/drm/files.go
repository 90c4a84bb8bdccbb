// SPDX-License-Identifier: Apache-2.0

package drm

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

const (
	drmMajor = 226 // include/drm/drm_file.h: DRM_MAJOR
	maxFiles = 1 << 15
	maxFile  = 1 << 20 // bytes that are read of a file: 15000 locks
	maxText  = 4 << 10 // bytes that are kept of a file
)

// Files calls f with the minor number and the fdinfo of each DRM node that a process has open, among the first 32768
// descriptors. It does not call f for a process that has ended or that the sensor may not read. It reads the fdinfo
// only of wanted minor numbers: the read calls the node's driver, and xe wakes its GPU for it.
//
// The minor number is the kernel's. A container may choose another node's file name: docker run --device
// /dev/dri/renderD129:/dev/dri/renderD128.
func Files(procfs string, pid int, wanted func(minor uint32) bool, f func(minor uint32, fdinfo []byte)) {
	dir := filepath.Join(procfs, strconv.Itoa(pid))
	names, err := ReadNames(filepath.Join(dir, "fd"), maxFiles)
	if err != nil {
		return
	}
	for _, name := range names {
		// AT_STATX_DONT_SYNC does not ask the server of a network or FUSE file system, which may never answer.
		var st unix.Statx_t
		err := unix.Statx(unix.AT_FDCWD, dir+"/fd/"+name, unix.AT_STATX_DONT_SYNC, unix.STATX_TYPE, &st)
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR || st.Rdev_major != drmMajor || !wanted(st.Rdev_minor) {
			continue
		}
		if text, err := read(dir + "/fdinfo/" + name); err == nil {
			f(st.Rdev_minor, text)
		}
	}
}

// read reads a file of fdinfo without locks on the file, which the kernel lists before the driver's lines; a process
// may have any number of locks.
func read(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var text []byte
	lines := bufio.NewScanner(io.LimitReader(f, maxFile))
	for lines.Scan() && len(text) < maxText {
		if line := lines.Bytes(); !bytes.HasPrefix(line, []byte("lock:")) {
			text = append(append(text, line...), '\n')
		}
	}
	return text, lines.Err()
}
