// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"slices"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// kernelHooks follow contexts and queue pairs. The first hook finds the contexts to probe; without the others little is lost. While this
// process is in a system call on a map, the kernel skips kprobe programs that use the map on the same CPU, where the call can be
// preempted. A queue pair missed then would never be counted, so fentry comes first, though it pins the module. Changes of queue pairs
// are also seen at the return (fexit), because a preempted program is skipped for other threads.
var kernelHooks = []hook.Hook{
	{
		Name: "datapath_modify_qp", Required: true, Reads: hook.UverbsStructures,
		Tiers: tiers(gen.DatapathProgKprobeModify, gen.DatapathProgFentryModify, gen.DatapathProgFexitModify),
	},
	{Name: "datapath_destroy_qp", Reads: hook.UverbsStructures, Tiers: tiers(gen.DatapathProgKprobeDestroy, gen.DatapathProgFentryDestroy)},
	{Name: "datapath_restrack_add", Reads: hook.UverbsStructures, Tiers: tiers(gen.DatapathProgKprobeTrack, gen.DatapathProgFentryTrack)},
	{
		Name: "datapath_restrack_del", Optional: true, Reads: hook.UverbsStructures,
		Tiers: tiers(gen.DatapathProgKprobeUntrack, gen.DatapathProgFentryUntrack),
	},
	{
		Name: "datapath_create_qp", Optional: true, Reads: hook.UverbsStructures,
		Tiers: tiers(gen.DatapathProgKprobeCreate, gen.DatapathProgFentryCreate),
	},
}

// programHooks are the programs that are not attached to functions of the kernel. A function whose program is refused is not probed
// (GapRefused).
var programHooks = []hook.Hook{
	{Name: "datapath_control", Required: true, Tiers: []hook.Tier{hook.Loading(hook.Run, gen.DatapathProgControl)}},
	probes("datapath_post_send", true, func(f locate.Function) bool { return f == locate.PostSend }),
	probes("datapath_poll_cq", true, func(f locate.Function) bool { return f == locate.PollCQ }),
	probes("datapath_post_recv", false, func(f locate.Function) bool { return f == locate.PostRecv || f == locate.PostSRQRecv }),
	probes("datapath_wr", false, func(f locate.Function) bool { return f >= locate.WrAtomicCmpSwp && f < locate.StartPoll }),
	probes("datapath_start_poll", false, func(f locate.Function) bool { return f >= locate.StartPoll }),
	{Name: "datapath_outstanding", Optional: true, Tiers: []hook.Tier{hook.Loading(hook.Iterator, gen.DatapathProgListOutstanding)}},
	existingHook,
}

// existingHook lists the queue pairs that are older than the hooks.
var existingHook = hook.Hook{Name: "datapath_existing", Optional: true, Reads: hook.UverbsStructures, Tiers: []hook.Tier{
	hook.Loading(hook.Iterator, gen.DatapathProgExisting),
}}

// probes returns the hook of functions that count only together.
func probes(name string, required bool, of func(locate.Function) bool) hook.Hook {
	var names []string
	for f, p := range functionPrograms {
		if of(locate.Function(f)) {
			names = append(names, p.entry, p.ret)
		}
	}
	slices.Sort(names)
	names = slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" })
	return hook.Hook{
		Name: name, Required: required, Optional: !required, Check: locate.CheckStack,
		Tiers: []hook.Tier{hook.Loading(hook.Uprobe, names...)},
	}
}

func tiers(kprobe string, fentry ...string) []hook.Tier {
	return []hook.Tier{hook.With(hook.Fentry, fentry...), hook.With(hook.Kprobe, kprobe)}
}

// unattached returns all hooks in one state.
func unattached(reason string, state model.State) []model.Hook {
	return hook.States(slices.Concat(kernelHooks, programHooks), reason, state)
}

// programs are the names of the programs at the entry and at the return of a function, empty for no program. opcode is the opcode of the
// work requests that the function begins.
type programs struct {
	entry, ret string
	opcode     gen.DatapathOpcode
}

func build(opcode gen.DatapathOpcode) programs {
	return programs{entry: gen.DatapathProgWrBuild, opcode: opcode}
}

var functionPrograms = [locate.Functions]programs{
	locate.PostSend:    {entry: gen.DatapathProgPostSend, ret: gen.DatapathProgPostSendReturn},
	locate.PostRecv:    {entry: gen.DatapathProgPostRecv, ret: gen.DatapathProgPostRecvReturn},
	locate.PostSRQRecv: {entry: gen.DatapathProgPostSrqRecv, ret: gen.DatapathProgPostRecvReturn},
	locate.PollCQ:      {entry: gen.DatapathProgPollCq, ret: gen.DatapathProgPollCqReturn},

	locate.WrAtomicCmpSwp:   build(gen.DatapathOpcodeOPCODE_ATOMIC_CMP_AND_SWP),
	locate.WrAtomicFetchAdd: build(gen.DatapathOpcodeOPCODE_ATOMIC_FETCH_AND_ADD),
	locate.WrBindMW:         build(gen.DatapathOpcodeOPCODE_BIND_MW),
	locate.WrLocalInv:       build(gen.DatapathOpcodeOPCODE_LOCAL_INV),
	locate.WrRDMARead:       build(gen.DatapathOpcodeOPCODE_RDMA_READ),
	locate.WrRDMAWrite:      build(gen.DatapathOpcodeOPCODE_RDMA_WRITE),
	locate.WrRDMAWriteImm:   build(gen.DatapathOpcodeOPCODE_RDMA_WRITE_WITH_IMM),
	locate.WrSend:           build(gen.DatapathOpcodeOPCODE_SEND),
	locate.WrSendImm:        build(gen.DatapathOpcodeOPCODE_SEND_WITH_IMM),
	locate.WrSendInv:        build(gen.DatapathOpcodeOPCODE_SEND_WITH_INV),
	locate.WrSendTSO:        build(gen.DatapathOpcodeOPCODE_TSO),
	locate.WrAtomicWrite:    build(gen.DatapathOpcodeOPCODE_OTHER),
	locate.WrFlush:          build(gen.DatapathOpcodeOPCODE_OTHER),

	locate.WrSetInlineData:     {entry: gen.DatapathProgWrSetInlineData},
	locate.WrSetInlineDataList: {entry: gen.DatapathProgWrSetInlineDataList},
	locate.WrSetSGE:            {entry: gen.DatapathProgWrSetSge},
	locate.WrSetSGEList:        {entry: gen.DatapathProgWrSetSgeList},
	locate.WrStart:             {entry: gen.DatapathProgWrStart},
	locate.WrComplete:          {entry: gen.DatapathProgWrComplete, ret: gen.DatapathProgWrCompleteReturn},
	locate.WrAbort:             {entry: gen.DatapathProgWrAbort},

	locate.StartPoll:     {entry: gen.DatapathProgPollCqEx, ret: gen.DatapathProgPollCqExReturn},
	locate.NextPoll:      {entry: gen.DatapathProgPollCqEx, ret: gen.DatapathProgPollCqExReturn},
	locate.WcReadOpcode:  readCompletion,
	locate.WcReadByteLen: readCompletion,
	locate.WcReadQPNum:   readCompletion,
}

var readCompletion = programs{entry: gen.DatapathProgReadCompletion, ret: gen.DatapathProgReadCompletionReturn}

// The groups of calls that are probed together.
const (
	posts  = int(gen.DatapathCallsCALLS_POST)
	polls  = int(gen.DatapathCallsCALLS_POLL)
	groups = int(gen.DatapathCallsCALLS)
)

// groupOf returns the group that a function is probed with.
func groupOf(f locate.Function) int {
	if f.Polls() {
		return polls
	}
	return posts
}
