// SPDX-License-Identifier: Apache-2.0

package locate

// A function is one of a provider's functions that are probed.
type Function uint8

// The functions of struct ibv_context_ops, then those of struct ibv_qp_ex.
const (
	PostSend Function = iota
	PostRecv
	PollCQ

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

	Functions
)

// returns says whether the function's return is probed, too: it tells what was
// taken or done.
func (f Function) Returns() bool {
	return f == PostSend || f == PostRecv || f == PollCQ || f == WrComplete
}

// A fileID is a file that is mapped, as /proc/PID/maps tells it.
type FileID struct {
	Device, Inode uint64
}

// A site is where one function of one file is probed.
type Site struct {
	File     FileID
	Function Function
	// offset is that of the instruction in the file. Return probes are at the same
	// place, which is before anything was pushed.
	Offset uint64
	// skip is how far behind the function's entry that is.
	Skip uint8
	// stepped: the kernel must single-step the instruction, which costs some ten
	// times as much as one that it emulates.
	Stepped bool
}
