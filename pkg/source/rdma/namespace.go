// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
)

// namespaceDevices dumps the devices that a namespace shows. The socket is made in
// there: what it tells depends on that.
func (s *Source) namespaceDevices(n model.Namespace) (devices []nlDevice, err error) {
	err = s.enterNamespace(n, func() error {
		devices, err = dump(s.dial, request{cmd: cmdGet}, time.Now().Add(s.opt.Deadline), parseDevice)
		return err
	})
	return devices, err
}

// enterNamespace runs fn on a thread of its own in a network namespace, which it
// finds through a process in it. It gives errOther when the process is not there
// any more: its number may be another's by now.
func (s *Source) enterNamespace(n model.Namespace, fn func() error) error {
	path := filepath.Join(s.opt.Procfs, strconv.Itoa(n.PID), "ns/net")
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ESRCH):
		return errOther
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return fmt.Errorf("%s: %w: add CAP_SYS_PTRACE", path, err)
	case err != nil:
		return fmt.Errorf("%s: %w", path, err)
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil || st.Ino != n.Inode {
		return errOther
	}
	done := make(chan error, 1)
	onOwnThread(func() {
		err := unix.Setns(fd, unix.CLONE_NEWNET)
		switch {
		case errors.Is(err, unix.EPERM):
			err = fmt.Errorf("setns: %w: add CAP_SYS_ADMIN", err)
		case err != nil:
			err = fmt.Errorf("setns: %w", err)
		default:
			err = fn()
		}
		done <- err
	})
	return <-done
}

// onOwnThread runs fn on a thread that ends with it: a goroutine that ends while
// it is locked to its thread takes that along, with the namespace it is in.
func onOwnThread(fn func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			fn()
			return
		}
		// The main thread does not end, and /proc/self is what it is. While it is
		// held here fn gets another.
		started := make(chan struct{})
		onOwnThread(func() {
			close(started)
			fn()
		})
		<-started
		runtime.UnlockOSThread()
	}()
}
