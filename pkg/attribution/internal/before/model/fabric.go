// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// Fabric is one InfiniBand subnet, as it is seen from a port of this node.
type Fabric struct {
	// Nodes are its switches, channel adapters and routers, sorted by GUID.
	Nodes []FabricNode
	// Discovered is when the topology was read.
	Discovered time.Time
	// Queries counts the runs of the tools that read it.
	Queries []FabricQueries
}

// Kinds of fabric nodes, as the tools write them.
const (
	FabricSwitch = "SW"
	FabricCA     = "CA"
	FabricRouter = "RT"
)

// FabricKinds are the kinds in words, in the order in which they are shown.
var FabricKinds = []struct{ Kind, Word string }{{FabricSwitch, "switch"}, {FabricCA, "ca"}, {FabricRouter, "router"}}

// FabricNode is a node of the fabric. Its name comes from the node itself, and is
// as trustworthy as who set it.
type FabricNode struct {
	GUID string // node GUID, 0x and 16 digits
	Kind string // FabricSwitch, FabricCA, FabricRouter
	Name string // node description, or the name of a node name map
	LID  uint32 // of a switch, or of its first port; 0 where it has none

	Ports []FabricPort // those that the tools told, sorted by number

	// Queried is when the counters of its ports were read last; zero: never. What
	// was read before an error remains, Error says why it is not newer.
	Queried time.Time
	Error   string
}

// FabricPort is a port of a fabric node.
type FabricPort struct {
	Number int
	Width  int         // lanes of the link; 0 where there is none
	Speed  string      // SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR, XDR; empty where there is no link, or no name for it
	Peer   *FabricPeer // nil: no link
	// Narrow and Slow say whether the link has fewer lanes, or a lower speed, than
	// both of its ends are capable of, or than is expected; nil where that is not known.
	Narrow, Slow *bool
	// Counters are those of the port as the performance manager's attributes name
	// them (PortXmitData, SymbolErrorCounter, …), data in units of 4 bytes. nil: not read.
	// Of a port of what is no switch they are those above zero, of which one at least
	// counts errors; empty: it has none.
	Counters []Counter
}

// FabricPeer is the other end of a link.
type FabricPeer struct {
	GUID string // of the node
	Port int
}

// FabricQueries counts the runs of a tool by how they ended.
type FabricQueries struct {
	Tool   string // ibnetdiscover, perfquery, ibqueryerrors, …
	Result string // ok, error, timeout
	Count  uint64
}
