// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
	"github.com/accelscope/accelscope/pkg/source/datapath/budget"
	"github.com/accelscope/accelscope/pkg/source/datapath/locate"
)

// kernelHooks see contexts and queue pairs come and go. The first shows what is
// to be probed. kprobe programs are skipped while the sensor itself is in a map of
// theirs on that CPU, and it may be preempted there: what a queue pair lost by
// that would never be watched. So fentry comes first, though it pins the module.
var kernelHooks = []hook.Hook{
	{Name: "datapath_modify_qp", Tiers: tiers(gen.DatapathProgKprobeModify, gen.DatapathProgFentryModify)},
	{Name: "datapath_destroy_qp", Tiers: tiers(gen.DatapathProgKprobeDestroy, gen.DatapathProgFentryDestroy)},
	{Name: "datapath_restrack_add", Tiers: tiers(gen.DatapathProgKprobeTrack, gen.DatapathProgFentryTrack)},
	{
		Name: "datapath_create_qp", Optional: true,
		Tiers: tiers(gen.DatapathProgKprobeCreate, gen.DatapathProgFentryCreate),
	},
}

func tiers(kprobe, fentry string) []hook.Tier {
	return []hook.Tier{hook.With(hook.Fentry, fentry), hook.With(hook.Kprobe, kprobe)}
}

// unattached are the hooks in one state.
func unattached(reason string, state model.State) []model.Hook {
	out := make([]model.Hook, 0, len(kernelHooks))
	for _, h := range kernelHooks {
		out = append(out, model.Hook{Name: h.Name, State: state, Reason: reason})
	}
	return out
}

// programs are those of one function: at its entry, and at its return or none.
// opcode is what kind of work request it begins.
type programs struct {
	entry, ret string
	opcode     gen.DatapathOpcode
}

func build(opcode gen.DatapathOpcode) programs {
	return programs{entry: gen.DatapathProgWrBuild, opcode: opcode}
}

var functionPrograms = [locate.Functions]programs{
	locate.PostSend: {entry: gen.DatapathProgPostSend, ret: gen.DatapathProgPostSendReturn},
	locate.PostRecv: {entry: gen.DatapathProgPostRecv, ret: gen.DatapathProgPostRecvReturn},
	locate.PollCQ:   {entry: gen.DatapathProgPollCq, ret: gen.DatapathProgPollCqReturn},

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

	locate.WrSetInlineData:     {entry: gen.DatapathProgWrSetInlineData},
	locate.WrSetInlineDataList: {entry: gen.DatapathProgWrSetInlineDataList},
	locate.WrSetSGE:            {entry: gen.DatapathProgWrSetSge},
	locate.WrSetSGEList:        {entry: gen.DatapathProgWrSetSgeList},
	locate.WrStart:             {entry: gen.DatapathProgWrStart},
	locate.WrComplete:          {entry: gen.DatapathProgWrComplete, ret: gen.DatapathProgWrCompleteReturn},
	locate.WrAbort:             {entry: gen.DatapathProgWrAbort},
}

// groupOf is what a function is probed together with.
func groupOf(f locate.Function) int {
	if f == locate.PollCQ {
		return budget.Poll
	}
	return budget.Post
}

// The groups are those of the programs.
var (
	_ = [1]struct{}{}[budget.Post-int(gen.DatapathCallsCALLS_POST)]
	_ = [1]struct{}{}[budget.Poll-int(gen.DatapathCallsCALLS_POLL)]
	_ = [1]struct{}{}[budget.Groups-int(gen.DatapathCallsCALLS)]
)

// userPrograms are all that need no type of the kernel's modules.
func userPrograms() []string {
	seen := map[string]bool{}
	var out []string
	add := func(name string) {
		if name != "" && !seen[name] {
			seen[name] = true
			out = append(out, name)
		}
	}
	for _, p := range functionPrograms {
		add(p.entry)
		add(p.ret)
	}
	add(gen.DatapathProgCalibrate)
	add(gen.DatapathProgCalibrateReturn)
	add(gen.DatapathProgControl)
	return out
}
