// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// Fabric is one InfiniBand subnet, as seen from a port of this node.
type Fabric struct {
	// Nodes are its switches, channel adapters and routers, sorted by GUID.
	Nodes []FabricNode
	// Discovered is the time at which the topology was read.
	Discovered time.Time
	// Master is the subnet manager of the fabric, nil if it is unknown. MasterChanges counts the changes from one to
	// another that were noticed.
	Master        *FabricMaster
	MasterChanges uint64
	// Queries counts the runs of the tools that read it.
	Queries []FabricQueries
}

// FabricMaster is the master subnet manager.
type FabricMaster struct {
	GUID     string // of its port
	LID      uint32
	Priority int // 0 to 15
}

// Kinds of fabric nodes, as the tools write them.
const (
	FabricSwitch = "SW"
	FabricCA     = "CA"
	FabricRouter = "RT"
)

// FabricKinds are the names of the kinds, in display order.
var FabricKinds = []struct{ Kind, Word string }{{FabricSwitch, "switch"}, {FabricCA, "ca"}, {FabricRouter, "router"}}

// FabricNode is a node of the fabric. The node itself reports its name, so the name is not
// trustworthy.
type FabricNode struct {
	GUID string // node GUID, as FormatGUID formats it
	Kind string // FabricSwitch, FabricCA, FabricRouter
	Name string // node description, or the name of a node name map
	LID  uint32 // of a switch, or of its first port; 0 where it has none

	Ports []FabricPort // those that the tools reported, sorted by number

	// Queried is the time at which the counters of its ports were last read; zero: never.
	// After an error the earlier values remain; Error has the reason.
	Queried time.Time
	Error   string
}

// FabricPort is a port of a fabric node.
type FabricPort struct {
	Number int
	Width  int         // lanes of the link; 0 where there is none
	Speed  string      // SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR, XDR; empty where there is no link, or no name for it
	Peer   *FabricPeer // nil: no link
	// Narrow and Slow report a link with fewer lanes, or a lower speed, than both of its ends
	// support, or than expected; nil if unknown.
	Narrow, Slow *bool
	// State is the logical state of a port with a link: Initialize, Armed, Active; empty if unknown. The subnet manager makes ports active.
	State string
	// Counters are named like the performance manager's attributes (PortXmitData,
	// SymbolErrorCounter, …), data in units of 4 bytes. nil: not read. Ports of nodes other
	// than switches have only non-zero counters, if at least one of them counts errors; empty:
	// none.
	Counters []Counter
}

// FabricPeer is the other end of a link.
type FabricPeer struct {
	GUID string // of the node
	Port int
}

// FabricQueries counts the runs of a tool by result.
type FabricQueries struct {
	Tool   string // ibnetdiscover, perfquery, ibqueryerrors, …
	Result string // ok, error, timeout
	Count  uint64
}
