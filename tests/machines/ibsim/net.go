// SPDX-License-Identifier: Apache-2.0

package ibsim

import (
	"fmt"
	"strings"
)

// Net is the configured fabric.
type Net struct {
	Nodes []Node
	Links []Link
}

// Node is a switch or a channel adapter.
type Node struct {
	Switch bool
	GUID   uint64 // of the node; the port of a switch has the same, port N of an adapter has this plus N
	Name   string // node description, up to 63 bytes without double quotes
	Ports  int
}

// Link joins ports of two nodes, by index in Nodes.
type Link struct {
	A, B  End
	Width int    // lanes
	Speed string // as in a net file: HDR
}

// End is one end of a link.
type End struct{ Node, Port int }

// Links have 12 lanes and HDR, the capability of ibsim's ports: a link of 4 lanes has lost lanes.
const (
	Width = 12
	Speed = "HDR"
)

// FatTree returns a fabric of two levels: each leaf has hosts with one port, and a link to each spine. Leaf L is
// Nodes[L], named leafL; host H is named hostH. Hosts use the leaf's ports from 1 on, then spines; switches have 40
// ports.
func FatTree(leaves, hostsPerLeaf, spines int) *Net {
	const radix = 40
	n := &Net{}
	add := func(name string, isSwitch bool, guid uint64, ports int) int {
		n.Nodes = append(n.Nodes, Node{Switch: isSwitch, GUID: guid, Name: name, Ports: ports})
		return len(n.Nodes) - 1
	}
	for l := range leaves {
		add(fmt.Sprintf("leaf%d", l), true, 0xb8cef60300010000+uint64(l)<<4, radix)
	}
	for s := range spines {
		spine := add(fmt.Sprintf("spine%d", s), true, 0xb8cef60300020000+uint64(s)<<4, radix)
		for l := range leaves {
			n.Links = append(n.Links, Link{End{l, hostsPerLeaf + s + 1}, End{spine, l + 1}, Width, Speed})
		}
	}
	for h := range leaves * hostsPerLeaf {
		host := add(fmt.Sprintf("host%d mlx5_0", h), false, 0xb8cef60300030000+uint64(h)<<4, 1)
		n.Links = append(n.Links, Link{End{h / hostsPerLeaf, h%hostsPerLeaf + 1}, End{host, 1}, Width, Speed})
	}
	return n
}

// ID returns the name of the node in the console and in a net file.
func (n Node) ID() string {
	if n.Switch {
		return fmt.Sprintf("S-%016x", n.GUID)
	}
	return fmt.Sprintf("H-%016x", n.GUID)
}

// PortGUID is the GUID of a port.
func (n Node) PortGUID(port int) uint64 {
	if n.Switch {
		return n.GUID
	}
	return n.GUID + uint64(port)
}

// Port returns the name of a node's port in the console: "S-…"[port].
func (n *Net) Port(e End) string { return fmt.Sprintf("%q[%d]", n.Nodes[e.Node].ID(), e.Port) }

// Find returns the index of the node with this name, or -1.
func (n *Net) Find(name string) int {
	for i := range n.Nodes {
		if n.Nodes[i].Name == name {
			return i
		}
	}
	return -1
}

// String returns the net file, in the format of ibnetdiscover.
func (n *Net) String() string {
	var b strings.Builder
	for i, node := range n.Nodes {
		fmt.Fprintf(&b, "vendid=0x2c9\nsysimgguid=0x%x\n", node.GUID)
		if node.Switch {
			fmt.Fprintf(&b, "devid=0xd2f0\nswitchguid=0x%x(%x)\n", node.GUID, node.GUID)
			fmt.Fprintf(&b, "Switch\t%d %q\t\t# \"%s\" enhanced port 0 lid 0 lmc 0\n", node.Ports, node.ID(), node.Name)
		} else {
			fmt.Fprintf(&b, "devid=0x101b\ncaguid=0x%x\n", node.GUID)
			fmt.Fprintf(&b, "Ca\t%d %q\t\t# \"%s\"\n", node.Ports, node.ID(), node.Name)
		}
		for _, l := range n.Links {
			for _, ends := range [][2]End{{l.A, l.B}, {l.B, l.A}} {
				if at, to := ends[0], ends[1]; at.Node == i {
					peer := n.Nodes[to.Node]
					what := fmt.Sprintf("\"%s\" lid 0 %dx%s", peer.Name, l.Width, l.Speed)
					if !node.Switch {
						what = "lid 0 lmc 0 " + what
					}
					fmt.Fprintf(&b, "[%d]\t%q[%d](%x) \t\t# %s\n", at.Port, peer.ID(), to.Port, peer.PortGUID(to.Port), what)
				}
			}
		}
		b.WriteString("\n")
	}
	return b.String()
}
