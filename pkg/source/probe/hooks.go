// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"slices"
	"strings"

	"github.com/accelscope/accelscope/gen"
	"github.com/accelscope/accelscope/pkg/hook"
	"github.com/accelscope/accelscope/pkg/model"
)

var verbHooks = []hook.Hook{
	{Name: "ib_uverbs_ioctl", Tiers: []hook.Tier{
		hook.With(hook.Fentry, gen.VerbsProgFexitIoctl, gen.VerbsProgFentryIoctl),
		hook.With(hook.Kprobe, gen.VerbsProgKretprobeIoctl, gen.VerbsProgKprobeIoctl),
		hook.With(hook.Tracepoint, gen.VerbsProgExitIoctl, gen.VerbsProgEnterIoctl),
	}},
	{Name: "ib_uverbs_write", Tiers: []hook.Tier{
		hook.With(hook.Fentry, gen.VerbsProgFexitWrite, gen.VerbsProgFentryWrite),
		hook.With(hook.Kprobe, gen.VerbsProgKretprobeWrite, gen.VerbsProgKprobeWrite),
		hook.With(hook.Tracepoint, gen.VerbsProgExitWrite, gen.VerbsProgEnterWrite),
	}},
}

// Objects are created and deleted at most some thousand times per second, so the cost of a hook matters less than what
// it blocks. Kprobes come first for two reasons: they do not pin their module, and the kernel skips a fentry program
// that preempts another fentry program of the same function. Each function that loses its last fentry program also
// costs a grace period of 0.1 s or more, and a driver reload would wait for all of these periods in turn.
var objectHooks = []hook.Hook{
	// Destruction in steps: since 2026, and in stable kernels with the backport.
	{Name: stepsHook, Optional: true, Reads: hook.CoreStructures, Tiers: []hook.Tier{
		hook.With(hook.Kprobe,
			gen.ObjectsProgKprobeRestrackCommitDel, gen.ObjectsProgKprobeRestrackAbortDel,
			gen.ObjectsProgKprobeRestrackBeginDel),
		hook.With(hook.Fentry,
			gen.ObjectsProgFentryRestrackCommitDel, gen.ObjectsProgFentryRestrackAbortDel,
			gen.ObjectsProgFentryRestrackBeginDel),
	}},
	{Name: restrackHook, Reads: hook.CoreStructures, Tiers: []hook.Tier{
		hook.With(hook.Kprobe,
			gen.ObjectsProgKprobeRestrackDel, gen.ObjectsProgKretprobeRestrackAdd, gen.ObjectsProgKprobeRestrackAdd),
		hook.With(hook.Fentry, gen.ObjectsProgFentryRestrackDel, gen.ObjectsProgFexitRestrackAdd),
	}},
	{Name: uobjectHook, Optional: true, Reads: hook.UverbsStructures, Tiers: []hook.Tier{
		hook.With(hook.Kprobe,
			gen.ObjectsProgKretprobeDestroyUobject, gen.ObjectsProgKprobeDestroyUobject,
			gen.ObjectsProgKprobeCommitUobject),
		hook.With(hook.Fentry, gen.ObjectsProgFexitDestroyUobject, gen.ObjectsProgFentryCommitUobject),
	}},
	{Name: "ib_umem_dmabuf_get", Optional: true, Reads: hook.UverbsStructures, Tiers: []hook.Tier{
		hook.With(hook.Kprobe,
			gen.ObjectsProgKprobeUmemRelease, gen.ObjectsProgKretprobeDmabufGet, gen.ObjectsProgKprobeDmabufGet),
		hook.With(hook.Fentry, gen.ObjectsProgFentryUmemRelease, gen.ObjectsProgFexitDmabufGet),
	}},
	{Name: "ib_umem_dmabuf_get_pinned", Optional: true, Reads: hook.UverbsStructures, Tiers: []hook.Tier{
		hook.With(hook.Kprobe, gen.ObjectsProgKretprobeDmabufGetPinned, gen.ObjectsProgKprobeDmabufGetPinned),
		hook.With(hook.Fentry, gen.ObjectsProgFexitDmabufGetPinned),
	}},
	{Name: "ib_umem_dmabuf_get_pinned_with_dma_device", Optional: true, Reads: hook.UverbsStructures, Tiers: []hook.Tier{
		hook.With(hook.Kprobe,
			gen.ObjectsProgKretprobeDmabufGetPinnedWithDmaDevice, gen.ObjectsProgKprobeDmabufGetPinnedWithDmaDevice),
		hook.With(hook.Fentry, gen.ObjectsProgFexitDmabufGetPinnedWithDmaDevice),
	}},
	{Name: "ib_umem_dmabuf_get_pinned_revocable_and_lock", Optional: true, Reads: hook.UverbsStructures, Tiers: []hook.Tier{
		hook.With(hook.Kprobe,
			gen.ObjectsProgKretprobeDmabufGetPinnedRevocableAndLock, gen.ObjectsProgKprobeDmabufGetPinnedRevocableAndLock),
		hook.With(hook.Fentry, gen.ObjectsProgFexitDmabufGetPinnedRevocableAndLock),
	}},
	{Name: peerMemoryHook, Optional: true, Reads: hook.UverbsStructures, Tiers: []hook.Tier{
		hook.With(hook.Kprobe, gen.ObjectsProgKretprobePeerUmemGet, gen.ObjectsProgKprobePeerUmemGet),
		hook.With(hook.Fentry, gen.ObjectsProgFexitPeerUmemGet),
	}},
}

const (
	// dmabufFunctions is the prefix of the functions that map a dma-buf.
	dmabufFunctions = "ib_umem_dmabuf_get"
	// peerMemoryFunction registers peer memory clients, such as nvidia_peermem. Out-of-tree RDMA modules and the
	// kernels of some distributions have it.
	peerMemoryFunction = "ib_register_peer_memory_client"
	// peerMemoryHook maps the memory of a client.
	peerMemoryHook = "ib_peer_umem_get"
)

// plainMemory returns the kind of a memory region without a dma-buf or a peer memory client. This is host memory if a
// hook sees every function of the kernel that registers the memory of another device. A client's memory is recognized
// by the release of its mapping, and this release is one of the dma-buf hooks.
func plainMemory(hooks []model.Hook, symbols map[string]bool) gen.ObjectsMemory {
	var unseen, peer, release bool
	for _, h := range hooks {
		ok := h.State == model.StateOK
		unseen = unseen || strings.HasPrefix(h.Name, dmabufFunctions) && symbols[h.Name] && !ok
		peer = peer || h.Name == peerMemoryHook && ok
		release = release || h.Name == dmabufFunctions && ok
	}
	if unseen || symbols[peerMemoryFunction] && (!peer || !release) {
		return gen.ObjectsMemoryMEMORY_UNKNOWN
	}
	return gen.ObjectsMemoryMEMORY_HOST
}

// peersHook records the connections of queue pairs. A connection modifies a queue pair three times, so its tiers are in
// the order of the object hooks.
var peersHook = hook.Hook{Name: "ib_modify_qp_with_udata", Optional: true, Reads: hook.CoreStructures, Tiers: []hook.Tier{
	hook.With(hook.Kprobe, gen.PeersProgKprobeDestroyQp, gen.PeersProgKretprobeModifyQp, gen.PeersProgKprobeModifyQp),
	hook.With(hook.Fentry, gen.PeersProgFentryDestroyQp, gen.PeersProgFexitModifyQp),
}}

// numberHook gives objects the ids that the programs missed. An object without its id keeps other objects from being
// adopted.
var numberHook = hook.Hook{Name: "restrack_ids", Optional: true, Reads: hook.CoreStructures, Tiers: []hook.Tier{
	hook.Loading(hook.Run, gen.ObjectsProgNumberObject),
}}

// existingHook lists the objects of the uobject layer that are older than the hooks. It needs bpf_loop (Linux 5.17).
var existingHook = hook.Hook{Name: "uobjects_existing", Optional: true, Reads: hook.UverbsStructures, Tiers: []hook.Tier{
	hook.Loading(hook.Iterator, gen.ObjectsProgAdoptUobjects),
}}

// cgroupHook records the paths of cgroups that end before they are listed.
var cgroupHook = hook.Hook{Name: "cgroup_mkdir", Optional: true, Tiers: []hook.Tier{
	hook.With(hook.RawTracepoint, gen.CgroupsProgCgroupMade),
}}

// restrackHook is needed to count objects. Kernels that have the functions of stepsHook also need stepsHook.
const (
	restrackHook = "rdma_restrack_add"
	stepsHook    = "rdma_restrack_begin_del"
	uobjectHook  = "rdma_alloc_commit_uobject"
)

func unattached(reason string, state model.State) []model.Hook {
	return hook.States(slices.Concat(verbHooks, objectHooks, []hook.Hook{numberHook, existingHook, peersHook, cgroupHook}), reason, state)
}

func tiersOf(hooks []model.Hook) string {
	var out []string
	for _, h := range hooks {
		if h.State == model.StateOK {
			out = append(out, h.Name+"="+h.Tier)
		}
	}
	return strings.Join(out, " ")
}
