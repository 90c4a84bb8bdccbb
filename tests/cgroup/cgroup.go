// SPDX-License-Identifier: Apache-2.0

// Package cgroup makes cgroups for tests.
package cgroup

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// V2 returns the mount point of version 2, which may be beside those of version 1.
func V2() string {
	const root, hybrid = "/sys/fs/cgroup", "/sys/fs/cgroup/unified"
	if _, err := os.Stat(hybrid + "/cgroup.procs"); err == nil {
		return hybrid
	}
	return root
}

// New makes a cgroup below another one, and removes it at the end of the test. The id is that of its directory.
func New(t testing.TB, parent string) (dir string, id uint64) {
	t.Helper()
	dir, err := os.MkdirTemp(parent, "accelscope-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range 1000 { // EBUSY while the last process is being reaped
			if err := unix.Rmdir(dir); err == nil || errors.Is(err, unix.ENOENT) {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Errorf("%s cannot be removed", dir)
	})
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir, info.Sys().(*syscall.Stat_t).Ino
}
