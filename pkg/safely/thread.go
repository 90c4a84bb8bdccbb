// SPDX-License-Identifier: Apache-2.0

package safely

import (
	"errors"
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// InNetwork calls f on its own thread in the network namespace of a file (/proc/PID/ns/net), and waits for f. It returns ErrPanicked if f
// panics.
func InNetwork(source string, fd int, f func() error) error {
	done := make(chan error, 1)
	OnOwnThread(source, func() {
		result := ErrPanicked
		defer func() { done <- result }()
		err := unix.Setns(fd, unix.CLONE_NEWNET)
		switch {
		case errors.Is(err, unix.EPERM):
			err = fmt.Errorf("setns: %w: add CAP_SYS_ADMIN", err)
		case err != nil:
			err = fmt.Errorf("setns: %w", err)
		default:
			err = f()
		}
		result = err
	})
	return <-done
}

// OnOwnThread is Do in a goroutine on a thread that ends with f, for a thread that stays in another namespace: when a goroutine ends while
// it is locked to its thread, the thread ends.
func OnOwnThread(source string, f func()) {
	go Do(source, func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f()
			return
		}
		// The main thread does not end, and /proc/self shows its namespaces. While this goroutine holds the main thread, f runs on another
		// thread.
		started := make(chan struct{})
		OnOwnThread(source, func() {
			close(started)
			f()
		})
		<-started
		runtime.UnlockOSThread()
	})
}
