// SPDX-License-Identifier: Apache-2.0

package link

import (
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
)

// This file has requests of the generic netlink family "ethtool" (include/uapi/linux/ethtool_netlink.h), each for one
// interface.

// Numbers of ethtool_netlink.h and of genetlink.h.
const (
	cmdLinkState = 6  // ETHTOOL_MSG_LINKSTATE_GET
	cmdPause     = 21 // ETHTOOL_MSG_PAUSE_GET
	cmdFEC       = 29 // ETHTOOL_MSG_FEC_GET, since Linux 5.13 or so

	attrHeader      = 1 // of each message: nested
	headerIndex     = 1 // ETHTOOL_A_HEADER_DEV_INDEX: u32
	headerFlags     = 3 // ETHTOOL_A_HEADER_FLAGS: u32
	flagStatistics  = 4 // ETHTOOL_FLAG_STATS: adds statistics
	flagCompactBits = 1 // ETHTOOL_FLAG_COMPACT_BITSETS: otherwise the link modes are listed by name

	pauseRX, pauseTX        = 3, 4 // ETHTOOL_A_PAUSE_RX, _TX: u8
	pauseStats              = 5    // ETHTOOL_A_PAUSE_STATS: nested
	pauseTXFrames           = 2    // ETHTOOL_A_PAUSE_STAT_TX_FRAMES: u64
	pauseRXFrames           = 3    // ETHTOOL_A_PAUSE_STAT_RX_FRAMES: u64
	pauseStorms             = 4    // ETHTOOL_A_PAUSE_STAT_TX_PAUSE_STORM_EVENTS: u64, since Linux 7.2 or so
	fecActive               = 4    // ETHTOOL_A_FEC_ACTIVE: u32, the number of a link mode
	fecStats                = 5    // ETHTOOL_A_FEC_STATS: nested
	fecCorrected            = 2    // ETHTOOL_A_FEC_STAT_CORRECTED: array of u64
	fecUncorrectable        = 3    // ETHTOOL_A_FEC_STAT_UNCORR: array of u64
	fecCorrectedBits        = 4    // ETHTOOL_A_FEC_STAT_CORR_BITS: array of u64
	stateReason, stateCause = 5, 6 // ETHTOOL_A_LINKSTATE_EXT_STATE, _EXT_SUBSTATE: u8
	stateDowns              = 7    // ETHTOOL_A_LINKSTATE_EXT_DOWN_CNT: u32, since Linux 6.12 or so

	ctrlGetFamily  = 3 // CTRL_CMD_GETFAMILY
	ctrlFamilyID   = 1 // CTRL_ATTR_FAMILY_ID: u16
	ctrlFamilyName = 2 // CTRL_ATTR_FAMILY_NAME: string
	sizeGenericMsg = 4 // struct genlmsghdr: command, version, reserved
)

// fecModes are the names of FEC by link mode (ETHTOOL_LINK_MODE_FEC_NONE_BIT and so on).
var fecModes = map[uint32]string{49: "off", 50: "rs", 51: "baser", 74: "llrs"}

func genericRequest(cmd uint8, attributes []byte) []byte {
	return append([]byte{cmd, 1, 0, 0}, attributes...)
}

func ethtoolRequest(cmd uint8, index int, statistics bool) []byte {
	flags := uint32(flagCompactBits)
	if statistics {
		flags |= flagStatistics
	}
	header := netlink.AppendU32(nil, headerIndex, uint32(index))
	header = netlink.AppendU32(header, headerFlags, flags)
	return genericRequest(cmd, netlink.Append(nil, attrHeader|unix.NLA_F_NESTED, header...))
}

func familyRequest(name string) []byte {
	return genericRequest(ctrlGetFamily, netlink.Append(nil, ctrlFamilyName, append([]byte(name), 0)...))
}

func parseFamily(b []byte) (id uint16, err error) {
	err = walk(b, func(a *netlink.Attrs) {
		if a.Type == ctrlFamilyID {
			id = a.U16()
		}
	})
	if err == nil && id < unix.NLMSG_MIN_TYPE {
		err = netlink.ErrMalformed
	}
	return id, err
}

func walk(b []byte, fn func(*netlink.Attrs)) error {
	if len(b) < sizeGenericMsg {
		return netlink.ErrMalformed
	}
	a := netlink.Parse(b[sizeGenericMsg:])
	for a.Next() {
		fn(&a)
	}
	return a.Err
}

// pauseReply is the reply to ETHTOOL_MSG_PAUSE_GET: pause of the whole link.
type pauseReply struct {
	rx, tx         bool // enabled
	received, sent *uint64
	storms         *uint64
}

func parsePause(b []byte) (r pauseReply, err error) {
	err = walk(b, func(a *netlink.Attrs) {
		switch a.Type {
		case pauseRX:
			r.rx = a.U8() != 0
		case pauseTX:
			r.tx = a.U8() != 0
		case pauseStats:
			a.Nested(func(a *netlink.Attrs) {
				switch a.Type {
				case pauseTXFrames:
					r.sent = new(a.U64())
				case pauseRXFrames:
					r.received = new(a.U64())
				case pauseStorms:
					r.storms = new(a.U64())
				}
			})
		}
	})
	if err != nil {
		return pauseReply{}, err
	}
	return r, nil
}

// parseFEC parses the reply to ETHTOOL_MSG_FEC_GET. Each counter is an array: the total, and then the lanes if the
// driver counts by lane. If the driver lacks a counter, it is missing or empty.
func parseFEC(b []byte) (*model.FEC, error) {
	f := &model.FEC{}
	err := walk(b, func(a *netlink.Attrs) {
		switch a.Type {
		case fecActive:
			f.Mode = fecModes[a.U32()]
		case fecStats:
			a.Nested(func(a *netlink.Attrs) {
				switch a.Type {
				case fecCorrected:
					f.Corrected = total(a)
				case fecUncorrectable:
					f.Uncorrectable = total(a)
				case fecCorrectedBits:
					f.CorrectedBits = total(a)
				}
			})
		}
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

func total(a *netlink.Attrs) *uint64 {
	switch {
	case len(a.Data) == 0:
		return nil
	case len(a.Data)%8 != 0:
		a.Err = netlink.ErrMalformed
		return nil
	}
	return new(native.Uint64(a.Data))
}

// parseLinkState parses the reply to ETHTOOL_MSG_LINKSTATE_GET. 0 is a state too: without a state, the attribute is
// missing.
func parseLinkState(b []byte) (*model.Phy, error) {
	p := &model.Phy{}
	reason, cause := -1, -1
	err := walk(b, func(a *netlink.Attrs) {
		switch a.Type {
		case stateReason:
			reason = int(a.U8())
		case stateCause:
			cause = int(a.U8())
		case stateDowns:
			p.Downs = new(uint64(a.U32()))
		}
	})
	if err != nil {
		return nil, err
	}
	p.Reason, p.Detail = linkReason(reason, cause)
	return p, nil
}
