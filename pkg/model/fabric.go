// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// Fabric is an InfiniBand subnet, as seen from a port of this node.
type Fabric struct {
	// Nodes are switches, channel adapters and routers, sorted by GUID.
	Nodes []FabricNode
	// Discovered is when the topology was read.
	Discovered time.Time
	// Master is the master subnet manager, nil if unknown. MasterChanges counts the observed changes of the master.
	Master        *FabricMaster
	MasterChanges uint64
	// Queries counts the runs of the fabric's tools.
	Queries []FabricQueries
}

// FabricMaster is the master subnet manager.
type FabricMaster struct {
	GUID     string // of the subnet manager's port
	LID      uint32
	Priority int // 0 to 15
}

// Kinds of fabric nodes, as the tools write them.
const (
	FabricSwitch = "SW"
	FabricCA     = "CA"
	FabricRouter = "RT"
)

// FabricKinds are the words for the kinds, in display order.
var FabricKinds = []struct{ Kind, Word string }{{FabricSwitch, "switch"}, {FabricCA, "ca"}, {FabricRouter, "router"}}

// FabricNode is a node of the fabric. The node itself reports its name: it is not trustworthy.
type FabricNode struct {
	GUID string // node GUID, as FormatGUID formats it
	Kind string // FabricSwitch, FabricCA, FabricRouter
	Name string // node description, or the name of a node name map
	LID  uint32 // of a switch, or of the first port; 0 if unknown

	Ports []FabricPort // the ports that the tools reported, sorted by number

	// Queried is when the port counters were last read; zero: never. After an error the earlier values remain, and
	// Error has the reason.
	Queried time.Time
	Error   string
}

// FabricPort is a port of a fabric node.
type FabricPort struct {
	Number int
	Width  int         // of the link; 0 without a link
	Speed  string      // SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR, XDR; empty without a link or a name
	Peer   *FabricPeer // nil: no link
	// Narrow and Slow report a link with fewer lanes, or a lower speed, than both ends support, or than expected; nil
	// if unknown.
	Narrow, Slow *bool
	// State is the logical state of a port with a link: Initialize, Armed, Active; empty if unknown. The subnet manager
	// activates ports.
	State string
	// Counters have the names of the performance manager's attributes (PortXmitData, SymbolErrorCounter, …); data is in
	// units of 4 bytes. nil: not read. Ports of nodes other than switches have only non-zero error counters; empty: no
	// errors.
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
