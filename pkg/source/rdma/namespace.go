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

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
)

// namespaceDevices dumps the devices of a namespace. The reply depends on the namespace
// in which the socket is opened.
func (s *Source) namespaceDevices(n model.Namespace) (all []nldev.Device, err error) {
	err = s.enterNamespace(n, func() error {
		all, err = nldev.Devices(s.dial, time.Now().Add(s.opt.Deadline))
		return err
	})
	return all, err
}

// dialNamespace opens an RDMA netlink socket in a namespace. Any thread may use it. The
// namespace exists at least as long as the socket.
func (s *Source) dialNamespace(n model.Namespace) (c *nldev.Conn, err error) {
	err = s.enterNamespace(n, func() error {
		c, err = s.dial()
		return err
	})
	return c, err
}

// openNamespace opens the directory of a device (class/infiniband/NAME) in the sysfs of a namespace. The node's sysfs
// does not show these devices.
func (s *Source) openNamespace(n model.Namespace, name string) (dir int, err error) {
	err = s.enterNamespace(n, func() error {
		dir, err = openSysfs("class/infiniband/" + name)
		return err
	})
	return dir, err
}

// openSysfs opens a directory of the sysfs of the thread's network namespace, whatever is mounted: the mount is
// detached (fsmount), and the kernel removes it when the last file in it is closed. The mount does not hold the
// namespace. Needs Linux 5.2.
func openSysfs(path string) (int, error) {
	wrap := func(err error) error {
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("mount of a sysfs: %w: add CAP_SYS_ADMIN", err)
		}
		return fmt.Errorf("mount of a sysfs: %w", err)
	}
	fs, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, wrap(err)
	}
	defer unix.Close(fs)
	if err := unix.FsconfigCreate(fs); err != nil {
		return -1, wrap(err)
	}
	const safe = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	mount, err := unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, safe)
	if err != nil {
		return -1, wrap(err)
	}
	defer unix.Close(mount)
	return boundedfile.Open(mount, path, unix.O_DIRECTORY)
}

// enterNamespace runs fn on its own thread in a network namespace, which it opens through a process in it. It returns
// errOther if the process has ended or another process has its PID.
//
// vishvananda/netns (v0.0.5) wraps open and setns and leaves the thread to its caller. nl.GetNetlinkSocketAt (netlink
// v1.3.1) ignores an error of the setns back and gives the thread to other goroutines, which would then run in the
// namespace of a pod.
func (s *Source) enterNamespace(n model.Namespace, fn func() error) error {
	path := filepath.Join(s.opt.Procfs, strconv.Itoa(n.PID), "ns/net")
	fd, err := boundedfile.Open(unix.AT_FDCWD, path, 0)
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
		result := safely.ErrPanicked
		defer func() { done <- result }()
		err := unix.Setns(fd, unix.CLONE_NEWNET)
		switch {
		case errors.Is(err, unix.EPERM):
			err = fmt.Errorf("setns: %w: add CAP_SYS_ADMIN", err)
		case err != nil:
			err = fmt.Errorf("setns: %w", err)
		default:
			err = fn()
		}
		result = err
	})
	return <-done
}

// onOwnThread runs fn on a thread that ends with fn, because the thread stays in another namespace: when a goroutine
// ends while it is locked to its thread, the thread ends.
func onOwnThread(fn func()) {
	go safely.Do("rdma", func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			fn()
			return
		}
		// The main thread does not end, and /proc/self shows its namespaces. While this goroutine holds the main
		// thread, fn runs on another thread.
		started := make(chan struct{})
		onOwnThread(func() {
			close(started)
			fn()
		})
		<-started
		runtime.UnlockOSThread()
	})
}
