/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Follows verbs contexts and queue pairs in the kernel: contexts opened, queue pairs created, modified and
 * destroyed.
 */
#ifndef ACCELSCOPE_LIFECYCLE_H
#define ACCELSCOPE_LIFECYCLE_H

#include <rdma/ib_user_ioctl_cmds.h>
#include "receives.h"
#include "uverbs.h"

static __always_inline bool send_event(const struct context_key *key, __u32 number, __u64 cgroup, __u32 device,
				       __u64 qp)
{
	struct path_event *e = bpf_ringbuf_reserve(&path_events, sizeof(*e), 0);

	if (!e) {
		lose(PATH_LOSS_EVENTS_FULL);
		return false;
	}
	e->key = *key;
	e->key.number = number;
	e->cgroup = cgroup;
	e->owner = 0;
	e->qp = qp;
	e->ucontext = 0;
	e->device = device;
	e->pad = 0;
	bpf_ringbuf_submit(e, 0);
	return true;
}

/* The largest distance between two functions of a provider. */
#define MAX_PROVIDER (1ULL << 26)

/*
 * Adds the functions of a completion queue to a hash. A completion queue that is not extended has other data there,
 * which differs between completion queues. Unlike this data, functions are near the provider's other operations.
 */
static __noinline __u64 add_cq(__u64 set, __u64 cq, __u64 poll_cq)
{
	__u64 functions[CQ_EX_FUNCTIONS_COUNT] = {};

	if (!cq || bpf_probe_read_user(functions, sizeof(functions), (void *)(cq + CQ_EX_FUNCTIONS)))
		return set;
	if (functions[0] - poll_cq + MAX_PROVIDER > 2 * MAX_PROVIDER)
		return set;
	for (int i = 0; i < CQ_EX_FUNCTIONS_COUNT; i++)
		set = set * 31 + functions[i];
	return set;
}

/* A hash of the ibv_wr_* functions of a queue pair and of the functions of its completion queues. */
static __noinline __u64 set_of(__u64 qp)
{
	__u64 functions[QP_EX_FUNCTIONS_COUNT] = {};
	__u64 set = 1, poll_cq;
	struct user_qp user;

	/* A queue pair that is not extended has other data there. User space finds out. */
	if (!bpf_probe_read_user(functions, sizeof(functions), (void *)(qp + QP_EX_FUNCTIONS)))
		for (int i = 0; i < QP_EX_FUNCTIONS_COUNT; i++)
			set = set * 31 + functions[i];
	if (bpf_probe_read_user(&user, sizeof(user), (void *)qp) ||
	    bpf_probe_read_user(&poll_cq, sizeof(poll_cq), (void *)(user.context + CONTEXT_POLL_CQ)))
		return set;
	set = add_cq(set, user.send_cq, poll_cq);
	return user.recv_cq == user.send_cq ? set : add_cq(set, user.recv_cq, poll_cq);
}

/*
 * Sends an event if the functions of a queue pair were not announced lately for its context. After a lost event, or
 * if user space did not find the functions (CONTROL_REPEAT), the next change of a queue pair sends the event again.
 */
static __always_inline void announce(struct context_stat *stat, const struct context_key *key, __u64 qp)
{
	__u64 set = set_of(qp);

	for (int i = 0; i < SETS; i++)
		if (stat->sets[i] == set)
			return;
	if (stat->announced >= MAX_ANNOUNCED + stat->repeated)
		return;
	if (!send_event(key, stat->number, stat->cgroup, stat->device, qp))
		return;
	stat->sets[stat->announced % SETS] = set;
	stat->announced++;
}

/*
 * Reports whether completions of work requests can be polled with poll_cq only. A completion queue that is not
 * extended ends before the functions, or has 0 there, or other data; for other data this returns false.
 */
static __noinline bool has_plain_cq(__u64 qp)
{
	struct user_qp user;
	__u64 start_poll;

	return !bpf_probe_read_user(&user, sizeof(user), (void *)qp) && user.send_cq &&
	       !bpf_probe_read_user(&start_poll, sizeof(start_poll), (void *)(user.send_cq + CQ_EX_FUNCTIONS)) &&
	       !start_poll;
}

/* A queue pair changes its state: its context becomes known, and its ring starts when the queue pair can send. */
static __noinline int modified(struct ib_qp *handle, struct ib_qp_attr *attr, __u32 mask)
{
	struct ib_uobject *uobject = (struct ib_uobject *)BPF_CORE_READ(handle, uobject);
	struct context_key key = {.tgid = current_tgid()};
	__u64 address = (__u64)handle, qp;
	struct context_stat *stat;
	__u32 state, device;
	struct owner owner;
	__u64 ucontext;
	struct queue *q;

	if (!uobject || !(mask & IB_QP_STATE))
		return 0;
	state = BPF_CORE_READ(attr, qp_state);
	qp = BPF_CORE_READ(uobject, user_handle);
	if (bpf_probe_read_user(&key.context, sizeof(key.context), (void *)qp)) {
		lose(PATH_LOSS_UNREADABLE);
		return 0;
	}
	/* It is 0 while the queue pair is being created. */
	if (!key.context)
		return 0;
	device = BPF_CORE_READ(handle, device, index);
	ucontext = (__u64)BPF_CORE_READ(uobject, context);
	stat = bpf_map_lookup_elem(&contexts, &key);
	if (stat && (stat->device != device || stat->ucontext != ucontext)) {
		close_context(&key);
		stat = 0;
	}
	if (!stat) {
		current_owner(&owner);
		stat = add_context(&key, current_cgroup(), owner.share, device, ucontext);
		if (!stat)
			return 0;
		stat->chosen = choose_all;
	}
	stat->qp = qp;
	announce(stat, &key, qp);
	if (state == IB_QPS_RTS && !stat->ready && !stat->late) {
		stat->late_ns = bpf_ktime_get_ns();
		stat->late = 1;
	}
	if (state == IB_QPS_ERR) {
		q = queue_of(&key, BPF_CORE_READ(handle, qp_num));
		if (q)
			fail(q);
	}
	if (state != IB_QPS_RESET && state != IB_QPS_INIT && state != IB_QPS_RTS)
		return 0;
	q = make_queue(&key, BPF_CORE_READ(handle, qp_num), BPF_CORE_READ(handle, qp_type), stat);
	if (!q)
		return 0;
	q->failed = 0;
	if (state == IB_QPS_RTS && !q->fresh)
		return 0;
	/* In these states no send is outstanding. Receives may be posted before the state INIT is set again. */
	if (state == IB_QPS_RESET || (state == IB_QPS_INIT && !q->fresh))
		begin_receives(q);
	else if (!is_current(q, stat))
		forget_receives(q);
	q->receives.shared = BPF_CORE_READ(handle, srq) != 0;
	out_of_step(q);
	q->generation = generation_of(stat);
	q->all = bpf_map_lookup_elem(&signal_all, &address) != 0;
	q->in_step = 1;
	q->fresh = state != IB_QPS_RTS;
	q->plain = has_plain_cq(qp);
	return 0;
}

SEC("kprobe/ib_modify_qp_with_udata")
int BPF_KPROBE(kprobe_modify, struct ib_qp *qp, struct ib_qp_attr *attr, int mask)
{
	return modified(qp, attr, mask);
}

SEC("fentry/ib_modify_qp_with_udata")
int BPF_PROG(fentry_modify, struct ib_qp *qp, struct ib_qp_attr *attr, int mask)
{
	return modified(qp, attr, mask);
}

/*
 * fexit in addition to fentry: while a thread is preempted in a program, the kernel skips this program for other
 * threads on the CPU.
 */
SEC("fexit/ib_modify_qp_with_udata")
int BPF_PROG(fexit_modify, struct ib_qp *qp, struct ib_qp_attr *attr, int mask)
{
	return modified(qp, attr, mask);
}

/* Runs before another queue pair can get the number. */
static __noinline int destroyed(struct ib_qp *handle)
{
	struct ib_uobject *uobject = (struct ib_uobject *)BPF_CORE_READ(handle, uobject);
	struct queue_key key = {.tgid = current_tgid(), .qpn = BPF_CORE_READ(handle, qp_num)};
	struct context_key of = {.tgid = key.tgid};
	__u64 address = (__u64)handle, qp;
	struct context_stat *stat;

	bpf_map_delete_elem(&signal_all, &address);
	if (!uobject)
		return 0;
	qp = BPF_CORE_READ(uobject, user_handle);
	if (bpf_probe_read_user(&key.context, sizeof(key.context), (void *)qp))
		return 0;
	drop_queue(&key);
	of.context = key.context;
	stat = bpf_map_lookup_elem(&contexts, &of);
	if (stat && stat->qp == qp)
		stat->qp = 0;
	return 0;
}

SEC("kprobe/ib_destroy_qp_user")
int BPF_KPROBE(kprobe_destroy, struct ib_qp *qp)
{
	return destroyed(qp);
}

SEC("fentry/ib_destroy_qp_user")
int BPF_PROG(fentry_destroy, struct ib_qp *qp)
{
	return destroyed(qp);
}

/* A thread creates a queue pair: tracked() is called next. */
static __noinline int creating(struct ib_qp_init_attr *attr)
{
	struct thread *t = this_thread(BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (t)
		t->creates_signal_all = BPF_CORE_READ(attr, sq_sig_type) == IB_SIGNAL_ALL_WR;
	return 0;
}

SEC("kprobe/ib_create_qp_user")
int BPF_KPROBE(kprobe_create, void *device, void *pd, struct ib_qp_init_attr *attr)
{
	return creating(attr);
}

SEC("fentry/ib_create_qp_user")
int BPF_PROG(fentry_create, void *device, void *pd, struct ib_qp_init_attr *attr)
{
	return creating(attr);
}

#define OWNER(res, type) ((struct type *)((void *)(res)-bpf_core_field_offset(struct type, res)))

static __noinline int tracked(struct rdma_restrack_entry *res)
{
	__u32 type = BPF_CORE_READ(res, type);
	struct context_key key = {.tgid = current_tgid()};
	struct ib_device *device;
	struct thread *t;
	__u64 address;
	__u8 yes = 1;

	if (type == RDMA_RESTRACK_CTX) {
		device = BPF_CORE_READ(OWNER(res, ib_ucontext), device);
		send_event(&key, 0, current_cgroup(), BPF_CORE_READ(device, index), 0);
		return 0;
	}
	if (type != RDMA_RESTRACK_QP || !BPF_CORE_READ(res, user))
		return 0;
	t = this_thread(0);
	if (!t || !t->creates_signal_all)
		return 0;
	t->creates_signal_all = 0;
	address = (__u64)OWNER(res, ib_qp);
	bpf_map_update_elem(&signal_all, &address, &yes, BPF_ANY);
	return 0;
}

SEC("kprobe/rdma_restrack_add")
int BPF_KPROBE(kprobe_track, struct rdma_restrack_entry *res)
{
	return tracked(res);
}

SEC("fentry/rdma_restrack_add")
int BPF_PROG(fentry_track, struct rdma_restrack_entry *res)
{
	return tracked(res);
}

/* A context is closed, possibly by another process that inherited the file. */
static __noinline int untracked(struct rdma_restrack_entry *res)
{
	struct context_key *found, key;
	struct context_stat *stat;
	__u64 ucontext;

	if (BPF_CORE_READ(res, type) != RDMA_RESTRACK_CTX)
		return 0;
	ucontext = (__u64)OWNER(res, ib_ucontext);
	found = bpf_map_lookup_elem(&open_contexts, &ucontext);
	if (!found)
		return 0;
	key = *found;
	stat = bpf_map_lookup_elem(&contexts, &key);
	return stat && stat->ucontext == ucontext ? close_context(&key) : 0;
}

SEC("kprobe/rdma_restrack_del")
int BPF_KPROBE(kprobe_untrack, struct rdma_restrack_entry *res)
{
	return untracked(res);
}

SEC("fentry/rdma_restrack_del")
int BPF_PROG(fentry_untrack, struct rdma_restrack_entry *res)
{
	return untracked(res);
}

/*
 * Lists the existing queue pairs as struct path_event. The address of the context is missing: it is in the memory
 * of a process that is not running.
 */

/* The number of objects that are read per file, and of queue pairs that are listed per file. */
#define OBJECTS_OF_FILE 65536
#define QPS_OF_FILE 256

struct listing {
	struct seq_file *seq;
	__u64 head;
	struct list_head *at;
	__u64 cgroup;
	__u64 owner;
	__u32 tgid;
	__u32 listed;
};

static long list_object(__u32 i, struct listing *l)
{
	struct list_head *at = l->at;
	struct ib_uobject *object;
	struct path_event e = {};
	struct ib_qp *qp;

	if (!at || (__u64)at == l->head || l->listed >= QPS_OF_FILE)
		return 1;
	object = (struct ib_uobject *)((void *)at - bpf_core_field_offset(struct ib_uobject, list));
	l->at = BPF_CORE_READ(at, next);
	if (BPF_CORE_READ(object, uapi_object, id) != UVERBS_OBJECT_QP)
		return 0;
	qp = BPF_CORE_READ(object, object);
	e.key.tgid = l->tgid;
	e.cgroup = l->cgroup;
	e.owner = l->owner;
	e.qp = BPF_CORE_READ(object, user_handle);
	e.ucontext = (__u64)BPF_CORE_READ(object, context);
	e.device = BPF_CORE_READ(qp, device, index);
	l->listed++;
	bpf_seq_write(l->seq, &e, sizeof(e));
	return 0;
}

SEC("iter/task_file")
int existing(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct ib_uverbs_file *uverbs_file;
	struct listing l = {};
	struct owner owner;

	if (!task || !file)
		return 0;
	if (!is_uverbs(BPF_CORE_READ(file, f_inode, i_rdev)))
		return 0;
	uverbs_file = BPF_CORE_READ(file, private_data);
	if (!uverbs_file)
		return 0;
	l.seq = ctx->meta->seq;
	l.head = (__u64)uverbs_file + bpf_core_field_offset(struct ib_uverbs_file, uobjects);
	l.at = BPF_CORE_READ(uverbs_file, uobjects.next);
	l.tgid = BPF_CORE_READ(task, tgid);
	l.cgroup = cgroup_of(task);
	owner_of(task, l.cgroup, &owner);
	l.owner = owner.share;
	bpf_loop(OBJECTS_OF_FILE, list_object, &l, 0);
	return 0;
}

#endif
