// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/tests/tools/child"
)

// callerVar makes the test binary the watched program, in this cgroup; its arguments are
// actions.
const callerVar = "ACCELSCOPE_TEST_CALLER"

// call enters the cgroup and runs actions: "NAME TIMES PATH" each.
func call(cgroup string, list []string) error {
	if err := os.WriteFile(filepath.Join(cgroup, "cgroup.procs"), []byte("0"), 0); err != nil {
		return err
	}
	for _, text := range list {
		var name, path string
		var times int
		if _, err := fmt.Sscan(text, &name, &times, &path); err != nil {
			return fmt.Errorf("%s: %w", text, err)
		}
		for range times {
			if err := actions[name](path); err != nil {
				return fmt.Errorf("%s: %w", text, err)
			}
		}
	}
	return nil
}

// closing closes an opened file; a denied open must have failed with EPERM.
func closing(fd int, err error, allowed bool) error {
	if err == nil {
		err = unix.Close(fd)
	}
	if !allowed {
		if errors.Is(err, unix.EPERM) {
			return nil
		}
		return fmt.Errorf("not refused: %w", errors.Join(err, os.ErrInvalid))
	}
	return err
}

var actions = map[string]func(path string) error{
	"open": func(path string) error {
		fd, err := unix.Open(path, unix.O_RDWR, 0)
		return closing(fd, err, true)
	},
	"path": func(path string) error {
		fd, err := unix.Open(path, unix.O_PATH, 0)
		return closing(fd, err, true)
	},
	// fail opens a device that has no driver.
	"fail": func(path string) error {
		if fd, err := unix.Open(path, unix.O_RDWR, 0); !errors.Is(err, unix.ENXIO) {
			return fmt.Errorf("opened as %d: %w", fd, errors.Join(err, os.ErrInvalid))
		}
		return nil
	},
	"access": func(path string) error { return unix.Access(path, unix.R_OK) },
	"run":    func(path string) error { return child.Command(context.Background(), path).Run() },
	"uring":  func(path string) error { return uringOpen(path, false) },
	"worker": func(path string) error { return uringOpen(path, true) },
	// hold keeps open files until standard input ends: two, one of them also as a duplicate and in a child process, and
	// a file with O_PATH.
	"hold": func(path string) error {
		first, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		second, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		if _, err := unix.Dup(int(first.Fd())); err != nil {
			return err
		}
		if _, err := unix.Open(path, unix.O_PATH, 0); err != nil {
			return err
		}
		child := child.Command(context.Background(), "sleep", "60")
		child.ExtraFiles = []*os.File{first, second}
		if err := child.Start(); err != nil {
			return err
		}
		fmt.Println(os.Getpid(), child.Process.Pid)
		_, _ = io.Copy(io.Discard, os.Stdin)
		_ = child.Process.Kill()
		_ = child.Wait()
		return errors.Join(first.Close(), second.Close())
	},

	"deniedOpen": func(path string) error {
		fd, err := unix.Open(path, unix.O_RDONLY, 0)
		return closing(fd, err, false)
	},
	"deniedOpenat2": func(path string) error {
		fd, err := unix.Openat2(unix.AT_FDCWD, path, &unix.OpenHow{Flags: unix.O_WRONLY})
		return closing(fd, err, false)
	},
	"deniedAccess": func(path string) error { return closing(-1, unix.Access(path, unix.R_OK), false) },
	"deniedUring":  func(path string) error { return closing(-1, uringOpen(path, false), false) },
	"deniedWorker": func(path string) error { return closing(-1, uringOpen(path, true), false) },
	"deniedWatch": func(path string) error {
		fd, err := unix.InotifyInit()
		if err != nil {
			return err
		}
		defer unix.Close(fd) //nolint:errcheck // the test has ended
		_, err = unix.InotifyAddWatch(fd, path, unix.IN_OPEN)
		return closing(-1, err, false)
	},
}
