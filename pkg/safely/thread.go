// SPDX-License-Identifier: Apache-2.0

package safely

import (
	"runtime"
	"syscall"
)

// OnOwnThread is Do in a goroutine on a thread that ends with f, for a thread that stays in another namespace: when a goroutine ends while
// it is locked to its thread, the thread ends.
func OnOwnThread(source string, f func()) {
	go Do(source, func() {
		runtime.LockOSThread()
		if syscall.Gettid() != syscall.Getpid() {
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
