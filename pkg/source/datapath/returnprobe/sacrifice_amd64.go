// SPDX-License-Identifier: Apache-2.0

package returnprobe

import (
	"encoding/binary"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// init makes this process the child of an experiment if it was started as one, before the
// program that contains this package runs.
func init() {
	if len(os.Args) == 3 && os.Args[1] == childArgument {
		if calls, known := situations[situation(os.Args[2])]; known {
			sacrifice(calls)
		}
	}
}

// systemCall is a system call and its arguments.
type systemCall struct {
	number uintptr
	args   [5]uintptr
}

const (
	archShadowStackEnable = 0x5001 // ARCH_SHSTK_ENABLE of arch_prctl(2), Linux 6.6
	archShadowStack       = 1      // ARCH_SHSTK_SHSTK
)

// Memory that the system calls read.
var (
	allSignals = ^uint64(0)
	// filter permits exit_group(2) and lets all other system calls fail with EPERM, as the
	// filters of container runtimes do with system calls that they do not list.
	filter = []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_EXIT_GROUP, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)},
	}
	filterProgram = unix.SockFprog{Len: uint16(len(filter)), Filter: unsafe.SliceData(filter)}
)

// situations are the system calls that create them.
var situations = map[situation][]systemCall{
	underSeccomp: {
		{unix.SYS_PRCTL, [5]uintptr{unix.PR_SET_NO_NEW_PRIVS, 1}},
		{unix.SYS_PRCTL, [5]uintptr{unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&filterProgram))}},
	},
	withShadowStack: {
		{unix.SYS_ARCH_PRCTL, [5]uintptr{archShadowStackEnable, archShadowStack}},
	},
}

// sacrifice makes the system calls of a situation, calls emulatedLeaf, and ends the process.
//
// All of it is done by one function in assembly that does not return: the Go runtime could
// not make system calls under the filter, and the shadow stack does not have the frames of
// the callers. With all signals blocked, the thread is not interrupted, and a fault ends
// the process by its signal, without the runtime's handler. Without PR_SET_DUMPABLE it
// leaves no core dump.
func sacrifice(calls []systemCall) {
	runtime.LockOSThread()
	calls = append([]systemCall{
		{unix.SYS_RT_SIGPROCMASK, [5]uintptr{unix.SIG_SETMASK, uintptr(unsafe.Pointer(&allSignals)), 0, uintptr(binary.Size(allSignals))}},
		{unix.SYS_PRCTL, [5]uintptr{unix.PR_SET_DUMPABLE, 0}},
	}, calls...)
	callProbed(unsafe.SliceData(calls), len(calls))
}

// callProbed makes system calls, calls emulatedLeaf and exits.
//
//go:noescape
func callProbed(calls *systemCall, n int)
