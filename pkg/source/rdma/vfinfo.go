// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"
)

// filterVF asks for virtual functions (RTEXT_FILTER_VF of rtnetlink.h).
const filterVF = 1

// link is what RTM_GETLINK tells of a network interface about virtual functions
// (include/uapi/linux/if_link.h).
type link struct {
	parent string       // IFLA_PARENT_DEV_NAME, the PCI function; empty before 5.14
	count  int          // IFLA_NUM_VF, 0 without
	told   bool         // there is an IFLA_VFINFO_LIST
	vfs    []functionOf // by number; the kernel leaves out those that the driver cannot tell of
}

// functionOf is one IFLA_VF_INFO.
type functionOf struct {
	told               bool
	nodeGUID, portGUID string // empty without, and while nobody gave it one
	// In bytes and packets, as the function sees it. The kernel tells zeroes where the
	// driver does not count.
	rxBytes, txBytes, rxPackets, txPackets uint64
}

// linkRequest is an RTM_GETLINK of one interface with its virtual functions and
// their statistics.
func linkRequest(name string, seq uint32) []byte {
	b := make([]byte, unix.SizeofNlMsghdr+unix.SizeofIfInfomsg)
	b = native.AppendUint16(b, uint16(unix.SizeofNlAttr+len(name)+1))
	b = native.AppendUint16(b, unix.IFLA_IFNAME)
	b = append(append(b, name...), 0)
	b = append(b, make([]byte, align4(len(b))-len(b))...)
	b = appendU32(b, unix.IFLA_EXT_MASK, filterVF)
	native.PutUint32(b, uint32(len(b)))
	native.PutUint16(b[4:], unix.RTM_GETLINK)
	native.PutUint16(b[6:], unix.NLM_F_REQUEST)
	native.PutUint32(b[8:], seq)
	return b
}

// parseLink reads the reply. What it gives beside an error is good: the length of an
// attribute has 16 bits, which the list of some 200 functions exceeds; then the kernel
// writes all of them, and where the next attribute begins is not known.
func parseLink(payload []byte) (link, error) {
	var l link
	if len(payload) < unix.SizeofIfInfomsg {
		return l, errTruncated
	}
	a := attrs{rest: payload[unix.SizeofIfInfomsg:]}
	for a.next() {
		switch {
		case a.typ == unix.IFLA_NUM_VF && !l.told:
			l.count = int(min(a.u32(), maxFunctions))
		case a.typ == unix.IFLA_VFINFO_LIST && !l.told: // comes after IFLA_NUM_VF
			l.told, l.vfs = true, make([]functionOf, l.count)
			if err := walk(a.data, unix.IFLA_VF_INFO, l.function); err != nil {
				return l, err
			}
		case a.typ == unix.IFLA_PARENT_DEV_NAME:
			l.parent = string(a.text())
		}
	}
	if a.err == nil && l.told && len(payload) > math.MaxUint16 && l.known() < l.count {
		return l, errTruncated // and the cut was between two of them
	}
	return l, a.err
}

// known is of how many functions something is told.
func (l *link) known() (n int) {
	for _, f := range l.vfs {
		if f.told {
			n++
		}
	}
	return n
}

// function reads one IFLA_VF_INFO. Its attributes are structures that begin with the
// number (u32), but for the statistics.
func (l *link) function(b []byte) error {
	var f functionOf
	number := -1
	a := attrs{rest: b}
	for a.next() {
		switch a.typ {
		case unix.IFLA_VF_MAC:
			if len(a.data) < 4 {
				return a.short(4)
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
		f.told = true
		l.vfs[number] = f
	}
	return a.err
}

// guid is that of a struct ifla_vf_guid: the number, four bytes of padding, and the
// GUID in the machine's own order. Zero is none.
func (a *attrs) guid() string {
	if len(a.data) != 16 {
		a.err = a.short(16)
		return ""
	}
	if guid := native.Uint64(a.data[8:]); guid != 0 {
		return guidText(guid)
	}
	return ""
}

func (a *attrs) short(want int) error {
	return fmt.Errorf("%w: attribute %d has %d bytes, not %d", errTruncated, a.typ, len(a.data), want)
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

// moved says whether anything was counted.
func (f functionOf) moved() bool { return f.rxBytes|f.txBytes|f.rxPackets|f.txPackets != 0 }
