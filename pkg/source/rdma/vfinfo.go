// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"math"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// link is the part of an RTM_GETLINK reply that describes virtual functions
// (include/uapi/linux/if_link.h).
type link struct {
	parent string       // IFLA_PARENT_DEV_NAME, the PCI function; empty before 5.14
	count  int          // IFLA_NUM_VF, 0 without
	listed bool         // the reply has an IFLA_VFINFO_LIST
	vfs    []functionOf // by number; the kernel omits those that the driver cannot report
}

// functionOf is one IFLA_VF_INFO.
type functionOf struct {
	listed             bool   // the list has this function
	nodeGUID, portGUID string // empty if missing, and before an administrator sets one
	// In bytes and packets, as the function sees it. The kernel reports zeroes where the
	// driver does not count.
	rxBytes, txBytes, rxPackets, txPackets uint64
}

// linkRequest is an RTM_GETLINK of one interface with its virtual functions and
// their statistics.
func linkRequest(name string, seq uint32) []byte {
	r := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	r.Seq = seq
	r.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	r.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	r.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(nl.RTEXT_FILTER_VF)))
	return r.Serialize()
}

// parseLink parses the reply. Functions returned with an error are correct: the length of
// an attribute has 16 bits, which the list of some 200 functions exceeds. Then the kernel
// writes all functions, and the start of the next attribute is unknown.
//
// netlink.LinkDeserialize (v1.3.1) cannot replace it: parseVfInfo skips both GUIDs and
// numbers functions by position, which is wrong after a function that the kernel omits.
// A list that exceeds 16 bits is EINVAL, without any function.
func parseLink(payload []byte) (link, error) {
	var l link
	if len(payload) < unix.SizeofIfInfomsg {
		return l, errTruncated
	}
	a := attrs{rest: payload[unix.SizeofIfInfomsg:]}
	for a.next() {
		switch {
		case a.typ == unix.IFLA_NUM_VF && !l.listed:
			l.count = int(min(a.u32(), maxFunctions))
		case a.typ == unix.IFLA_VFINFO_LIST && !l.listed: // comes after IFLA_NUM_VF
			l.listed, l.vfs = true, make([]functionOf, l.count)
			if err := walk(a.data, unix.IFLA_VF_INFO, l.function); err != nil {
				return l, err
			}
		case a.typ == unix.IFLA_PARENT_DEV_NAME:
			l.parent = string(a.text())
		}
	}
	if a.err == nil && l.listed && len(payload) > math.MaxUint16 && l.known() < l.count {
		return l, errTruncated // and the cut was between two of them
	}
	return l, a.err
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
	a := attrs{rest: b}
	for a.next() {
		switch a.typ {
		case unix.IFLA_VF_MAC:
			if len(a.data) < 4 {
				return a.wrongSize(4)
			}
			number = int(native.Uint32(a.data))
		case unix.IFLA_VF_IB_NODE_GUID:
			f.nodeGUID = a.guid()
		case unix.IFLA_VF_IB_PORT_GUID:
			f.portGUID = a.guid()
		case unix.IFLA_VF_STATS:
			if err := f.statistics(a.data); err != nil {
				return err
			}
		}
	}
	if a.err == nil && number >= 0 && number < len(l.vfs) {
		f.listed = true
		l.vfs[number] = f
	}
	return a.err
}

// guid parses a struct ifla_vf_guid: the number, four bytes of padding, and the GUID in
// native byte order. Zero means that there is none.
func (a *attrs) guid() string {
	return guidText(native.Uint64(a.sized(16)[8:]))
}

func (f *functionOf) statistics(b []byte) error {
	a := attrs{rest: b}
	for a.next() {
		switch a.typ {
		case unix.IFLA_VF_STATS_RX_PACKETS:
			f.rxPackets = a.u64()
		case unix.IFLA_VF_STATS_TX_PACKETS:
			f.txPackets = a.u64()
		case unix.IFLA_VF_STATS_RX_BYTES:
			f.rxBytes = a.u64()
		case unix.IFLA_VF_STATS_TX_BYTES:
			f.txBytes = a.u64()
		}
	}
	return a.err
}

// moved reports whether any counter is not zero.
func (f functionOf) moved() bool { return f.rxBytes|f.txBytes|f.rxPackets|f.txPackets != 0 }
