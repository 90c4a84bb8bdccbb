// SPDX-License-Identifier: Apache-2.0

package access

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// io_uring by hand: include/uapi/linux/io_uring.h.
const (
	sysURingSetup, sysURingEnter = 425, 426
	opOpenat                     = 18
	sqeAsync                     = 1 << 4
	enterGetEvents               = 1
	offSQEs                      = 0x10000000
)

type uringParams struct {
	sqEntries, cqEntries, flags, threadCPU, threadIdle, features, wqFD uint32
	_                                                                  [3]uint32
	// head, tail, mask, entries, flags, dropped, array; head, tail, mask, entries, overflow, cqes
	sq, cq [10]uint32
}

// hasUring reports whether programs may use io_uring. In the guests they may.
func hasUring(t *testing.T) bool {
	t.Helper()
	var p uringParams
	fd, _, errno := unix.Syscall(sysURingSetup, 1, uintptr(unsafe.Pointer(&p)), 0)
	switch errno {
	case 0:
		_ = unix.Close(int(fd))
		return true
	case unix.ENOSYS, unix.EPERM: // not built in, or forbidden by kernel.io_uring_disabled
		if os.Getenv("ACCELSCOPE_GUEST") == "" {
			return false
		}
	}
	t.Fatalf("io_uring_setup: %v", errno)
	return false
}

// uringOpen opens and closes a path through io_uring: in the submitting system call, or in a worker. The kernel cancels
// an operation before it opens anything if signals interrupt each of its few attempts to start the worker; the Go
// runtime sends signals.
func uringOpen(path string, worker bool) error {
	for {
		if err := uringTry(path, worker); !errors.Is(err, unix.ECANCELED) {
			return err
		}
	}
}

func uringTry(path string, worker bool) error {
	var p uringParams
	ring, _, errno := unix.Syscall(sysURingSetup, 1, uintptr(unsafe.Pointer(&p)), 0)
	if errno != 0 {
		return fmt.Errorf("io_uring_setup: %w", errno)
	}
	defer unix.Close(int(ring)) //nolint:errcheck // the test has ended
	const protection, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	rings, err := unix.Mmap(int(ring), 0, 4096, protection, flags) // both rings, since 5.4
	if err != nil {
		return err
	}
	defer unix.Munmap(rings) //nolint:errcheck // the test has ended
	sqes, err := unix.Mmap(int(ring), offSQEs, 64, protection, flags)
	if err != nil {
		return err
	}
	defer unix.Munmap(sqes) //nolint:errcheck // the test has ended
	name := append([]byte(path), 0)
	sqes[0] = opOpenat
	if worker {
		sqes[1] = sqeAsync
	}
	order := binary.NativeEndian
	at := int32(unix.AT_FDCWD)
	order.PutUint32(sqes[4:], uint32(at))
	order.PutUint64(sqes[16:], uint64(uintptr(unsafe.Pointer(&name[0]))))
	order.PutUint32(sqes[28:], unix.O_RDONLY)
	order.PutUint32(rings[p.sq[6]:], 0) // the first entry
	order.PutUint32(rings[p.sq[1]:], 1)
	// A signal of the Go runtime interrupts the wait, but the submission succeeds.
	tail := (*uint32)(unsafe.Pointer(&rings[p.cq[1]]))
	for submit := uintptr(1); atomic.LoadUint32(tail) == 0; submit = 0 {
		_, _, errno := unix.Syscall6(sysURingEnter, ring, submit, 1, enterGetEvents, 0, 0)
		if errno != 0 && (submit != 0 || errno != unix.EINTR) {
			return fmt.Errorf("io_uring_enter: %w", errno)
		}
	}
	runtime.KeepAlive(name)
	res := int32(order.Uint32(rings[p.cq[5]+8:]))
	if res < 0 {
		return unix.Errno(-res)
	}
	return unix.Close(int(res))
}

// opens32 writes a 32-bit program that opens a path and checks it with access(2), each this many times. It returns ""
// if 32-bit programs do not run.
func opens32(t *testing.T, path string, times byte) string {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		return ""
	}
	const base, header = 0x08048000, 52 + 32
	code := []byte{0xbe, times, 0, 0, 0} // mov esi, times
	loop := len(code)
	asked := []byte{0xbb, 0, 0, 0, 0} // mov ebx, path: filled in below
	code = append(code, 0xb8, 5, 0, 0, 0)
	first := len(code) + 1
	code = append(code, asked...)
	code = append(code, 0x31, 0xc9, 0xcd, 0x80) // open(path, O_RDONLY)
	code = append(code, 0xb8, 33, 0, 0, 0)
	second := len(code) + 1
	code = append(code, asked...)
	code = append(code, 0xb9, 4, 0, 0, 0, 0xcd, 0x80) // access(path, R_OK)
	code = append(code, 0x4e, 0x75, byte(loop-len(code)-3))
	code = append(code, 0xb8, 1, 0, 0, 0, 0x31, 0xdb, 0xcd, 0x80) // exit(0)
	order := binary.LittleEndian
	for _, at := range []int{first, second} {
		order.PutUint32(code[at:], uint32(base+header+len(code)))
	}
	code = append(append(code, path...), 0)
	size := uint32(header + len(code))
	var file bytes.Buffer
	file.Write([]byte{0x7f, 'E', 'L', 'F', 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	for _, part := range []any{
		[]uint16{2, 3},                                         // executable, 386
		[]uint32{1, base + header, 52, 0, 0},                   // entry, program headers
		[]uint16{52, 32, 1, 0, 0, 0},                           // sizes
		[]uint32{1, 0, base, base, size, size, 1 | 4, 1 << 12}, // one segment
	} {
		if err := binary.Write(&file, order, part); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(t.TempDir(), "opens32")
	if err := os.WriteFile(program, append(file.Bytes(), code...), 0o755); err != nil {
		t.Fatal(err)
	}
	return program
}
