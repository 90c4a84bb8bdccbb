// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Records the remote end of each connected queue pair of a process, from the modification that connects it until it
 * is reset or destroyed. Only processes call ib_modify_qp_with_udata(): the kernel's own queue pairs do not pass
 * it.
 */
#include <linux/errno.h>
#include "maps.h"
#include "owner.h"

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct peer_key);
	__type(value, struct peer);
} peers SEC(".maps");

/* A modification in progress, by thread: kretprobes do not see arguments. */
struct modification {
	__u64 qp;
	__u64 attr;
	__u32 mask;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct modification);
} modifications SEC(".maps");

__u64 peer_losses[LOSSES];

/* Entries that programs made minus entries that programs deleted. User space makes some too. */
__u64 live_peers;

/* Makes bpf2go generate this type. */
const enum peer_map *unused_peer_map __attribute__((unused));

static __always_inline void lose(__u32 why)
{
	__sync_fetch_and_add(&peer_losses[why], 1);
}

static __always_inline int forget(const struct peer_key *key)
{
	struct peer *p = bpf_map_lookup_elem(&peers, key);
	__u64 owner;

	if (!p)
		return 0;
	owner = p->owner;
	if (bpf_map_delete_elem(&peers, key))
		return 0;
	__sync_fetch_and_add(&live_peers, -1);
	count_entries(owner, PEERS_OF_OWNER, -1);
	return 0;
}

static __always_inline struct peer_key key_of(struct ib_qp *qp)
{
	struct peer_key key = {.device = BPF_CORE_READ(qp, device, index), .qpn = BPF_CORE_READ(qp, qp_num)};

	return key;
}

static __always_inline void address(struct peer *p, struct rdma_ah_attr *ah)
{
	p->routed = BPF_CORE_READ(ah, ah_flags) & IB_AH_GRH;
	if (!p->routed || bpf_core_read(p->gid, sizeof(p->gid), &ah->grh.dgid.raw))
		__builtin_memset(p->gid, 0, sizeof(p->gid));
	switch (BPF_CORE_READ(ah, type)) {
	case RDMA_AH_ATTR_TYPE_IB:
		p->lid = BPF_CORE_READ(ah, ib.dlid);
		break;
	case RDMA_AH_ATTR_TYPE_OPA:
		p->lid = BPF_CORE_READ(ah, opa.dlid);
		break;
	default:
		p->lid = 0;
	}
}

static __noinline int modified(struct ib_qp *handle, struct ib_qp_attr *attr, __u32 mask)
{
	/* XRC targets are shared: each opener has its own handle. */
	struct ib_qp *qp = BPF_CORE_READ(handle, real_qp);
	__u32 state = BPF_CORE_READ(attr, qp_state);
	struct peer_key key = key_of(qp);
	struct peer *old, p = {};
	struct owner owner;
	long err;

	if (mask & IB_QP_STATE && state <= IB_QPS_INIT)
		return forget(&key);
	old = bpf_map_lookup_elem(&peers, &key);
	if (old)
		p = *old;
	else if (!(mask & IB_QP_DEST_QPN))
		return 0;
	if (mask & IB_QP_STATE)
		p.state = state;
	if (mask & IB_QP_DEST_QPN) {
		current_owner(&owner);
		p.cgroup = owner.cgroup;
		/* An entry stays in the share in which it was made. */
		if (!old)
			p.owner = owner.share;
		p.qpn = BPF_CORE_READ(attr, dest_qp_num);
		p.type = BPF_CORE_READ(qp, qp_type);
		p.port = BPF_CORE_READ_BITFIELD_PROBED(qp, port);
	}
	if (mask & IB_QP_AV)
		address(&p, &attr->ah_attr);
	err = -E2BIG;
	if (old || !has_share(p.owner, PEERS_OF_OWNER))
		err = bpf_map_update_elem(&peers, &key, &p, old ? BPF_EXIST : BPF_NOEXIST);
	if (err == -E2BIG)
		lose(lost_by_share(p.owner, PEERS_OF_OWNER) ? LOSS_PEERS_SHARE : LOSS_PEERS_FULL);
	if (old || err)
		return 0;
	__sync_fetch_and_add(&live_peers, 1);
	count_entries(p.owner, PEERS_OF_OWNER, 1);
	return 0;
}

/*
 * Removed at the entry: another queue pair may get the number before the return. After a failed destruction the
 * queue pair is missing until it is connected again.
 */
static __noinline int destroyed(struct ib_qp *qp)
{
	struct peer_key key = key_of(qp);

	return BPF_CORE_READ(qp, real_qp) == qp ? forget(&key) : 0;
}

SEC("fentry/ib_destroy_qp_user")
int BPF_PROG(fentry_destroy_qp, struct ib_qp *qp)
{
	return destroyed(qp);
}

SEC("fexit/ib_modify_qp_with_udata")
int BPF_PROG(fexit_modify_qp, struct ib_qp *qp, struct ib_qp_attr *attr, int mask, void *udata, int ret)
{
	return ret ? 0 : modified(qp, attr, mask);
}

SEC("kprobe/ib_destroy_qp_user")
int BPF_KPROBE(kprobe_destroy_qp, struct ib_qp *qp)
{
	return destroyed(qp);
}

SEC("kprobe/ib_modify_qp_with_udata")
int BPF_KPROBE(kprobe_modify_qp, struct ib_qp *qp, struct ib_qp_attr *attr, int mask)
{
	struct modification m = {.qp = (__u64)qp, .attr = (__u64)attr, .mask = mask};
	__u32 tid = bpf_get_current_pid_tgid();

	/* The return of this thread's former call was missed. */
	if (bpf_map_lookup_elem(&modifications, &tid))
		lose(LOSS_RETURN_MISSED);
	bpf_map_update_elem(&modifications, &tid, &m, BPF_ANY);
	return 0;
}

SEC("kretprobe/ib_modify_qp_with_udata")
int BPF_KRETPROBE(kretprobe_modify_qp, int ret)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct modification *found = bpf_map_lookup_elem(&modifications, &tid);
	struct modification m;

	if (!found)
		return 0;
	m = *found;
	bpf_map_delete_elem(&modifications, &tid);
	return ret ? 0 : modified((struct ib_qp *)m.qp, (struct ib_qp_attr *)m.attr, m.mask);
}
