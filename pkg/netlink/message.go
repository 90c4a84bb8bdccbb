// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"encoding/binary"
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

var (
	// ErrMalformed reports a truncated or unparsable message or attribute.
	ErrMalformed = errors.New("malformed netlink message")
	// ErrInterrupted reports that the kernel's list changed while it was dumped.
	ErrInterrupted = errors.New("netlink dump was interrupted by a change")
)

var native = binary.NativeEndian

// Message returns a request. Ask sets its sequence number.
func Message(typ, flags uint16, body []byte) []byte {
	b := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+len(body))
	native.PutUint32(b, uint32(unix.SizeofNlMsghdr+len(body)))
	native.PutUint16(b[4:], typ)
	native.PutUint16(b[6:], unix.NLM_F_REQUEST|flags)
	return append(b, body...)
}

// Messages passes the payload of each reply of one type in a datagram to fn and reports whether it saw the last reply.
// It skips replies to other requests.
func Messages(b []byte, typ uint16, seq uint32, fn func(payload []byte) error) (done bool, err error) {
	for len(b) > 0 {
		if len(b) < unix.SizeofNlMsghdr {
			return false, ErrMalformed
		}
		n := int64(native.Uint32(b))
		if n < unix.SizeofNlMsghdr || n > int64(len(b)) {
			return false, ErrMalformed
		}
		of, flags, to := native.Uint16(b[4:]), native.Uint16(b[6:]), native.Uint32(b[8:])
		payload := b[unix.SizeofNlMsghdr:n]
		b = b[min(align4(int(n)), len(b)):]
		switch {
		case to != seq:
			continue
		case flags&unix.NLM_F_DUMP_INTR != 0:
			return false, ErrInterrupted
		}
		switch of {
		case unix.NLMSG_NOOP:
		case unix.NLMSG_OVERRUN:
			return false, syscall.ENOBUFS
		case unix.NLMSG_ERROR:
			if len(payload) < 4 {
				return false, ErrMalformed
			}
			return true, errno(payload)
		case unix.NLMSG_DONE:
			return true, errno(payload)
		case typ:
			if err := fn(payload); err != nil {
				return false, err
			}
			if flags&unix.NLM_F_MULTI == 0 {
				return true, nil
			}
		}
	}
	return false, nil
}

// errno returns the error number of an NLMSG_ERROR or NLMSG_DONE.
func errno(payload []byte) error {
	if len(payload) < 4 {
		return nil
	}
	if n := int32(native.Uint32(payload)); n < 0 && n >= -4095 {
		return syscall.Errno(-n)
	}
	return nil
}

func align4(n int) int { return (n + 3) &^ 3 }
