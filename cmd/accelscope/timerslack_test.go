// SPDX-License-Identifier: Apache-2.0

//go:build cgo

package main

import (
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// All threads that the runtime starts inherit the slack, so that this one has it.
func TestTimerSlack(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if ns, err := unix.PrctlRetInt(unix.PR_GET_TIMERSLACK, 0, 0, 0, 0); err != nil || ns != 500_000 {
		t.Errorf("timer slack %d ns: %v", ns, err)
	}
}
