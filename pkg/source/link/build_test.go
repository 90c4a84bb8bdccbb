// SPDX-License-Identifier: Apache-2.0

package link

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// This file builds the messages and files of a kernel with hardware that is missing here, in the layout of
// include/uapi/linux: dcbnl.h, ethtool_netlink.h, ethtool.h.

// nlattr is an attribute: length with the header, type, data, padding.
func nlattr(typ uint16, data ...byte) []byte {
	n := 4 + len(data)
	b := append([]byte{byte(n), byte(n >> 8), byte(typ), byte(typ >> 8)}, data...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func join(parts ...[]byte) (b []byte) {
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

func le32(v uint32) []byte { return []byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24)} }

func le64(values ...uint64) (b []byte) {
	for _, v := range values {
		b = append(append(b, le32(uint32(v))...), le32(uint32(v>>32))...)
	}
	return b
}

const nestFlag = 0x8000 // NLA_F_NESTED

// header is the nest that comes first in each message about an interface: index and name.
func header(index uint32, name string) []byte {
	return nlattr(1|nestFlag, join(nlattr(1, le32(index)...), nlattr(2, append([]byte(name), 0)...))...)
}

// generic is the payload of a message of generic netlink.
func generic(cmd byte, parts ...[]byte) []byte {
	return append([]byte{cmd, 1, 0, 0}, join(parts...)...)
}

// pauseMessage is ETHTOOL_MSG_PAUSE_GET_REPLY with statistics. 64-bit attributes are aligned by an empty attribute
// (type 1).
func pauseMessage(rx, tx byte, sent, received uint64, storms ...uint64) []byte {
	stats := join(nlattr(1), nlattr(2, le64(sent)...), nlattr(1), nlattr(3, le64(received)...))
	for _, s := range storms {
		stats = join(stats, nlattr(1), nlattr(4, le64(s)...))
	}
	return generic(22, header(3, "eth0"), nlattr(2, 0), nlattr(3, rx), nlattr(4, tx), nlattr(5|nestFlag, stats...), nlattr(6, le32(0)...))
}

// fecMessage is ETHTOOL_MSG_FEC_GET_REPLY: modes, AUTO, ACTIVE, and statistics as arrays.
func fecMessage(active uint32, corrected, uncorrectable, bits []uint64) []byte {
	stats := join(nlattr(2, le64(corrected...)...), nlattr(3, le64(uncorrectable...)...), nlattr(4, le64(bits...)...))
	return generic(30, header(3, "eth0"), nlattr(2|nestFlag, nlattr(2, le32(121)...)...), nlattr(3, 1), nlattr(4, le32(active)...),
		nlattr(5|nestFlag, stats...))
}

// stateMessage is ETHTOOL_MSG_LINKSTATE_GET_REPLY with LINK and further attributes.
func stateMessage(up byte, more ...[]byte) []byte {
	return generic(6, header(3, "eth0"), nlattr(2, up), join(more...))
}

// ieeeETS is struct ieee_ets, ieeePFC struct ieee_pfc.
func etsStruct(classes, bandwidth, algorithms [8]byte) []byte {
	return join([]byte{0, 8, 0}, bandwidth[:], make([]byte, 8), algorithms[:], classes[:], make([]byte, 24))
}

func pfcStruct(enabled byte, requests, indications [8]uint64) []byte {
	return join([]byte{8, enabled, 0, 0}, le32(0), le64(requests[:]...), le64(indications[:]...))
}

// dcbMessage is the reply to DCB_CMD_IEEE_GET: struct dcbmsg, the name, the nest without the flag, and DCBX.
func dcbMessage(ieee ...[]byte) []byte {
	return join([]byte{unix.AF_UNSPEC, 21, 0, 0}, nlattr(1, append([]byte("eth0"), 0)...), nlattr(13, join(ieee...)...), nlattr(14, 0x0d))
}

// apps is the table of mappings: struct dcb_app with selector, priority and protocol.
func apps(entries ...[4]byte) []byte {
	var b []byte
	for _, e := range entries {
		b = append(b, nlattr(1, e[:]...)...)
	}
	return nlattr(3|nestFlag, b...)
}

// stringSet is what ETHTOOL_GSTRINGS returns.
func stringSet(names ...string) []byte {
	b := make([]byte, 32*len(names))
	for i, n := range names {
		copy(b[32*i:32*i+32], n)
	}
	return b
}

type tree struct {
	t    testing.TB
	root string
}

func newTree(t testing.TB) tree { return tree{t, t.TempDir()} }

func (f tree) write(path, content string) {
	f.t.Helper()
	full := filepath.Join(f.root, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(content+"\n"), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f tree) link(path, target string) {
	f.t.Helper()
	full := filepath.Join(f.root, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.Symlink(target, full); err != nil {
		f.t.Fatal(err)
	}
}

func (f tree) netdev(name string, index int, driver string) {
	f.t.Helper()
	dir := "class/net/" + name
	f.write(dir+"/ifindex", fmt.Sprint(index))
	f.write(dir+"/address", fmt.Sprintf("52:54:00:00:00:%02x", index))
	f.write(dir+"/type", "1")
	f.write(dir+"/dev_port", "0")
	if driver != "" {
		f.link(dir+"/device/driver", "../../../bus/pci/drivers/"+driver)
	}
	f.carrier(name, "0x1003", "up", 3, 1)
}

func (f tree) carrier(name, flags, state string, changes, downs int) {
	f.t.Helper()
	dir := "class/net/" + name
	f.write(dir+"/flags", flags)
	f.write(dir+"/operstate", state)
	f.write(dir+"/carrier_changes", fmt.Sprint(changes))
	f.write(dir+"/carrier_down_count", fmt.Sprint(downs))
}

func (f tree) hca(name, netdev string) {
	f.t.Helper()
	f.write("class/infiniband/"+name+"/ports/1/link_layer", "Ethernet")
	f.write("class/infiniband/"+name+"/ports/1/gid_attrs/ndevs/0", netdev)
}
