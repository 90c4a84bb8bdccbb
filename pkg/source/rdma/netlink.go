// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
	"github.com/accelscope/accelscope/pkg/model"
)

// conn is a netlink socket, usually of RDMA netlink, for one goroutine. It is open for one read
// only: an open socket pins ib_core and blocks a driver reload, and opening one loads ib_core.
type conn struct {
	fd    int
	seq   uint32
	buf   []byte
	calls int // requests sent
}

// recvBuffer is the maximum size of one message of a dump.
const recvBuffer = 32 << 10

// dialNetlink opens a socket. It returns ErrUnsupported if the kernel has no RDMA netlink.
func dialNetlink() (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_RDMA)
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT):
		return nil, fmt.Errorf("RDMA netlink: %w: load ib_core: %w", model.ErrUnsupported, err)
	case err != nil:
		return nil, fmt.Errorf("RDMA netlink: %w", err)
	}
	return &conn{fd: fd}, nil
}

func (c *conn) close() { _ = unix.Close(c.fd) }

// request sends one command and passes every reply to fn.
func (c *conn) request(r request, deadline time.Time, fn func(payload []byte) error) error {
	if err := c.ask(r.encode(c.seq+1), nldev(r.cmd), deadline, fn); err != nil {
		return fmt.Errorf("RDMA netlink: command %d: %w", r.cmd, err)
	}
	return nil
}

// ask sends a message with the next sequence number and passes every reply of type typ to fn.
// The kernel handles the message inside send, which has no deadline: the caller must be a
// goroutine that may be abandoned.
func (c *conn) ask(b []byte, typ uint16, deadline time.Time, fn func(payload []byte) error) error {
	if c.buf == nil {
		c.buf = make([]byte, recvBuffer)
	}
	c.seq++
	c.calls++
	if _, err := boundedfile.Retry(func() (int, error) { return unix.Write(c.fd, b) }); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	for {
		n, err := c.receive(deadline)
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		if done, err := messages(c.buf[:n], typ, c.seq, fn); done || err != nil {
			return err
		}
	}
}

// receive receives one message. It blocks only in poll: usually the reply is already there.
func (c *conn) receive(deadline time.Time) (int, error) {
	for {
		n, from, err := unix.Recvfrom(c.fd, c.buf, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			left := time.Until(deadline)
			if left <= 0 {
				return 0, os.ErrDeadlineExceeded
			}
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return 0, err
			}
		case err != nil:
			return 0, err
		case n > len(c.buf):
			return 0, errTruncated
		case n == 0:
			return 0, syscall.ECONNRESET
		default:
			if kernel, ok := from.(*unix.SockaddrNetlink); !ok || kernel.Pid == 0 {
				return n, nil
			}
		}
	}
}

// request is one nldev command, optionally for one device and port.
type request struct {
	cmd         uint16
	dump        bool
	acknowledge bool    // request an NLMSG_ERROR as the reply
	index       *uint32 // RDMA device index
	port        uint32
	attrs       []byte // further attributes
}

func (r request) encode(seq uint32) []byte {
	b := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+16)
	flags := uint16(unix.NLM_F_REQUEST)
	if r.dump {
		flags |= unix.NLM_F_DUMP
	}
	if r.acknowledge {
		flags |= unix.NLM_F_ACK
	}
	if r.index != nil {
		b = appendU32(b, attrDevIndex, *r.index)
	}
	if r.port != 0 {
		b = appendU32(b, attrPortIndex, r.port)
	}
	b = append(b, r.attrs...)
	native.PutUint32(b, uint32(len(b)))
	native.PutUint16(b[4:], nldev(r.cmd))
	native.PutUint16(b[6:], flags)
	native.PutUint32(b[8:], seq)
	return b
}

func appendU32(b []byte, typ uint16, v uint32) []byte {
	b = native.AppendUint16(b, unix.SizeofNlAttr+4)
	b = native.AppendUint16(b, typ)
	return native.AppendUint32(b, v)
}

// dump collects all replies to a dump. It repeats a dump that a change interrupted or that lost
// a message, on a new socket.
func dump[T any](dial func() (*conn, error), r request, deadline time.Time,
	parse func([]T, []byte) ([]T, error),
) ([]T, error) {
	r.dump = true
	for attempt := 1; ; attempt++ {
		c, err := dial()
		if err != nil {
			return nil, err
		}
		all := []T{}
		err = c.request(r, deadline, func(payload []byte) (err error) {
			all, err = parse(all, payload)
			return err
		})
		c.close()
		if attempt < 3 && (errors.Is(err, errInterrupted) || errors.Is(err, unix.ENOBUFS)) {
			continue
		}
		return all, err
	}
}
