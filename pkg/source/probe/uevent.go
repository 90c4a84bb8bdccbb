// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/safely"
)

// ueventGroup is the multicast group of the kernel's messages. Group 2 has udev's messages.
const ueventGroup = 1

// maxUevent is more than the kernel's UEVENT_BUFFER_SIZE plus the path before it.
const maxUevent = 8 << 10

// uevents is a socket with the kernel's messages about devices (NETLINK_KOBJECT_UEVENT): added, removed, renamed. It
// needs no privilege. A message is ACTION@PATH and then NAME=VALUE pairs, each followed by a NUL.
type uevents struct {
	socket *os.File
	// changed has a value after devices of the RDMA classes changed. It is closed when the socket is no longer read.
	changed chan struct{}
}

func openUevents() (*uevents, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, fmt.Errorf("uevents: %w", os.NewSyscallError("socket", err))
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: ueventGroup}); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("uevents: %w", os.NewSyscallError("bind", err))
	}
	u := &uevents{socket: os.NewFile(uintptr(fd), "uevents"), changed: make(chan struct{}, 1)}
	go safely.Do("probe", u.run)
	return u, nil
}

func (u *uevents) run() {
	defer close(u.changed)
	buf := make([]byte, maxUevent)
	for {
		n, err := u.socket.Read(buf)
		lost := errors.Is(err, unix.ENOBUFS)
		if err != nil && !lost {
			return
		}
		if lost || isRDMA(buf[:n]) {
			select {
			case u.changed <- struct{}{}:
			default: // a value is waiting already
			}
		}
	}
}

// isRDMA reports whether a message is about a device of class infiniband, or of a class with that prefix, such as
// infiniband_verbs.
func isRDMA(message []byte) bool { return bytes.Contains(message, []byte("\x00SUBSYSTEM=infiniband")) }

func (u *uevents) close() { _ = u.socket.Close() }
