// SPDX-License-Identifier: Apache-2.0

package nldev

import (
	"errors"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

// TestPort: an answer to PORT_GET has the words of the files, and LIDs only for InfiniBand.
func TestPort(t *testing.T) {
	u8 := func(typ uint16, v uint8) []byte { return netlink.Append(nil, typ, v) }
	state := func(state, phys uint8) []byte { return slices.Concat(u8(AttrPortState, state), u8(AttrPortPhys, phys)) }
	lids := netlink.AppendU32(netlink.AppendU32(nil, AttrLID, 0x1f), AttrSMLID, 1)
	for _, tt := range []struct {
		payload []byte
		want    sysfs.PortState
	}{
		{state(4, 5), sysfs.PortState{State: "ACTIVE", PhysState: "LinkUp"}},
		{slices.Concat(lids, state(4, 5)), sysfs.PortState{State: "ACTIVE", PhysState: "LinkUp", LID: "0x1f", SMLID: "0x1"}},
		{slices.Concat(state(1, 3), netlink.AppendU32(nil, AttrLID, 0)), sysfs.PortState{State: "DOWN", PhysState: "Disabled", LID: "0x0"}},
		{state(0, 0), sysfs.PortState{State: "NOP", PhysState: "<unknown>"}},
		{state(5, 7), sysfs.PortState{State: "ACTIVE_DEFER", PhysState: "Phy Test"}},
		{state(6, 8), sysfs.PortState{State: "UNKNOWN", PhysState: "<unknown>"}},
	} {
		if got, err := parsePort(tt.payload); got != tt.want || err != nil {
			t.Errorf("%x: %+v, %v; want %+v", tt.payload, got, err, tt.want)
		}
	}
	for _, payload := range [][]byte{nil, lids, u8(AttrPortState, 4), u8(AttrPortPhys, 5)} {
		if got, err := parsePort(payload); !errors.Is(err, netlink.ErrMalformed) {
			t.Errorf("%x: %+v, %v; want an error", payload, got, err)
		}
	}
}

// TestPortAnswer: the kernel answers with the type of GET, and acknowledges. An answer with another type is an error, and is not
// awaited.
func TestPortAnswer(t *testing.T) {
	state := slices.Concat(netlink.Append(nil, AttrPortState, 4), netlink.Append(nil, AttrPortPhys, 5))
	up := sysfs.PortState{State: "ACTIVE", PhysState: "LinkUp"}
	for name, tt := range map[string]struct {
		answer []byte
		want   sysfs.PortState
		err    error
	}{
		"as Linux 5.10 to 7": {hca.Reply(CmdGet, 0, state), up, nil},
		"another type":       {hca.Reply(CmdPortGet, 0, state), sysfs.PortState{}, netlink.ErrMalformed},
		"no state":           {hca.Reply(CmdGet, 0), sysfs.PortState{}, netlink.ErrMalformed},
		"unknown command":    {hca.Failure(unix.EOPNOTSUPP), sysfs.PortState{}, unix.EOPNOTSUPP},
	} {
		c, err := fakeKernel(t, func(r []byte) [][]byte {
			if native.Uint16(r[4:]) != MessageType(CmdPortGet) || native.Uint16(r[6:])&unix.NLM_F_ACK == 0 {
				t.Errorf("%s: request %x", name, r)
			}
			return [][]byte{tt.answer, hca.Failure(0)}
		})()
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the acknowledgment of the first request does not answer the second
			if got, err := c.Port(3, 1, time.Now().Add(time.Minute)); got != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("%s: %+v, %v; want %+v, %v", name, got, err, tt.want, tt.err)
			}
		}
		c.Close()
	}
}
