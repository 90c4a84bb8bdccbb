// SPDX-License-Identifier: Apache-2.0

package locate

// Function is a function of a verbs provider.
type Function uint8

// The functions of struct ibv_context_ops, then of struct ibv_qp_ex, then of struct ibv_cq_ex.
const (
	PostSend Function = iota
	PostRecv
	PollCQ
	PostSRQRecv

	WrAtomicCmpSwp
	WrAtomicFetchAdd
	WrBindMW
	WrLocalInv
	WrRDMARead
	WrRDMAWrite
	WrRDMAWriteImm
	WrSend
	WrSendImm
	WrSendInv
	WrSendTSO
	WrSetInlineData
	WrSetInlineDataList
	WrSetSGE
	WrSetSGEList
	WrStart
	WrComplete
	WrAbort
	WrAtomicWrite
	WrFlush

	StartPoll
	NextPoll
	WcReadOpcode
	WcReadByteLen
	WcReadQPNum

	Functions
)

// Returns reports whether the function's return is probed, too. It contains what
// the provider accepted or completed.
func (f Function) Returns() bool {
	return f == PostSend || f == PostRecv || f == PostSRQRecv || f == WrComplete || f.Polls()
}

// Polls reports whether the function polls a completion or returns a part of one.
func (f Function) Polls() bool { return f == PollCQ || f >= StartPoll }

// FileID identifies a mapped file by the numbers in /proc/PID/maps.
type FileID struct {
	Device, Inode uint64
}

// Site is where one function of one file is probed.
type Site struct {
	File     FileID
	Function Function
	// Offset is the offset of the instruction in the file. Return probes have the same
	// offset: the return address is still on top of the stack there.
	Offset uint64
	// Skip is the distance from the function's entry.
	Skip uint8
	// Stepped: the kernel single-steps the instruction, which costs about ten times as
	// much as to emulate it.
	Stepped bool
}
