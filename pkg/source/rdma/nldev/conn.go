// SPDX-License-Identifier: Apache-2.0

package nldev

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
)

// Conn is a netlink socket, usually of RDMA netlink, for one goroutine. It is open for one read only: opening a socket
// loads ib_core, and an open socket pins ib_core and blocks a driver reload.
type Conn struct{ *netlink.Conn }

// Dialer opens a socket in a network namespace.
type Dialer = func() (*Conn, error)

// Dial opens a socket. It returns ErrUnsupported if the kernel has no RDMA netlink.
func Dial() (*Conn, error) {
	c, err := netlink.Dial(unix.NETLINK_RDMA)
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT):
		return nil, fmt.Errorf("RDMA netlink: %w: load ib_core: %w", model.ErrUnsupported, err)
	case err != nil:
		return nil, fmt.Errorf("RDMA netlink: %w", err)
	}
	return &Conn{c}, nil
}

// Request sends one command and passes every reply to fn.
func (c *Conn) Request(r Request, deadline time.Time, fn func(payload []byte) error) error {
	if err := c.Ask(r.encode(), MessageType(r.Cmd), deadline, fn); err != nil {
		return fmt.Errorf("RDMA netlink: command %d: %w", r.Cmd, err)
	}
	return nil
}

// Request is one nldev command, optionally for one device and port.
type Request struct {
	Cmd         uint16
	dump        bool
	Acknowledge bool    // request an NLMSG_ERROR as the reply
	Index       *uint32 // RDMA device index
	Port        uint32
	Attrs       []byte // further attributes
}

func (r Request) encode() []byte {
	var flags uint16
	if r.dump {
		flags |= unix.NLM_F_DUMP
	}
	if r.Acknowledge {
		flags |= unix.NLM_F_ACK
	}
	var b []byte
	if r.Index != nil {
		b = netlink.AppendU32(b, AttrDevIndex, *r.Index)
	}
	if r.Port != 0 {
		b = netlink.AppendU32(b, AttrPortIndex, r.Port)
	}
	return netlink.Message(MessageType(r.Cmd), flags, append(b, r.Attrs...))
}

// dump collects all replies to a dump. It repeats a dump that a change interrupted or that lost
// a message, on a new socket.
func dump[T any](dial func() (*Conn, error), r Request, deadline time.Time,
	parse func([]T, []byte) ([]T, error),
) ([]T, error) {
	r.dump = true
	for attempt := 1; ; attempt++ {
		c, err := dial()
		if err != nil {
			return nil, err
		}
		all := []T{}
		err = c.Request(r, deadline, func(payload []byte) (err error) {
			all, err = parse(all, payload)
			return err
		})
		c.Close()
		if attempt < 3 && (errors.Is(err, netlink.ErrInterrupted) || errors.Is(err, unix.ENOBUFS)) {
			continue
		}
		return all, err
	}
}
