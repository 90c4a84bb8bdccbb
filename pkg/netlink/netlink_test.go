// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"bytes"
	"errors"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestKernel: a dump of the interfaces equals Go's list, a request for one interface has one reply, and the kernel's
// error arrives. Each reply belongs to its request.
func TestKernel(t *testing.T) {
	c, err := Dial(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ask := func(flags uint16, name string) (names []string, err error) {
		body := make([]byte, unix.SizeofIfInfomsg)
		if name != "" {
			body = Append(body, unix.IFLA_IFNAME, append([]byte(name), 0)...)
		}
		err = c.Ask(Message(unix.RTM_GETLINK, flags, body), unix.RTM_NEWLINK, time.Now().Add(time.Minute), func(payload []byte) error {
			a := Parse(payload[unix.SizeofIfInfomsg:])
			for a.Next() {
				if a.Type == unix.IFLA_IFNAME {
					names = append(names, string(a.Text()))
				}
			}
			return a.Err
		})
		return names, err
	}
	var want []string
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		want = append(want, i.Name)
	}
	if got, err := ask(unix.NLM_F_DUMP, ""); err != nil || !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if got, err := ask(0, "lo"); err != nil || !slices.Equal(got, []string{"lo"}) {
		t.Errorf("%v, %v", got, err)
	}
	if got, err := ask(0, "gone0"); !errors.Is(err, unix.ENODEV) || got != nil {
		t.Errorf("%v, %v", got, err)
	}
	stop := errors.New("stop")
	if err := c.Ask(Message(unix.RTM_GETLINK, unix.NLM_F_DUMP, make([]byte, unix.SizeofIfInfomsg)), unix.RTM_NEWLINK,
		time.Now().Add(time.Minute), func([]byte) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
	if got, err := ask(0, "lo"); err != nil || !slices.Equal(got, []string{"lo"}) { // the rest of the dump is skipped
		t.Errorf("%v, %v", got, err)
	}
}

// pair returns a connection whose other end is not the kernel.
func pair(t *testing.T) (c *Conn, peer int) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	c = &Conn{FD: fds[0], Buffer: make([]byte, 64)}
	t.Cleanup(c.Close)
	return c, fds[1]
}

func TestReceive(t *testing.T) {
	c, peer := pair(t)
	if _, err := c.Receive(time.Now().Add(20 * time.Millisecond)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("nothing comes: %v", err)
	}
	for size, want := range map[int]error{64: nil, 65: ErrMalformed} {
		if _, err := unix.Write(peer, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		if n, err := c.Receive(time.Now().Add(time.Minute)); !errors.Is(err, want) || err == nil && n != size {
			t.Errorf("%d bytes: %d, %v", size, n, err)
		}
	}
	_ = unix.Close(peer)
	if _, err := c.Receive(time.Now().Add(time.Minute)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("closed: %v", err)
	}
}

func reply(typ, flags uint16, seq uint32, payload ...byte) []byte {
	b := Message(typ, flags, payload)
	native.PutUint16(b[6:], flags)
	SetSequence(b, seq)
	return append(b, make([]byte, align4(len(b))-len(b))...)
}

func TestMessages(t *testing.T) {
	code := func(n int32) []byte { return native.AppendUint32(nil, uint32(n)) }
	for name, c := range map[string]struct {
		datagram []byte
		payload  string
		done     bool
		err      error
	}{
		"a reply":            {reply(78, 0, 7, 'a', 'b', 'c'), "abc", true, nil},
		"after another":      {slices.Concat(reply(78, 0, 6, 'x'), reply(78, 0, 7, 'a')), "a", true, nil},
		"other type":         {reply(16, 0, 7, 'x'), "", false, nil},
		"noop":               {slices.Concat(reply(unix.NLMSG_NOOP, 0, 7), reply(78, 0, 7, 'a')), "a", true, nil},
		"part of a dump":     {slices.Concat(reply(78, unix.NLM_F_MULTI, 7, 'a'), reply(78, unix.NLM_F_MULTI, 7, 'b')), "ab", false, nil},
		"end of a dump":      {slices.Concat(reply(78, unix.NLM_F_MULTI, 7, 'a'), reply(unix.NLMSG_DONE, unix.NLM_F_MULTI, 7, code(0)...)), "a", true, nil},
		"end with an error":  {reply(unix.NLMSG_DONE, unix.NLM_F_MULTI, 7, code(-19)...), "", true, unix.ENODEV},
		"an error":           {reply(unix.NLMSG_ERROR, 0, 7, append(code(-95), make([]byte, 16)...)...), "", true, unix.EOPNOTSUPP},
		"error of another":   {reply(unix.NLMSG_ERROR, 0, 6, code(-95)...), "", false, nil},
		"an acknowledgement": {reply(unix.NLMSG_ERROR, 0, 7, make([]byte, 20)...), "", true, nil},
		"a short error":      {reply(unix.NLMSG_ERROR, 0, 7), "", false, ErrMalformed},
		"overrun":            {reply(unix.NLMSG_OVERRUN, 0, 7), "", false, unix.ENOBUFS},
		"interrupted":        {reply(78, unix.NLM_F_MULTI|unix.NLM_F_DUMP_INTR, 7, 'a'), "", false, ErrInterrupted},
		"truncated":          {reply(78, 0, 7, 'a')[:16], "", false, ErrMalformed},
		"too short":          {[]byte{1, 2, 3}, "", false, ErrMalformed},
	} {
		var payload []byte
		done, err := Messages(c.datagram, 78, 7, func(b []byte) error {
			payload = append(payload, b...)
			return nil
		})
		if string(payload) != c.payload || done != c.done || !errors.Is(err, c.err) {
			t.Errorf("%s: %q %v %v", name, payload, done, err)
		}
	}
}

// FuzzMessages: appended data parses again, and any bytes are parsed or rejected without a change.
func FuzzMessages(f *testing.F) {
	f.Add(reply(78, 0, 7, Append(AppendU32(nil, 1, 5), 2|unix.NLA_F_NESTED, AppendU32(nil, 3, 4)...)...), uint16(3))
	f.Add(reply(unix.NLMSG_ERROR, 0, 7, 0xf0, 0xff, 0xff, 0xff), uint16(0))
	f.Add(reply(78, unix.NLM_F_MULTI, 7, 9, 0, 1, 0), uint16(1))
	f.Fuzz(func(t *testing.T, b []byte, typ uint16) {
		before := bytes.Clone(b)
		_, _ = Messages(b, 78, 7, func(payload []byte) error {
			sum := 0
			for a := Parse(payload); a.Next(); {
				sum += unix.SizeofNlAttr + len(a.Data)
				for _, read := range []func(){func() { a.U8() }, func() { a.U16() }, func() { a.U32() }, func() { a.U64() }} {
					one := a.Err
					read()
					a.Err = one
				}
				a.Nested(func(*Attrs) {})
				a.Text()
			}
			if sum > len(payload) {
				t.Errorf("attributes of %d bytes in %d", sum, len(payload))
			}
			return nil
		})
		if !bytes.Equal(before, b) {
			t.Error("the parser has changed its input")
		}
		if len(b) > 60000 {
			return
		}
		typ &^= unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER
		a := Parse(Append(nil, typ, b...))
		if !a.Next() || a.Type != typ || !bytes.Equal(a.Data, b) || a.Next() || a.Err != nil {
			t.Errorf("%d: %x is %d: %x, %v", typ, b, a.Type, a.Data, a.Err)
		}
	})
}

func TestWalk(t *testing.T) {
	b := slices.Concat(AppendU32(nil, 1, 5), Append(nil, 2, 'x'), AppendU32(nil, 1, 6))
	var got []uint32
	read := func(b []byte) error {
		got = append(got, native.Uint32(b))
		return nil
	}
	if err := Walk(b, 1, read); err != nil || !slices.Equal(got, []uint32{5, 6}) {
		t.Errorf("%v, %v", got, err)
	}
	if err := Walk(b[:len(b)-1], 1, read); !errors.Is(err, ErrMalformed) {
		t.Errorf("truncated: %v", err)
	}
	if err := Walk(b, 2, func([]byte) error { return unix.EINVAL }); !errors.Is(err, unix.EINVAL) {
		t.Error(err)
	}
}
