// SPDX-License-Identifier: Apache-2.0

//go:build amd64

package returnprobe

import (
	"errors"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Situations of the tests, which children of the test program know, too.
var (
	_ = func() bool {
		filtered := situations[underSeccomp]
		situations["after a refused call"] = append(slices.Clone(filtered), systemCall{number: unix.SYS_GETPID})
		situations["with a filter that kills"] = []systemCall{
			filtered[0],
			{unix.SYS_PRCTL, [5]uintptr{unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&killProgram))}},
		}
		situations["killed by somebody"] = []systemCall{{unix.SYS_KILL, [5]uintptr{0, uintptr(unix.SIGKILL)}}}
		situations["that does not end"] = []systemCall{{number: unix.SYS_PAUSE}}
		return true
	}()
	kill        = []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_KILL_PROCESS}}
	killProgram = unix.SockFprog{Len: uint16(len(kill)), Filter: unsafe.SliceData(kill)}
)

// TestChildren: the filter is in force, a deadly signal is recognized, and what shows nothing is not mistaken for it.
func TestChildren(t *testing.T) {
	e := startExperimenter(t)
	if err := e.try(t.Context(), "after a refused call"); !errors.Is(err, unix.EPERM) || errors.Is(err, errDied) {
		t.Errorf("getpid under the filter: %v, want EPERM", err)
	}
	if err := e.try(t.Context(), "with a filter that kills"); !errors.Is(err, errDied) {
		t.Errorf("SIGSYS: %v", err)
	}
	for _, s := range []situation{"killed by somebody", "that does not end"} {
		if err := e.try(t.Context(), s); err == nil || errors.Is(err, errDied) {
			t.Errorf("%s: %v", s, err)
		}
	}
	if err := e.try(t.Context(), underSeccomp); err != nil {
		t.Error(err)
	}
}
