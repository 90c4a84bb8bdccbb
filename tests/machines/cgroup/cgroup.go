// SPDX-License-Identifier: Apache-2.0

// Package cgroup makes cgroups for tests.
package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// V2 returns the mount point of version 2, which may be beside the mount points of version 1.
func V2() string {
	const root, hybrid = "/sys/fs/cgroup", "/sys/fs/cgroup/unified"
	if _, err := os.Stat(hybrid + "/cgroup.procs"); err == nil {
		return hybrid
	}
	return root
}

// New makes a cgroup below parent, and removes it at the end of the test. The id is the directory's inode.
func New(t testing.TB, parent string) (dir string, id uint64) {
	t.Helper()
	dir, err := os.MkdirTemp(parent, "accelscope-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Remove(dir); err != nil {
			t.Error(err)
		}
	})
	info, err := os.Stat(dir)
	if err != nil {
		t.Fatal(err)
	}
	return dir, info.Sys().(*syscall.Stat_t).Ino
}

// Remove removes a cgroup and all below it. It retries for up to 30 seconds while the last processes end, and may still
// make cgroups.
func Remove(dir string) error {
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := removeOnce(dir)
		if !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return err
		}
	}
}

func removeOnce(root string) error {
	var dirs []string
	if err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	}); err != nil {
		return err
	}
	for _, dir := range slices.Backward(dirs) { // subdirectories first
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
		}
	}
	return nil
}
