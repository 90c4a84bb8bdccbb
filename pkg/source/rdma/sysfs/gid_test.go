// SPDX-License-Identifier: Apache-2.0

package sysfs

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/tests/fakes/hca"
)

func TestGIDs(t *testing.T) {
	const (
		linkLocal, v4 = "fe80:0000:0000:0000:a088:c2ff:fe03:0001", "0000:0000:0000:0000:0000:ffff:0a00:0001"
		global        = "2001:0db8:0000:0000:0000:0000:0000:0007"
		v1, v2        = "IB/RoCE v1", "RoCE v2"
	)
	address := netip.MustParseAddr
	for name, c := range map[string]struct {
		linkLayer, nodeType string
		entries             map[int]string
		want                []model.GID
		missing, known      bool
	}{
		"RoCE, with a hole": {
			"Ethernet", "1: CA",
			map[int]string{0: v1 + "|" + linkLocal + "|eth0", 1: v2 + "|" + linkLocal + "|eth0", 4: v1 + "|" + v4 + "|eth0", 5: v2 + "|" + v4 + "|eth0"},
			[]model.GID{
				{Index: 0, Type: model.GIDRoCEv1, Address: address("fe80::a088:c2ff:fe03:1"), Netdev: "eth0"},
				{Index: 1, Type: model.GIDRoCEv2, Address: address("fe80::a088:c2ff:fe03:1"), Netdev: "eth0"},
				{Index: 4, Type: model.GIDRoCEv1, Address: address("::ffff:10.0.0.1"), Netdev: "eth0"},
				{Index: 5, Type: model.GIDRoCEv2, Address: address("::ffff:10.0.0.1"), Netdev: "eth0"},
			},
			false, true,
		},
		"RoCE without an address": {
			"Ethernet", "1: CA",
			map[int]string{0: v1 + "|" + linkLocal + "|eth0", 1: v2 + "|" + linkLocal + "|eth0", 2: v1 + "|" + v4 + "|eth0"},
			[]model.GID{
				{Index: 0, Type: model.GIDRoCEv1, Address: address("fe80::a088:c2ff:fe03:1"), Netdev: "eth0"},
				{Index: 1, Type: model.GIDRoCEv2, Address: address("fe80::a088:c2ff:fe03:1"), Netdev: "eth0"},
				{Index: 2, Type: model.GIDRoCEv1, Address: address("::ffff:10.0.0.1"), Netdev: "eth0"},
			},
			true, true,
		},
		"RoCE on a VLAN": {
			"Ethernet", "1: CA",
			map[int]string{7: v2 + "|" + global + "|eth0.100"},
			[]model.GID{{Index: 7, Type: model.GIDRoCEv2, Address: address("2001:db8::7"), Netdev: "eth0.100"}},
			false, true,
		},
		"RoCE without an interface": {"Ethernet", "1: CA", nil, []model.GID{}, true, true},
		"InfiniBand": {
			"InfiniBand", "1: CA",
			map[int]string{0: v1 + "|fe80:0000:0000:0000:a088:c203:0000:0000|"},
			[]model.GID{{Index: 0, Type: model.GIDInfiniBand, Address: address("fe80::a088:c203:0:0")}},
			false, false,
		},
		"iWARP": {
			"Ethernet", "4: RNIC",
			map[int]string{0: v1 + "|a088:c203:0000:0000:0000:0000:0000:0000|"},
			[]model.GID{{Index: 0, Type: model.GIDOther, Address: address("a088:c203::")}},
			false, false,
		},
		"a type that no kernel has": {"Ethernet", "1: CA", map[int]string{0: "RoCE v3|" + v4 + "|eth0"}, []model.GID{}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			tr := hca.NewTree(t)
			dev := tr.HCA(0, 1)
			port := dev + "/ports/1"
			tr.Remove(port + "/gids")
			tr.Remove(port + "/gid_attrs")
			tr.Put(port+"/link_layer", c.linkLayer+"\n")
			tr.Put(dev+"/node_type", c.nodeType+"\n")
			tr.GIDs(port, 8, c.entries)
			h := newTreeDevice(t, tr).read()
			if diff := cmp.Diff(c.want, h.Ports[0].GIDs, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Error(diff)
			}
			if missing, known := h.LacksRoCEv2(&h.Ports[0]); missing != c.missing || known != c.known {
				t.Errorf("missing %v, known %v; want %v, %v", missing, known, c.missing, c.known)
			}
		})
	}
}

// TestGIDsUnreadable: if the kernel lacks the attributes, or the table cannot be read, the GIDs are unknown, not
// missing.
func TestGIDsUnreadable(t *testing.T) {
	for name, spoil := range map[string]func(hca.Tree, string){
		"no attributes": func(hca.Tree, string) {},
		"an entry that fails": func(tr hca.Tree, port string) {
			tr.GIDs(port, 4, nil)
			tr.Link(port+"/gid_attrs/types/2", "2") // ELOOP
		},
	} {
		tr := hca.NewTree(t)
		dev := tr.HCA(0, 1)
		tr.Put(dev+"/ports/1/link_layer", "Ethernet\n")
		spoil(tr, dev+"/ports/1")
		h := newTreeDevice(t, tr).read()
		if _, known := h.LacksRoCEv2(&h.Ports[0]); known || h.Ports[0].GIDs != nil {
			t.Errorf("%s: %v", name, h.Ports[0].GIDs)
		}
	}
}

// TestGIDsEnd: an entry after more than emptyGIDs empty entries is found if the source has seen the entries before it.
func TestGIDsEnd(t *testing.T) {
	const size, entry = 256, "RoCE v2|0000:0000:0000:0000:0000:ffff:0a00:0001|eth0"
	tr := hca.NewTree(t)
	port := tr.HCA(0, 1) + "/ports/1"
	full := map[int]string{}
	for i := range 100 {
		full[i] = entry
	}
	d := newTreeDevice(t, tr)
	for _, step := range []struct {
		entries map[int]string
		want    int
	}{{map[int]string{0: entry, 90: entry}, 1}, {full, 100}, {map[int]string{0: entry, 90: entry}, 2}, {nil, 0}} {
		for _, dir := range []string{"gids", "gid_attrs"} {
			tr.Remove(port + "/" + dir)
		}
		tr.GIDs(port, size, step.entries)
		d.now = d.now.Add(AttrsAge)
		if n := len(d.read().Ports[0].GIDs); n != step.want {
			t.Errorf("%d GIDs, want %d", n, step.want)
		}
	}
}

// TestManyGIDs: of a table of GIDs, maxGIDs entries are read.
func TestManyGIDs(t *testing.T) {
	tr := hca.NewTree(t)
	port := tr.HCA(0, 1) + "/ports/1"
	full := map[int]string{}
	for i := range maxGIDs + 10 {
		full[i] = "RoCE v2|0000:0000:0000:0000:0000:ffff:0a00:0001|eth0"
	}
	tr.GIDs(port, len(full), full)
	if n := len(newTreeDevice(t, tr).read().Ports[0].GIDs); n != maxGIDs {
		t.Errorf("%d GIDs, want %d", n, maxGIDs)
	}
}
