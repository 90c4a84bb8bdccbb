// SPDX-License-Identifier: Apache-2.0

package datapath

import "github.com/accelscope/accelscope/gen"

// A function is one of a provider's functions that are probed.
type function uint8

// The functions of struct ibv_context_ops, then those of struct ibv_qp_ex.
const (
	postSend function = iota
	postRecv
	pollCQ

	wrAtomicCmpSwp
	wrAtomicFetchAdd
	wrBindMW
	wrLocalInv
	wrRDMARead
	wrRDMAWrite
	wrRDMAWriteImm
	wrSend
	wrSendImm
	wrSendInv
	wrSendTSO
	wrSetInlineData
	wrSetInlineDataList
	wrSetSGE
	wrSetSGEList
	wrStart
	wrComplete
	wrAbort

	functions
)

// calls is what a function is probed together with.
func (f function) calls() int {
	if f == pollCQ {
		return int(gen.DatapathCallsCALLS_POLL)
	}
	return int(gen.DatapathCallsCALLS_POST)
}

// returns says whether the function's return is probed, too: it tells what was
// taken or done.
func (f function) returns() bool {
	return f == postSend || f == postRecv || f == pollCQ || f == wrComplete
}

// A fileID is a file that is mapped, as /proc/PID/maps tells it.
type fileID struct {
	device, inode uint64
}

// A site is where one function of one file is probed.
type site struct {
	file     fileID
	function function
	// offset is that of the instruction in the file. Return probes are at the same
	// place, which is before anything was pushed.
	offset uint64
	// skip is how far behind the function's entry that is.
	skip uint8
	// stepped: the kernel must single-step the instruction, which costs some ten
	// times as much as one that it emulates.
	stepped bool
}
