// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/safely"
	"github.com/accelscope/accelscope/pkg/source/rdma/nldev"
)

// opener opens the devices of one network namespace.
type opener struct {
	dial nldev.Dialer                     // RDMA netlink
	open func(device string) (int, error) // the directory of a device
}

// namespace is a network namespace that may not be the sensor's.
type namespace struct {
	model.Namespace
	procfs string
	socket nldev.Dialer // opens RDMA netlink in the network namespace of the thread
}

// dial opens an RDMA netlink socket in the namespace, which decides what the kernel replies. Any thread may use it. The
// namespace exists at least as long as the socket.
func (n namespace) dial() (c *nldev.Conn, err error) {
	err = n.enter(func() error {
		c, err = n.socket()
		return err
	})
	return c, err
}

// open opens the directory of a device (class/infiniband/NAME) in the sysfs of the namespace. The node's sysfs does not
// show these devices.
func (n namespace) open(name string) (dir int, err error) {
	err = n.enter(func() error {
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

// enter runs fn on its own thread in the namespace, which it opens through a process in it. It returns
// errOther if the process has ended or another process has its PID.
//
// vishvananda/netns (v0.0.5) wraps open and setns and leaves the thread to its caller. nl.GetNetlinkSocketAt (netlink
// v1.3.1) ignores an error of the setns back and gives the thread to other goroutines, which would then run in the
// namespace of a pod.
func (n namespace) enter(fn func() error) error {
	path := filepath.Join(n.procfs, strconv.Itoa(n.PID), "ns/net")
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
	return safely.InNetwork("rdma", fd, fn)
}
