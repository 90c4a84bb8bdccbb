// SPDX-License-Identifier: Apache-2.0

package model

// Method says how a figure of the data path was obtained. The kernel sees none of
// it: what a container moves is known from counters of hardware, or from probes
// in the container's own processes.
type Method string

// The methods, best first.
const (
	// MethodPort: the counters of a port that belongs to one workload alone.
	MethodPort Method = "port"
	// MethodQPCounter: hardware counters that queue pairs are bound to, through
	// RDMA netlink.
	MethodQPCounter Method = "qp_counter"
	// MethodUprobe: the work requests that processes post and the completions that
	// they poll, counted by uprobes. Bytes are payload.
	MethodUprobe Method = "uprobe"
)

// Direction of traffic, as the container sees it. What an RDMA read brings is
// received.
type Direction string

// The directions.
const (
	Transmit Direction = "transmit"
	Receive  Direction = "receive"
)

// Seen says how much of a cumulative figure was seen. The zero Seen is all of it.
//
// A figure that is counted in windows of time, and scaled up, never adds to one
// that is exact: there are two, and the exact one rests meanwhile.
type Seen struct {
	// Sampled: counted in windows, and scaled up by the time between them.
	Sampled bool
	// Resting: exact so far, and not counted on at present.
	Resting bool
}

// Traffic is what one cgroup moved over one HCA in one direction since it is
// watched, in bytes.
type Traffic struct {
	Cgroup    uint64
	Device    string
	Method    Method
	Direction Direction
	Bytes     uint64
	Seen
}

// WorkRequests are those that one cgroup posted on one HCA, by opcode. Those
// that the provider refused are not among them.
type WorkRequests struct {
	Cgroup uint64
	Device string
	Opcode string // of ibv_wr_opcode: rdma_write, send_with_imm, …; recv for receives
	Count  uint64
	Bytes  uint64 // of their scatter/gather lists; 0 for receives, whose length is not known yet
	Seen
}

// CompletionErrors are the completions that one cgroup polled from one HCA with
// a status that is not success.
type CompletionErrors struct {
	Cgroup uint64
	Device string
	Status string // of ibv_wc_status: retry_exceeded, wr_flush_error, …
	Count  uint64
	Seen
}

// Completions is how long work requests took from being posted to their
// completion being polled.
type Completions struct {
	Cgroup   uint64
	Device   string
	Opcode   string // write, read, send or atomic
	Duration FineHistogram
	Seen
}

// Calls are the calls of the data path that are probed together.
type Calls string

// Posting tells of what is sent, polling of what is received, of errors and of
// durations.
const (
	PostCalls Calls = "post"
	PollCalls Calls = "poll"
)

// Sampling is which part of the time the calls of one cgroup on one HCA are
// watched, 1 for all of it.
type Sampling struct {
	Cgroup uint64
	Device string
	Calls  Calls
	Ratio  float64
}

// Budget is what probes cost the processes of one cgroup, in their own CPU time.
type Budget struct {
	Cgroup uint64
	// LimitRatio is the part of a process's CPU time that probes may take, infinite
	// without a limit; SpentRatio is what they took in the last minute, of the
	// process of which it was most.
	LimitRatio, SpentRatio float64
	// SpentSeconds is what they took of all processes since they are watched.
	SpentSeconds float64
}

// DataPathStats is the state of the probes on the data path.
type DataPathStats struct {
	Processes uint64 // that are watched
	Probes    uint64 // that are attached
	// Late counts the verbs contexts that were ready to send before their
	// provider's functions were probed: what they did first is not counted.
	Late uint64
}

// VF is a virtual function as its physical one tells of it (IFLA_VF_INFO of the
// network interface), wherever the function is: in a container or in a virtual
// machine.
type VF struct {
	PF         string // the HCA of the physical function
	Number     int
	PCIAddress string // empty when the kernel does not tell
	NodeGUID   string // empty where it has none
	PortGUID   string
	// Counted says whether the driver counts: the figures are then what the function
	// has moved, by RDMA and otherwise, in bytes and packets.
	Counted                         bool
	TransmitBytes, ReceiveBytes     uint64
	TransmitPackets, ReceivePackets uint64
	// Look is the number of the look that read the figures, which are those of its
	// time; it grows with each that read them. 0 without figures.
	Look uint64
}

// Peer is the other end of a connected queue pair.
type Peer struct {
	Cgroup uint64
	Device string
	Port   uint32
	QPN    uint32
	Type   string // RC, UC, XRC_INI, …
	State  string // INIT, RTR, RTS, …
	// RemoteGID is empty where packets are not routed by it, RemoteLID 0 on RoCE.
	RemoteGID string
	RemoteLID uint32
	RemoteQPN uint32
}
