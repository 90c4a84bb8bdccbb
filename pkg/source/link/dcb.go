// SPDX-License-Identifier: Apache-2.0

package link

import (
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/netlink"
)

// This file has the request DCB_CMD_IEEE_GET of rtnetlink (include/uapi/linux/dcbnl.h).

// Numbers of dcbnl.h.
const (
	dcbIEEEGet = 21 // DCB_CMD_IEEE_GET

	dcbAttrIfname = 1  // DCB_ATTR_IFNAME: string
	dcbAttrIEEE   = 13 // DCB_ATTR_IEEE: nested

	ieeeETS      = 1 // DCB_ATTR_IEEE_ETS: struct ieee_ets
	ieeePFC      = 2 // DCB_ATTR_IEEE_PFC: struct ieee_pfc
	ieeeAppTable = 3 // DCB_ATTR_IEEE_APP_TABLE: nested
	ieeeApp      = 1 // DCB_ATTR_IEEE_APP: struct dcb_app

	selectorDSCP = 5 // IEEE_8021QAZ_APP_SEL_DSCP

	sizeDCBMsg = 4  // struct dcbmsg: family, command, padding
	sizeETS    = 59 // willing, ets_cap, cbs; tc_tx_bw, tc_rx_bw, tc_tsa, prio_tc, and four more arrays of 8
	sizePFC    = 136
	sizeApp    = 4
)

// dcbRequest asks for the DCB configuration of an interface. The kernel finds it by name only.
func dcbRequest(name string) []byte {
	return netlink.Append([]byte{unix.AF_UNSPEC, dcbIEEEGet, 0, 0}, dcbAttrIfname, append([]byte(name), 0)...)
}

// dcbReply has the configuration, and the frames that the driver counts there.
type dcbReply struct {
	model.DCB
	sent, received [8]uint64 // PFC frames
}

func parseDCB(b []byte) (dcbReply, error) {
	var r dcbReply
	if len(b) < sizeDCBMsg {
		return r, netlink.ErrMalformed
	}
	a := netlink.Parse(b[sizeDCBMsg:])
	for a.Next() {
		if a.Type != dcbAttrIEEE {
			continue
		}
		if err := r.parseIEEE(a.Data); err != nil {
			return dcbReply{}, err
		}
	}
	if a.Err != nil {
		return dcbReply{}, a.Err
	}
	return r, nil
}

func (r *dcbReply) parseIEEE(b []byte) error {
	a := netlink.Parse(b)
	for a.Next() {
		switch a.Type {
		case ieeeETS:
			b := a.Sized(sizeETS)
			r.ETS = &model.ETS{Bandwidth: [8]uint8(b[3:]), Algorithms: [8]uint8(b[19:]), Classes: [8]uint8(b[27:])}
		case ieeePFC:
			b := a.Sized(sizePFC)
			for i := range 8 {
				r.PFC[i] = b[1]&(1<<i) != 0
				r.sent[i], r.received[i] = native.Uint64(b[8+8*i:]), native.Uint64(b[72+8*i:])
			}
		case ieeeAppTable:
			if err := r.parseApps(a.Data); err != nil {
				return err
			}
		}
	}
	return a.Err
}

// parseApps derives what the port trusts, which drivers do not report. mlx5 trusts the DSCP as long as a DSCP is mapped
// to a priority, and otherwise the priority in the VLAN tag (mlx5e_dcbnl_ieee_setapp, mlx5e_dcbnl_ieee_delapp).
func (r *dcbReply) parseApps(b []byte) error {
	r.Trust = "pcp"
	a := netlink.Parse(b)
	for a.Next() {
		if a.Type == ieeeApp && a.Sized(sizeApp)[0] == selectorDSCP {
			r.Trust = "dscp"
		}
	}
	return a.Err
}
