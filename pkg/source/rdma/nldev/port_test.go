// SPDX-License-Identifier: Apache-2.0

package nldev

import (
	"errors"
	"slices"
	"testing"

	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
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
