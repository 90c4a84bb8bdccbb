// SPDX-License-Identifier: Apache-2.0

package hca

import (
	"encoding/binary"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/netlink"
)

var native = binary.NativeEndian

// The builders below make replies that were not recorded: replies of vendor drivers, and malformed replies. They are
// constructed from the kernel headers.

// Attr is an attribute.
func Attr(typ uint16, data ...byte) []byte {
	b := native.AppendUint16(nil, uint16(4+len(data)))
	b = native.AppendUint16(b, typ)
	b = append(b, data...)
	return append(b, make([]byte, -len(b)&3)...)
}

// U32 is an attribute with a u32.
func U32(typ uint16, v uint32) []byte { return Attr(typ, native.AppendUint32(nil, v)...) }

// U64 is an attribute with a u64.
func U64(typ uint16, v uint64) []byte { return Attr(typ, native.AppendUint64(nil, v)...) }

// Text is an attribute with a string.
func Text(typ uint16, s string) []byte { return Attr(typ, append([]byte(s), 0)...) }

// Nest is an attribute that contains attributes.
func Nest(typ uint16, of ...[]byte) []byte {
	return Attr(typ|unix.NLA_F_NESTED, slices.Concat(of...)...)
}

// Message is a netlink message.
func Message(typ, flags uint16, seq uint32, payload ...[]byte) []byte {
	p := slices.Concat(payload...)
	b := native.AppendUint32(nil, uint32(16+len(p)))
	b = native.AppendUint16(b, typ)
	b = native.AppendUint16(b, flags)
	b = native.AppendUint32(b, seq)
	b = native.AppendUint32(b, 0)
	return append(b, p...)
}

// Reply is a message of the nldev client (RDMA_NL_NLDEV).
func Reply(cmd, flags uint16, payload ...[]byte) []byte {
	return Message(5<<10|cmd, flags, 1, payload...)
}

// Kernel answers requests on one end of a socket pair, in place of netlink. answer returns the datagrams for one
// request. Messages with the sequence number 1 get the sequence number of the request.
func Kernel(t testing.TB, answer func(r []byte) [][]byte) func() (*netlink.Conn, error) {
	return func() (*netlink.Conn, error) {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			defer unix.Close(fds[1])
			b := make([]byte, 4096)
			for {
				n, err := unix.Read(fds[1], b)
				if n <= 0 || err != nil {
					return
				}
				for _, d := range answer(b[:n]) {
					d = slices.Clone(d)
					for m := d; len(m) >= unix.SizeofNlMsghdr && int(native.Uint32(m)) <= len(m) && native.Uint32(m) >= unix.SizeofNlMsghdr; {
						if native.Uint32(m[8:]) == 1 {
							copy(m[8:12], b[8:12])
						}
						m = m[min(len(m), int(native.Uint32(m)+3)&^3):]
					}
					if _, err := unix.Write(fds[1], d); err != nil {
						return
					}
				}
			}
		}()
		return &netlink.Conn{FD: fds[0]}, nil
	}
}

// Done ends a dump.
func Done() []byte {
	return Message(unix.NLMSG_DONE, unix.NLM_F_MULTI, 1, make([]byte, 4))
}

// Failure is an error, or an acknowledgement for 0.
func Failure(e unix.Errno) []byte {
	return Message(unix.NLMSG_ERROR, 0, 1, native.AppendUint32(nil, uint32(-int32(e))))
}
