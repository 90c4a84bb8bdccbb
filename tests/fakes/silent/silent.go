// SPDX-License-Identifier: Apache-2.0

// Package silent has a file system that does not answer, for tests of hangs in the kernel.
package silent

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// Mount mounts a FUSE file system with a source, as mountinfo shows it. It answers only the first request, FUSE_INIT. A
// process that looks up a file in it sleeps uninterruptibly, even when killed (request_wait_answer in fs/fuse/dev.c),
// until answer closes the connection.
func Mount(t *testing.T, source string) (dir string, answer func()) {
	t.Helper()
	dir = t.TempDir()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal("/dev/fuse: ", err)
	}
	if err := unix.Mount(source, dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)); err != nil {
		t.Fatal("mount: ", err)
	}
	const (
		inHeader  = 40 // struct fuse_in_header of include/uapi/linux/fuse.h: len, opcode, unique, …
		outHeader = 16 // struct fuse_out_header: len, error, unique
		initOut   = 64 // struct fuse_init_out: major, minor, max_readahead, flags, max_background, congestion_threshold, max_write, …
	)
	request := make([]byte, 1<<17)
	if n, err := unix.Read(fd, request); err != nil || n < inHeader {
		t.Fatal("FUSE_INIT: ", n, err)
	}
	reply := make([]byte, outHeader+initOut)
	binary.NativeEndian.PutUint32(reply, uint32(len(reply)))
	copy(reply[8:16], request[8:16])
	binary.NativeEndian.PutUint32(reply[outHeader:], 7)
	binary.NativeEndian.PutUint32(reply[outHeader+4:], 31)
	binary.NativeEndian.PutUint32(reply[outHeader+20:], 4096)
	if _, err := unix.Write(fd, reply); err != nil {
		t.Fatal("FUSE_INIT: ", err)
	}
	done := make(chan struct{})
	go func() { // until the file system is unmounted, or the connection aborted
		defer close(done)
		for {
			if _, err := unix.Read(fd, request); err != nil && !errors.Is(err, unix.EINTR) {
				return
			}
		}
	}()
	ended := false
	answer = func() {
		if ended {
			return
		}
		ended = true
		if err := unix.Unmount(dir, unix.MNT_FORCE|unix.MNT_DETACH); err != nil {
			t.Error("unmount: ", err)
		}
		<-done
		_ = unix.Close(fd)
	}
	t.Cleanup(answer)
	return dir, answer
}
