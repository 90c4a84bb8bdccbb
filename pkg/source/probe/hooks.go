// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"slices"
	"strings"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/model"
)

// Tiers, best first.
const (
	fentry     = "fentry"
	kprobe     = "kprobe"
	tracepoint = "tracepoint"
	// rawTracepoint is no tier of the ladder: the one hook that has it has no other.
	rawTracepoint = "raw_tracepoint"
)

// A hook is one function, or several that make sense only together. Programs
// are attached in this order: ends before beginnings, so that nothing is seen
// to begin whose end would be missed.
type hook struct {
	name  string
	tiers []tier
	// optional: kernels without the function are complete without it.
	optional bool
	// moduleTypes: reads types that only the BTF of ib_uverbs describes.
	moduleTypes bool
}

type tier struct {
	name     string
	programs []string
}

var verbHooks = []hook{
	{name: "ib_uverbs_ioctl", tiers: []tier{
		{fentry, []string{gen.VerbsProgFexitIoctl, gen.VerbsProgFentryIoctl}},
		{kprobe, []string{gen.VerbsProgKretprobeIoctl, gen.VerbsProgKprobeIoctl}},
		{tracepoint, []string{gen.VerbsProgExitIoctl, gen.VerbsProgEnterIoctl}},
	}},
	{name: "ib_uverbs_write", tiers: []tier{
		{fentry, []string{gen.VerbsProgFexitWrite, gen.VerbsProgFentryWrite}},
		{kprobe, []string{gen.VerbsProgKretprobeWrite, gen.VerbsProgKprobeWrite}},
		{tracepoint, []string{gen.VerbsProgExitWrite, gen.VerbsProgEnterWrite}},
	}},
}

// Objects are made and deleted some thousand times a second at the very most,
// so what counts is not the cost of a hook but that it waits for no one: kprobes
// do not pin the module they are on, and fentry programs of one function are
// skipped when one preempts another. Each function that loses its last fentry
// program costs a grace period of 0.1 s and more, one after the other, and a
// driver reload would wait for all of them.
var objectHooks = []hook{
	// Destruction in steps: since 2026, and in the stable kernels that took it.
	{name: stepsHook, optional: true, tiers: []tier{
		{kprobe, []string{
			gen.ObjectsProgKprobeRestrackCommitDel, gen.ObjectsProgKprobeRestrackAbortDel,
			gen.ObjectsProgKprobeRestrackBeginDel,
		}},
		{fentry, []string{
			gen.ObjectsProgFentryRestrackCommitDel, gen.ObjectsProgFentryRestrackAbortDel,
			gen.ObjectsProgFentryRestrackBeginDel,
		}},
	}},
	{name: restrackHook, tiers: []tier{
		{kprobe, []string{
			gen.ObjectsProgKprobeRestrackDel, gen.ObjectsProgKretprobeRestrackAdd, gen.ObjectsProgKprobeRestrackAdd,
		}},
		{fentry, []string{gen.ObjectsProgFentryRestrackDel, gen.ObjectsProgFexitRestrackAdd}},
	}},
	{name: "rdma_alloc_commit_uobject", optional: true, moduleTypes: true, tiers: []tier{
		{kprobe, []string{
			gen.ObjectsProgKretprobeDestroyUobject, gen.ObjectsProgKprobeDestroyUobject,
			gen.ObjectsProgKprobeCommitUobject,
		}},
		{fentry, []string{gen.ObjectsProgFexitDestroyUobject, gen.ObjectsProgFentryCommitUobject}},
	}},
	{name: "ib_umem_dmabuf_get", optional: true, moduleTypes: true, tiers: []tier{
		{kprobe, []string{
			gen.ObjectsProgKprobeUmemRelease, gen.ObjectsProgKretprobeDmabufGet, gen.ObjectsProgKprobeDmabufGet,
		}},
		{fentry, []string{gen.ObjectsProgFentryUmemRelease, gen.ObjectsProgFexitDmabufGet}},
	}},
	{name: "ib_umem_dmabuf_get_pinned", optional: true, moduleTypes: true, tiers: []tier{
		{kprobe, []string{gen.ObjectsProgKretprobeDmabufGetPinned, gen.ObjectsProgKprobeDmabufGetPinned}},
		{fentry, []string{gen.ObjectsProgFexitDmabufGetPinned}},
	}},
}

// cgroupHook names the cgroups that are gone before anybody could look.
var cgroupHook = hook{name: "cgroup_mkdir", optional: true, tiers: []tier{
	{rawTracepoint, []string{gen.CgroupsProgCgroupMade}},
}}

// restrackHook is the hook without which no object can be counted, stepsHook
// the one that kernels with its functions need beside it.
const (
	restrackHook = "rdma_restrack_add"
	stepsHook    = "rdma_restrack_begin_del"
)

// unattached are all hooks in one state.
func unattached(reason string, state model.State) []model.Hook {
	var out []model.Hook
	for _, h := range slices.Concat(verbHooks, objectHooks, []hook{cgroupHook}) {
		out = append(out, model.Hook{Name: h.name, State: state, Reason: reason})
	}
	return out
}

type tierList []string

func (t tierList) String() string { return strings.Join(t, " ") }

// tiersOf tells the tier of each attached hook.
func tiersOf(hooks []model.Hook) tierList {
	var out tierList
	for _, h := range hooks {
		if h.State == model.StateOK {
			out = append(out, h.Name+"="+h.Tier)
		}
	}
	return out
}
