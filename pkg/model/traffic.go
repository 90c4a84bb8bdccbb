// SPDX-License-Identifier: Apache-2.0

package model

import (
	"strconv"
	"time"
)

// Method is how a value of the data path was measured. The data path bypasses the kernel: a container's bytes are known
// only from hardware counters or from probes in the container's processes.
type Method string

// The methods, best first.
const (
	// MethodPort: counters of a port with an exclusive owner.
	MethodPort Method = "port"
	// MethodQPCounter: hardware counters that are bound to queue pairs through RDMA netlink.
	MethodQPCounter Method = "qp_counter"
	// MethodUprobe: uprobes count the work requests that processes post and the completions that they poll. Bytes are
	// payload.
	MethodUprobe Method = "uprobe"
	// MethodSurvey: counters of a port, split among its owners in proportion to uprobe counts in the last survey. The
	// sum is exact, the parts are estimates.
	MethodSurvey Method = "survey"
)

// Direction is the direction of traffic, as the container sees it. RDMA reads receive.
type Direction string

// The directions.
const (
	Transmit Direction = "transmit"
	Receive  Direction = "receive"
)

// Traffic is the bytes that a cgroup moved over an HCA in a direction since watching began.
type Traffic struct {
	Cgroup    CgroupID
	Device    string
	Method    Method
	Direction Direction
	Bytes     uint64
	QPs       uint64 // queue pairs counted now, MethodQPCounter only
	Resting   bool
}

// Survey is what a cgroup moved over an HCA in the last survey of its provider: a period in which all calls were
// counted. Between surveys calls are not counted, because the probes would exceed the budget of the processes. After
// three intervals without a survey the row is removed.
type Survey struct {
	Cgroup CgroupID
	Device string
	// Begun and Ended delimit the survey. Surveys of cgroups may differ in time: compare bytes per second.
	Begun, Ended time.Time
	// TransmitBytes and ReceiveBytes are payload.
	TransmitBytes, ReceiveBytes uint64
}

// Budget is the current cost of data-path probes for one cgroup.
type Budget struct {
	Cgroup CgroupID
	// SpentRatio is the largest fraction of a process's CPU time that probes used between surveys, in the last
	// interval.
	SpentRatio float64
}

// SurveyCounts counts the surveys of provider files: surveys that began as scheduled, and surveys that began, or became longer, on
// suspicion against a communicator.
type SurveyCounts struct{ Scheduled, Suspected uint64 }

// DataPathStats is the state of the probes on the data path.
type DataPathStats struct {
	Attached bool
	// LimitRatio is the maximum fraction of a process's CPU time for probes, infinite without a limit.
	LimitRatio float64
	Surveys    SurveyCounts
	Processes  uint64 // watched
	Probes     uint64 // attached
	// Late counts the verbs contexts that could send before their provider was probed: their first calls are not
	// counted.
	Late uint64
}

// VF is a virtual function as its physical function reports it (IFLA_VF_INFO of the interface), also if the VF is in a
// container or a virtual machine.
type VF struct {
	PF         string // the HCA of the physical function
	Number     int
	PCIAddress string // empty if unknown
	NodeGUID   string // may be empty
	PortGUID   string
	// Counted reports that the driver counts. The following are all bytes and packets of the VF, RDMA and other.
	Counted                         bool
	TransmitBytes, ReceiveBytes     uint64
	TransmitPackets, ReceivePackets uint64
	// Look is the sequence number of this reading of the counters; 0 without counters.
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
	// RemoteGID is empty if packets are not routed by GID; RemoteLID is 0 on RoCE.
	RemoteGID string
	RemoteLID uint32
	RemoteQPN uint32
}

// qpTypes are the names of an enum ib_qp_type (include/rdma/ib_verbs.h), of types that connect.
var qpTypes = []string{2: "RC", 3: "UC", 9: "XRC_INI", 10: "XRC_TGT"}

// QPTypeName returns the name of a type of queue pairs, or its number.
func QPTypeName(n uint32) string {
	if n < uint32(len(qpTypes)) && qpTypes[n] != "" {
		return qpTypes[n]
	}
	return strconv.FormatUint(uint64(n), 10)
}
