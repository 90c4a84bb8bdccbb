// SPDX-License-Identifier: Apache-2.0

package vf

import (
	"encoding/binary"
	"math"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/accelscope/accelscope/pkg/netlink"
	"github.com/accelscope/accelscope/pkg/source/rdma/sysfs"
)

var native = binary.NativeEndian

// link is the part of an RTM_GETLINK reply that describes virtual functions
// (include/uapi/linux/if_link.h).
type link struct {
	parent string       // IFLA_PARENT_DEV_NAME, the PCI function; empty before 5.14
	count  int          // IFLA_NUM_VF, or 0
	listed bool         // the reply has an IFLA_VFINFO_LIST
	vfs    []functionOf // by number; the kernel omits functions that the driver cannot report
}

// functionOf is one IFLA_VF_INFO.
type functionOf struct {
	listed             bool   // the list has this function
	nodeGUID, portGUID string // empty if missing, and until an administrator sets it
	// In bytes and packets, from the function's point of view. If the driver does not count, the kernel reports zeroes.
	rxBytes, txBytes, rxPackets, txPackets uint64
}

// linkRequest is an RTM_GETLINK of one interface with its virtual functions and
// their statistics.
func linkRequest(name string) []byte {
	r := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	r.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	r.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	r.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(nl.RTEXT_FILTER_VF)))
	return r.Serialize()
}

// parseLink parses the reply. Functions returned with an error are correct: the length of an attribute has 16 bits,
// which the list of some 200 functions exceeds. Then the kernel writes all functions, and the start of the next
// attribute is unknown.
//
// netlink.LinkDeserialize (v1.3.1) cannot replace it: parseVfInfo skips both GUIDs and numbers functions by position,
// which is wrong after a function that the kernel omits. For a list that exceeds 16 bits it returns EINVAL and no
// functions.
func parseLink(payload []byte) (link, error) {
	var l link
	if len(payload) < unix.SizeofIfInfomsg {
		return l, netlink.ErrMalformed
	}
	a := netlink.Parse(payload[unix.SizeofIfInfomsg:])
	for a.Next() {
		switch {
		case a.Type == unix.IFLA_NUM_VF && !l.listed:
			l.count = int(min(a.U32(), sysfs.MaxFunctions))
		case a.Type == unix.IFLA_VFINFO_LIST && !l.listed: // comes after IFLA_NUM_VF
			l.listed, l.vfs = true, make([]functionOf, l.count)
			if err := netlink.Walk(a.Data, unix.IFLA_VF_INFO, l.function); err != nil {
				return l, err
			}
		case a.Type == unix.IFLA_PARENT_DEV_NAME:
			l.parent = string(a.Text())
		}
	}
	if a.Err == nil && l.listed && len(payload) > math.MaxUint16 && l.known() < l.count {
		return l, netlink.ErrMalformed // the cut was between two functions
	}
	return l, a.Err
}

// known counts the functions in the list.
func (l *link) known() (n int) {
	for _, f := range l.vfs {
		if f.listed {
			n++
		}
	}
	return n
}

// function parses one IFLA_VF_INFO. Its attributes are structures that begin with the
// number (u32), except the statistics.
func (l *link) function(b []byte) error {
	var f functionOf
	number := -1
	a := netlink.Parse(b)
	for a.Next() {
		switch a.Type {
		case unix.IFLA_VF_MAC:
			if len(a.Data) < 4 {
				return a.WrongSize(4)
			}
			number = int(native.Uint32(a.Data))
		case unix.IFLA_VF_IB_NODE_GUID:
			f.nodeGUID = guid(&a)
		case unix.IFLA_VF_IB_PORT_GUID:
			f.portGUID = guid(&a)
		case unix.IFLA_VF_STATS:
			if err := f.statistics(a.Data); err != nil {
				return err
			}
		}
	}
	if a.Err == nil && number >= 0 && number < len(l.vfs) {
		f.listed = true
		l.vfs[number] = f
	}
	return a.Err
}

// guid parses a struct ifla_vf_guid: the number, four bytes of padding, and the GUID in native byte order. Zero means
// that the GUID is not set.
func guid(a *netlink.Attrs) string {
	return sysfs.GUIDText(native.Uint64(a.Sized(16)[8:]))
}

func (f *functionOf) statistics(b []byte) error {
	a := netlink.Parse(b)
	for a.Next() {
		switch a.Type {
		case unix.IFLA_VF_STATS_RX_PACKETS:
			f.rxPackets = a.U64()
		case unix.IFLA_VF_STATS_TX_PACKETS:
			f.txPackets = a.U64()
		case unix.IFLA_VF_STATS_RX_BYTES:
			f.rxBytes = a.U64()
		case unix.IFLA_VF_STATS_TX_BYTES:
			f.txBytes = a.U64()
		}
	}
	return a.Err
}

func (f functionOf) moved() bool { return f.rxBytes|f.txBytes|f.rxPackets|f.txPackets != 0 }
