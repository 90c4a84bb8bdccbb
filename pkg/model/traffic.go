// SPDX-License-Identifier: Apache-2.0

package model

import "time"

// Method is the method by which a value of the data path was measured. The data path bypasses
// the kernel: the bytes of a container are known only from hardware counters, or from probes
// in the container's own processes.
type Method string

// The methods, best first.
const (
	// MethodPort: the counters of a port with an exclusive owner.
	MethodPort Method = "port"
	// MethodQPCounter: hardware counters that queue pairs are bound to, through
	// RDMA netlink.
	MethodQPCounter Method = "qp_counter"
	// MethodUprobe: the work requests that processes post and the completions that
	// they poll, counted by uprobes. Bytes are payload.
	MethodUprobe Method = "uprobe"
	// MethodSurvey: the counters of a port, split among several owners in proportion to what uprobes counted in the last
	// survey. The sum is exact, the parts are estimates.
	MethodSurvey Method = "survey"
)

// Direction is the direction of traffic, as the container sees it. Data from an RDMA read is
// received.
type Direction string

// The directions.
const (
	Transmit Direction = "transmit"
	Receive  Direction = "receive"
)

// Traffic is the bytes that one cgroup moved over one HCA in one direction since watching
// began.
type Traffic struct {
	Cgroup    CgroupID
	Device    string
	Method    Method
	Direction Direction
	Bytes     uint64
	QPs       uint64 // queue pairs that are counted now, MethodQPCounter only
	// Resting: exact, and not counted at present.
	Resting bool
}

// Survey is what one cgroup moved over one HCA in the last survey of its provider: a period in which all calls were
// counted. Between surveys they are not, as the probes cost its processes more than they may. There is no row after
// three intervals without a survey.
type Survey struct {
	Cgroup CgroupID
	Device string
	// Begun and Ended are those of the survey. Cgroups may have been surveyed at different times: compare bytes per second.
	Begun, Ended time.Time
	// TransmitBytes and ReceiveBytes are payload.
	TransmitBytes, ReceiveBytes uint64
}

// Budget is the current cost of data-path probes for one cgroup.
type Budget struct {
	Cgroup CgroupID
	// SpentRatio is the largest share of a process's CPU time that probes used outside of surveys, in the last interval
	// between surveys.
	SpentRatio float64
}

// DataPathStats is the state of the probes on the data path.
type DataPathStats struct {
	// Attached reports that the hooks are attached: contexts are found.
	Attached bool
	// LimitRatio is the maximum share of a process's CPU time that probes may use, infinite
	// without a limit.
	LimitRatio float64
	Processes  uint64 // watched
	Probes     uint64 // attached
	// Late counts the verbs contexts that were ready to send before their provider's functions
	// were probed: their first calls are not counted.
	Late uint64
}

// VF is a virtual function as reported by its physical function (IFLA_VF_INFO of the network
// interface), also if the function is in a container or in a virtual machine.
type VF struct {
	PF         string // the HCA of the physical function
	Number     int
	PCIAddress string // empty if unknown
	NodeGUID   string // empty if it has none
	PortGUID   string
	// Counted reports that the driver counts: the following are all bytes and packets of the
	// function, with or without RDMA.
	Counted                         bool
	TransmitBytes, ReceiveBytes     uint64
	TransmitPackets, ReceivePackets uint64
	// Look is the sequence number of the reading of these counters; 0 without counters.
	Look uint64
}

// Peer is the other end of a connected queue pair.
type Peer struct {
	Cgroup CgroupID
	Device string
	Port   uint32
	QPN    uint32
	Type   string // RC, UC, XRC_INI, …
	State  string // INIT, RTR, RTS, …
	// RemoteGID is empty if packets are not routed by it; RemoteLID is 0 on RoCE.
	RemoteGID string
	RemoteLID uint32
	RemoteQPN uint32
}
