// SPDX-License-Identifier: Apache-2.0

package model

import (
	"net/netip"
	"slices"
)

// GID is an entry of a port's GID table: an address that queue pairs can use.
type GID struct {
	Index   int
	Type    GIDType
	Address netip.Addr
	Netdev  string // interface of the address: the port's, a VLAN or a bond; empty on InfiniBand
}

// GIDType is the protocol of a GID.
type GIDType string

// The types of GIDs. iWARP, and devices that are neither InfiniBand nor Ethernet, have GIDOther.
const (
	GIDInfiniBand GIDType = "ib"
	GIDRoCEv1     GIDType = "roce_v1"
	GIDRoCEv2     GIDType = "roce_v2"
	GIDOther      GIDType = "other"
)

// Routable reports whether a GID is a RoCE v2 GID of an IPv4 or IPv6 address that is not link-local.
func (g *GID) Routable() bool { return g.Type == GIDRoCEv2 && g.Address.Unmap().IsGlobalUnicast() }

// LacksRoCEv2 reports whether a port lacks a routable RoCE v2 GID. known is false if the port is not a RoCE port or its
// GIDs were not read.
func (h *HCA) LacksRoCEv2(p *Port) (lacks, known bool) {
	known = p.LinkLayer == "Ethernet" && h.NodeType == "CA" && p.GIDs != nil
	return known && !slices.ContainsFunc(p.GIDs, func(g GID) bool { return g.Routable() }), known
}
