// SPDX-License-Identifier: Apache-2.0

package datapath

import (
	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
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

var functionPrograms = [Functions]programs{
	PostSend: {entry: gen.DatapathProgPostSend, ret: gen.DatapathProgPostSendReturn},
	PostRecv: {entry: gen.DatapathProgPostRecv, ret: gen.DatapathProgPostRecvReturn},
	PollCQ:   {entry: gen.DatapathProgPollCq, ret: gen.DatapathProgPollCqReturn},

	WrAtomicCmpSwp:   build(gen.DatapathOpcodeOPCODE_ATOMIC_CMP_AND_SWP),
	WrAtomicFetchAdd: build(gen.DatapathOpcodeOPCODE_ATOMIC_FETCH_AND_ADD),
	WrBindMW:         build(gen.DatapathOpcodeOPCODE_BIND_MW),
	WrLocalInv:       build(gen.DatapathOpcodeOPCODE_LOCAL_INV),
	WrRDMARead:       build(gen.DatapathOpcodeOPCODE_RDMA_READ),
	WrRDMAWrite:      build(gen.DatapathOpcodeOPCODE_RDMA_WRITE),
	WrRDMAWriteImm:   build(gen.DatapathOpcodeOPCODE_RDMA_WRITE_WITH_IMM),
	WrSend:           build(gen.DatapathOpcodeOPCODE_SEND),
	WrSendImm:        build(gen.DatapathOpcodeOPCODE_SEND_WITH_IMM),
	WrSendInv:        build(gen.DatapathOpcodeOPCODE_SEND_WITH_INV),
	WrSendTSO:        build(gen.DatapathOpcodeOPCODE_TSO),

	WrSetInlineData:     {entry: gen.DatapathProgWrSetInlineData},
	WrSetInlineDataList: {entry: gen.DatapathProgWrSetInlineDataList},
	WrSetSGE:            {entry: gen.DatapathProgWrSetSge},
	WrSetSGEList:        {entry: gen.DatapathProgWrSetSgeList},
	WrStart:             {entry: gen.DatapathProgWrStart},
	WrComplete:          {entry: gen.DatapathProgWrComplete, ret: gen.DatapathProgWrCompleteReturn},
	WrAbort:             {entry: gen.DatapathProgWrAbort},
}

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
