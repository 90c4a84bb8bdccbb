// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"strings"
	"testing"
)

// TestByFunction: the function's own HCA is the first that the kernel registered, before subfunctions with the same address.
func TestByFunction(t *testing.T) {
	for name, c := range map[string]struct {
		list []HCA
		want string
	}{
		"by index":              {[]HCA{{Name: "mlx5_1", Index: 7}, {Name: "mlx5_2", Index: 3}}, "mlx5_2"},
		"by index, other order": {[]HCA{{Name: "mlx5_2", Index: 3}, {Name: "mlx5_1", Index: 7}}, "mlx5_2"},
		"by number":             {[]HCA{{Name: "mlx5_10"}, {Name: "mlx5_2"}}, "mlx5_2"},
		"by name":               {[]HCA{{Name: "mlx5_3"}, {Name: "mlx5_2"}}, "mlx5_2"},
		"the same twice":        {[]HCA{{Name: "mlx5_2", Board: "first"}, {Name: "mlx5_2", Board: "second"}}, "mlx5_2first"},
	} {
		for i := range c.list {
			c.list[i].PCIAddress = "0000:3B:00.0"
		}
		own := ByFunction(append(c.list, HCA{Name: "rxe0"}))
		if h := own["0000:3b:00.0"]; h == nil || h.Name+h.Board != c.want || len(own) != 1 {
			t.Errorf("%s: %v, want %s alone", name, own, c.want)
		}
	}
}

func TestLacksRoCEv2(t *testing.T) {
	gid := func(kind GIDType, address string) GID { return GID{Type: kind, Address: netip.MustParseAddr(address)} }
	linkLocal, mapped := gid(GIDRoCEv2, "fe80::1"), gid(GIDRoCEv2, "::ffff:10.0.0.1")
	for name, c := range map[string]struct {
		hca          HCA
		port         Port
		lacks, known bool
	}{
		"link-local only":    {HCA{NodeType: "CA"}, Port{LinkLayer: "Ethernet", GIDs: []GID{linkLocal}}, true, true},
		"no GID":             {HCA{NodeType: "CA"}, Port{LinkLayer: "Ethernet", GIDs: []GID{}}, true, true},
		"IPv4":               {HCA{NodeType: "CA"}, Port{LinkLayer: "Ethernet", GIDs: []GID{linkLocal, mapped}}, false, true},
		"RoCE v1 only":       {HCA{NodeType: "CA"}, Port{LinkLayer: "Ethernet", GIDs: []GID{gid(GIDRoCEv1, "10.0.0.1")}}, true, true},
		"GIDs were not read": {HCA{NodeType: "CA"}, Port{LinkLayer: "Ethernet"}, false, false},
		"InfiniBand":         {HCA{NodeType: "CA"}, Port{LinkLayer: "InfiniBand", GIDs: []GID{linkLocal}}, false, false},
		"iWARP":              {HCA{NodeType: "RNIC"}, Port{LinkLayer: "Ethernet", GIDs: []GID{linkLocal}}, false, false},
	} {
		if lacks, known := c.hca.LacksRoCEv2(&c.port); lacks != c.lacks || known != c.known {
			t.Errorf("%s: %t, %t, want %t, %t", name, lacks, known, c.lacks, c.known)
		}
	}
}

func TestLacksDefaultPartition(t *testing.T) {
	for partition, lacks := range map[uint16]bool{0x7fff: false, 0x7ffe: true} {
		p := Port{PKeys: []PKey{{Partition: 0x1}, {Partition: partition}}}
		if p.LacksDefaultPartition() != lacks {
			t.Errorf("%#x: %t, want %t", partition, !lacks, lacks)
		}
	}
}

// TestPortErrors: errors of counters/ add up, and a port without an error counter has no sum.
func TestPortErrors(t *testing.T) {
	var h HCA
	for name, c := range map[string]struct {
		port  Port
		sum   uint64
		known bool
	}{
		"none": {Port{Counters: []Counter{{Name: "port_xmit_data", Value: 9}}}, 0, false},
		"0":    {Port{Counters: []Counter{{Name: "symbol_error", Value: 0}}}, 0, true},
		"two":  {Port{Counters: []Counter{{Name: "symbol_error", Value: 3}, {Name: "link_downed", Value: 4}}}, 7, true},
	} {
		if sum, known := h.PortErrors(&c.port); sum != c.sum || known != c.known {
			t.Errorf("%s: %d, %t, want %d, %t", name, sum, known, c.sum, c.known)
		}
	}
}

// TestWithoutBytes has a port for each reason.
func TestWithoutBytes(t *testing.T) {
	bytes := []SharedCounter{{Counter: Counter{Name: TransmitBytes}}, {Counter: Counter{Name: ReceiveBytes}}}
	packets := []SharedCounter{{Counter: Counter{Name: ReceivePackets}}}
	pma, other := []Counter{{Name: "port_xmit_data"}}, []Counter{{Name: "other"}}
	for _, c := range []struct {
		hca      HCA
		port     Port
		counters []SharedCounter
		want     string // a part of the reason
	}{
		{HCA{}, Port{Counters: pma}, bytes, ""},
		{HCA{}, Port{}, bytes[:1], "one direction"},
		{HCA{}, Port{}, bytes[1:], "one direction"},
		{HCA{Netns: 1}, Port{Counters: pma}, packets, "counters of bytes are missing"},
		{HCA{Netns: 1}, Port{Counters: other}, packets, "network namespace"},
		{HCA{}, Port{Counters: other}, packets, "counts packets"},
		{HCA{}, Port{Counters: other}, nil, "neither bytes nor packets"},
		{HCA{}, Port{HWCounters: other}, nil, "neither bytes nor packets"},
		{HCA{}, Port{}, nil, "the port has no counters"},
	} {
		got := c.hca.WithoutBytes(&c.port, c.counters)
		if !strings.Contains(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%+v with %v: %q, want %q", c.port, c.counters, got, c.want)
		}
	}
}

func TestIsConsumer(t *testing.T) {
	for d, want := range map[Domains]bool{
		{Module: "nvme_rdma", Used: 1}: true, {Module: "nvme_rdma"}: false, {Used: 1}: false, {Module: IPoIBModule, Used: 1}: false,
		{Module: "mlx5_ib", Used: 1}: false,
	} {
		if d.IsConsumer() != want {
			t.Errorf("%+v: %t, want %t", d, !want, want)
		}
	}
}

func TestUncounted(t *testing.T) {
	for want, gaps := range map[bool][]Gap{false: {GapUnattributed}, true: {GapUnattributed, GapLate}} {
		if Uncounted(gaps) != want || Uncounted(nil) {
			t.Errorf("%v: %t, want %t", gaps, !want, want)
		}
	}
}
