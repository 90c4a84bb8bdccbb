// SPDX-License-Identifier: Apache-2.0

// Package netlink exchanges messages with the kernel by netlink (include/uapi/linux/netlink.h): a socket, the replies
// to a request, and their attributes. The sources know what the messages mean. The parsers do not trust their input:
// they return an error for malformed data, and skip unknown attributes.
package netlink

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
)

// BufferSize is more than any datagram of a dump, and more than any single reply except a list of many virtual
// functions.
const BufferSize = 32 << 10

// Conn is a netlink socket, for one goroutine.
type Conn struct {
	FD       int
	Buffer   []byte // of one datagram; Ask allocates BufferSize if it is nil
	Requests uint32 // sent requests; the sequence number of the last request
}

// Dial opens a socket of a protocol, such as unix.NETLINK_ROUTE.
func Dial(protocol int) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	return &Conn{FD: fd}, nil
}

// Close closes the socket.
func (c *Conn) Close() { _ = unix.Close(c.FD) }

// Ask sends a request and passes every reply of type typ to fn, whose argument is valid until the next call. The kernel
// handles the request inside send, which has no deadline: the caller must be a goroutine that may be abandoned.
func (c *Conn) Ask(request []byte, typ uint16, deadline time.Time, fn func(payload []byte) error) error {
	if c.Buffer == nil {
		c.Buffer = make([]byte, BufferSize)
	}
	c.Requests++
	SetSequence(request, c.Requests)
	if _, err := boundedfile.Retry(func() (int, error) { return unix.Write(c.FD, request) }); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	for {
		n, err := c.Receive(deadline)
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		if done, err := Messages(c.Buffer[:n], typ, c.Requests, fn); done || err != nil {
			return err
		}
	}
}

// SetSequence sets the sequence number of a request, which its replies have.
func SetSequence(request []byte, n uint32) { native.PutUint32(request[8:], n) }

// Receive receives a datagram into the buffer. It blocks only in poll: usually the reply is ready.
func (c *Conn) Receive(deadline time.Time) (int, error) {
	for {
		n, from, err := unix.Recvfrom(c.FD, c.Buffer, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			left := time.Until(deadline)
			if left <= 0 {
				return 0, os.ErrDeadlineExceeded
			}
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(c.FD), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return 0, err
			}
		case err != nil:
			return 0, err
		case n > len(c.Buffer):
			return 0, ErrMalformed
		case n == 0:
			return 0, syscall.ECONNRESET
		default:
			if kernel, ok := from.(*unix.SockaddrNetlink); !ok || kernel.Pid == 0 {
				return n, nil
			}
		}
	}
}
