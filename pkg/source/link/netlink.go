// SPDX-License-Identifier: Apache-2.0

package link

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/boundedfile"
)

// socket is a netlink socket for one goroutine. It stays open: neither rtnetlink nor generic netlink pins a driver.
type socket struct {
	fd  int
	seq uint32
	buf []byte
}

// replySize is more than any reply. The largest is that to DCB_CMD_IEEE_GET, with an entry for each of 64 DSCPs.
const replySize = 16 << 10

func openSocket(protocol int) (*socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	return &socket{fd: fd, buf: make([]byte, replySize)}, nil
}

func (s *socket) close() { _ = unix.Close(s.fd) }

// replyTime is how long a reply may take after the kernel has handled the request. It handles a request inside send, so the
// reply is there at once.
const replyTime = 5 * time.Second

// ask sends a request and returns the payload of its reply, which is valid until the next call. The kernel handles the request inside
// send, which has no deadline: the caller must be a goroutine that may be abandoned.
func (s *socket) ask(typ uint16, body []byte) ([]byte, error) {
	s.seq++
	if _, err := boundedfile.Retry(func() (int, error) { return unix.Write(s.fd, message(typ, s.seq, body)) }); err != nil {
		return nil, fmt.Errorf("send: %w", err)
	}
	for deadline := time.Now().Add(replyTime); ; {
		n, err := s.receive(deadline)
		if err != nil {
			return nil, fmt.Errorf("receive: %w", err)
		}
		if payload, found, err := reply(s.buf[:n], typ, s.seq); found || err != nil {
			return payload, err
		}
	}
}

// receive receives the messages of one datagram.
func (s *socket) receive(deadline time.Time) (int, error) {
	for {
		n, from, err := unix.Recvfrom(s.fd, s.buf, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			left := time.Until(deadline)
			if left <= 0 {
				return 0, os.ErrDeadlineExceeded
			}
			_, err := unix.Poll([]unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
			if err != nil && !errors.Is(err, unix.EINTR) {
				return 0, err
			}
		case err != nil:
			return 0, err
		case n > len(s.buf):
			return 0, errMalformed
		case n == 0:
			return 0, syscall.ECONNRESET
		default:
			if kernel, ok := from.(*unix.SockaddrNetlink); !ok || kernel.Pid == 0 {
				return n, nil
			}
		}
	}
}
