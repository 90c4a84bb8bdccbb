// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
)

// conn is a netlink socket, usually of RDMA netlink, for one goroutine. It is open for one read
// only: an open socket pins ib_core and blocks a driver reload, and opening one loads ib_core.
type conn struct{ *netlink.Conn }

// dialNetlink opens a socket. It returns ErrUnsupported if the kernel has no RDMA netlink.
func dialNetlink() (*conn, error) {
	c, err := netlink.Dial(unix.NETLINK_RDMA)
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT):
		return nil, fmt.Errorf("RDMA netlink: %w: load ib_core: %w", model.ErrUnsupported, err)
	case err != nil:
		return nil, fmt.Errorf("RDMA netlink: %w", err)
	}
	return &conn{c}, nil
}

// request sends one command and passes every reply to fn.
func (c *conn) request(r request, deadline time.Time, fn func(payload []byte) error) error {
	if err := c.Ask(r.encode(), nldev(r.cmd), deadline, fn); err != nil {
		return fmt.Errorf("RDMA netlink: command %d: %w", r.cmd, err)
	}
	return nil
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

func (r request) encode() []byte {
	var flags uint16
	if r.dump {
		flags |= unix.NLM_F_DUMP
	}
	if r.acknowledge {
		flags |= unix.NLM_F_ACK
	}
	var b []byte
	if r.index != nil {
		b = netlink.AppendU32(b, attrDevIndex, *r.index)
	}
	if r.port != 0 {
		b = netlink.AppendU32(b, attrPortIndex, r.port)
	}
	return netlink.Message(nldev(r.cmd), flags, append(b, r.attrs...))
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
		c.Close()
		if attempt < 3 && (errors.Is(err, netlink.ErrInterrupted) || errors.Is(err, unix.ENOBUFS)) {
			continue
		}
		return all, err
	}
}
