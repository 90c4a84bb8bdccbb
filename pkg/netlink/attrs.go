// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"
)

// Attrs iterates over the attributes of a message or of a nest.
type Attrs struct {
	rest []byte
	Type uint16
	Data []byte
	Err  error // ends the iteration
}

// Parse returns an iterator before the first attribute.
func Parse(b []byte) Attrs { return Attrs{rest: b} }

// Next proceeds to the next attribute, if any.
func (a *Attrs) Next() bool {
	if a.Err != nil || len(a.rest) == 0 {
		return false
	}
	if len(a.rest) < unix.SizeofNlAttr {
		a.Err = ErrMalformed
		return false
	}
	n := int(native.Uint16(a.rest))
	if n < unix.SizeofNlAttr || n > len(a.rest) {
		a.Err = ErrMalformed
		return false
	}
	a.Type = native.Uint16(a.rest[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
	a.Data = a.rest[unix.SizeofNlAttr:n]
	a.rest = a.rest[min(align4(n), len(a.rest)):]
	return true
}

// Sized returns the n bytes of the attribute. If the size differs, it sets Err and returns zeros.
func (a *Attrs) Sized(n int) []byte {
	if len(a.Data) != n {
		a.Err = a.WrongSize(n)
		return make([]byte, n)
	}
	return a.Data
}

// WrongSize returns the error of an attribute of a wrong size.
func (a *Attrs) WrongSize(want int) error {
	return fmt.Errorf("%w: attribute %d has %d bytes, not %d", ErrMalformed, a.Type, len(a.Data), want)
}

// U8 returns the number in the attribute.
func (a *Attrs) U8() uint8 { return a.Sized(1)[0] }

// U16 returns the number in the attribute.
func (a *Attrs) U16() uint16 { return native.Uint16(a.Sized(2)) }

// U32 returns the number in the attribute.
func (a *Attrs) U32() uint32 { return native.Uint32(a.Sized(4)) }

// U64 returns the number in the attribute.
func (a *Attrs) U64() uint64 { return native.Uint64(a.Sized(8)) }

// Nested passes the attributes of a nest to fn.
func (a *Attrs) Nested(fn func(*Attrs)) {
	inner := Parse(a.Data)
	for inner.Next() {
		fn(&inner)
	}
	a.Err = inner.Err
}

// Text returns the string up to its NUL, without a copy.
func (a *Attrs) Text() []byte {
	text, _, _ := bytes.Cut(a.Data, []byte{0})
	return text
}

// Append appends an attribute.
func Append(b []byte, typ uint16, data ...byte) []byte {
	b = native.AppendUint16(b, uint16(unix.SizeofNlAttr+len(data)))
	b = native.AppendUint16(b, typ)
	b = append(b, data...)
	return append(b, make([]byte, align4(len(data))-len(data))...)
}

// AppendU32 appends an attribute with a number.
func AppendU32(b []byte, typ uint16, v uint32) []byte {
	return Append(b, typ, native.AppendUint32(nil, v)...)
}

// Walk passes the content of each attribute of one type to fn.
func Walk(b []byte, typ uint16, fn func([]byte) error) error {
	a := Parse(b)
	for a.Next() {
		if a.Type != typ {
			continue
		}
		if err := fn(a.Data); err != nil {
			return err
		}
	}
	return a.Err
}
