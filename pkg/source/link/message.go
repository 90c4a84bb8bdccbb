// SPDX-License-Identifier: Apache-2.0

package link

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// This file encodes and decodes netlink messages (include/uapi/linux/netlink.h). The functions do not trust their input: they
// skip unknown attributes and return an error for malformed ones.

// errMalformed reports a message that cannot be parsed.
var errMalformed = errors.New("malformed netlink message")

var native = binary.NativeEndian

// message returns a request.
func message(typ uint16, seq uint32, body []byte) []byte {
	b := make([]byte, unix.SizeofNlMsghdr, unix.SizeofNlMsghdr+len(body))
	native.PutUint32(b, uint32(unix.SizeofNlMsghdr+len(body)))
	native.PutUint16(b[4:], typ)
	native.PutUint16(b[6:], unix.NLM_F_REQUEST)
	native.PutUint32(b[8:], seq)
	return append(b, body...)
}

// reply finds the reply to a request, or the error that is the reply, among the messages of a datagram.
func reply(b []byte, typ uint16, seq uint32) (payload []byte, found bool, err error) {
	for len(b) > 0 {
		if len(b) < unix.SizeofNlMsghdr {
			return nil, false, errMalformed
		}
		n := int64(native.Uint32(b))
		if n < unix.SizeofNlMsghdr || n > int64(len(b)) {
			return nil, false, errMalformed
		}
		of, to, payload := native.Uint16(b[4:]), native.Uint32(b[8:]), b[unix.SizeofNlMsghdr:n]
		b = b[min(align4(int(n)), len(b)):]
		switch {
		case to != seq:
		case of == typ:
			return payload, true, nil
		case of == unix.NLMSG_ERROR && len(payload) >= 4:
			if n := int32(native.Uint32(payload)); n < 0 && n >= -4095 {
				return nil, true, syscall.Errno(-n)
			}
			return nil, true, errMalformed // an acknowledgement, which was not requested
		}
	}
	return nil, false, nil
}

func align4(n int) int { return (n + 3) &^ 3 }

// appendAttr appends an attribute.
func appendAttr(b []byte, typ uint16, data []byte) []byte {
	b = native.AppendUint16(b, uint16(unix.SizeofNlAttr+len(data)))
	b = native.AppendUint16(b, typ)
	b = append(b, data...)
	return append(b, make([]byte, align4(len(data))-len(data))...)
}

// attrs iterates over the attributes of a message.
type attrs struct {
	rest []byte
	typ  uint16
	data []byte
	err  error
}

func (a *attrs) next() bool {
	if a.err != nil || len(a.rest) == 0 {
		return false
	}
	if len(a.rest) < unix.SizeofNlAttr {
		a.err = errMalformed
		return false
	}
	n := int(native.Uint16(a.rest))
	if n < unix.SizeofNlAttr || n > len(a.rest) {
		a.err = errMalformed
		return false
	}
	a.typ = native.Uint16(a.rest[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
	a.data = a.rest[unix.SizeofNlAttr:n]
	a.rest = a.rest[min(align4(n), len(a.rest)):]
	return true
}

// sized returns the n bytes of an attribute. If it has another size, it sets err and returns zeros.
func (a *attrs) sized(n int) []byte {
	if len(a.data) != n {
		a.err = fmt.Errorf("%w: attribute %d has %d bytes, not %d", errMalformed, a.typ, len(a.data), n)
		return make([]byte, n)
	}
	return a.data
}

func (a *attrs) u8() uint8   { return a.sized(1)[0] }
func (a *attrs) u16() uint16 { return native.Uint16(a.sized(2)) }
func (a *attrs) u32() uint32 { return native.Uint32(a.sized(4)) }
func (a *attrs) u64() uint64 { return native.Uint64(a.sized(8)) }

// text returns the string up to its NUL.
func text(b []byte) []byte {
	t, _, _ := bytes.Cut(b, []byte{0})
	return t
}
