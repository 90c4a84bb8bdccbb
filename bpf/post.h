/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Counts the work requests that processes post with ibv_post_send and ibv_post_recv. */
#ifndef ACCELSCOPE_POST_H
#define ACCELSCOPE_POST_H

#include "receives.h"

static __always_inline void commit(struct context_stat *stat, struct tally *t)
{
	for (int i = 0; i < OPCODES; i++) {
		if (!t->posted[i])
			continue;
		__sync_fetch_and_add(&stat->posted[i], t->posted[i]);
		if (t->bytes[i])
			__sync_fetch_and_add(&stat->bytes[i], t->bytes[i]);
	}
}

/* The class of an opcode in the histograms of durations, or COMPLETED without a class. */
static __always_inline __u32 class_of(__u32 opcode)
{
	switch (opcode) {
	case OPCODE_RDMA_WRITE:
	case OPCODE_RDMA_WRITE_WITH_IMM:
		return COMPLETED_WRITE;
	case OPCODE_RDMA_READ:
		return COMPLETED_READ;
	case OPCODE_SEND:
	case OPCODE_SEND_WITH_IMM:
	case OPCODE_SEND_WITH_INV:
		return COMPLETED_SEND;
	case OPCODE_ATOMIC_CMP_AND_SWP:
	case OPCODE_ATOMIC_FETCH_AND_ADD:
		return COMPLETED_ATOMIC;
	}
	return COMPLETED;
}

struct walk {
	__u64 at;   /* address of the next element */
	__u64 stop; /* address to stop at, or 0 */
	struct tally *tally;
	struct queue *queue;
	__u64 now;
	__u64 bytes;
	__u32 *left; /* elements that may still be read; a pointer, because the verifier would track a number */
	__u32 signaled;
	__u32 count;
	__u8 lost; /* 1 + the path_loss that ended the walk early */
	__u8 all;
	__u8 wide; /* elements are struct ibv_data_buf */
	__u8 done;
};

static long sum_sge(__u32 i, struct walk *w)
{
	struct user_sge sge;

	if (bpf_probe_read_user(&sge, sizeof(sge), (void *)(w->at + i * sizeof(sge)))) {
		w->lost = 1 + PATH_LOSS_UNREADABLE;
		return 1;
	}
	w->bytes += w->wide ? (__u32)sge.wide : sge.length;
	return 0;
}

static __always_inline __u64 list_bytes(__u64 list, __u32 n, bool wide, __u32 *left, __u8 *lost)
{
	struct walk w = {.at = list, .wide = wide};

	if (n > *left) {
		*lost = 1 + PATH_LOSS_CHAIN_CUT;
		n = *left;
	}
	*left -= n;
	if (n == 1)
		sum_sge(0, &w);
	else if (n)
		bpf_loop(n, sum_sge, &w, 0);
	if (w.lost)
		*lost = w.lost;
	return w.bytes;
}

static long walk_send(__u32 i, struct walk *w)
{
	struct tally *tally = w->tally;
	struct user_wr wr;
	__u16 header = 0;
	__u64 bytes = 0;
	__u32 op;

	if (!w->at || w->at == w->stop) {
		w->done = 1;
		return 1;
	}
	if (!*w->left) {
		w->lost = 1 + PATH_LOSS_CHAIN_CUT;
		return 1;
	}
	*w->left -= 1;
	if (bpf_probe_read_user(&wr, sizeof(wr), (void *)w->at)) {
		w->lost = 1 + PATH_LOSS_UNREADABLE;
		return 1;
	}
	op = wr.opcode < OPCODE_OTHER ? wr.opcode : OPCODE_OTHER;
	/* Work requests with these opcodes have other members in place of the list. */
	if (op != OPCODE_LOCAL_INV && op != OPCODE_BIND_MW && wr.num_sge > 0)
		bytes = list_bytes(wr.sg_list, wr.num_sge, false, w->left, &w->lost);
	if (op == OPCODE_TSO && !bpf_probe_read_user(&header, sizeof(header), (void *)(w->at + WR_TSO_HDR_SZ)))
		bytes += header;
	if (tally) {
		tally->posted[op]++;
		tally->bytes[op] += bytes;
	}
	/* The completion of IBV_WR_DRIVER1 is not looked up in the ring. */
	if ((w->all || wr.send_flags & IBV_SEND_SIGNALED) && wr.opcode != IBV_WR_DRIVER1) {
		w->signaled++;
		if (w->queue)
			push(w->queue, wr.wr_id, class_of(op), w->now);
	}
	w->at = wr.next;
	return w->lost != 0;
}

static long walk_receive(__u32 i, struct walk *w)
{
	if (!w->at || w->at == w->stop) {
		w->done = 1;
		return 1;
	}
	/* struct ibv_recv_wr */
	if (bpf_probe_read_user(&w->bytes, sizeof(w->bytes), (void *)(w->at + RECV_WR_NEXT))) {
		w->lost = 1 + PATH_LOSS_UNREADABLE;
		return 1;
	}
	w->at = w->bytes;
	w->count++;
	return 0;
}

/*
 * Keeps what the return probe of post_send or post_recv needs. NULL: the call cannot be counted, but its probes are
 * paid.
 */
static __always_inline struct thread *enter_post(struct pt_regs *ctx, int sends, struct user_qp *qp,
						 struct context_stat **stat)
{
	struct context_key key;
	struct thread *t;
	struct call *c;

	*stat = context_of(PT_REGS_PARM1(ctx), qp, &key);
	if (!*stat || !is_named(bpf_get_attach_cookie(ctx), PT_REGS_IP(ctx), key.context)) {
		spend_unknown(current_tgid(), CALLS_POST, 2 * trap_ns(ctx)); /* including the return probe */
		return 0;
	}
	t = this_thread(BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!t) {
		lose_of(*stat, PATH_LOSS_CALLS_FULL);
		spend(*stat, CALLS_POST, 1, trap_ns(ctx));
		return 0;
	}
	c = sends ? &t->send : &t->receive;
	c->sp = PT_REGS_SP(ctx);
	c->list = PT_REGS_PARM2(ctx);
	c->bad = PT_REGS_PARM3(ctx);
	c->key = key;
	c->qpn = qp->qp_num;
	c->chosen = (*stat)->chosen;
	c->unread = 0;
	return t;
}

/*
 * Walks the chain of work requests at the entry: it is complete then, and another thread may poll a completion
 * before the call returns.
 */
SEC("uprobe/post_send")
int post_send(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	__u64 now = bpf_ktime_get_ns();
	struct walk w = {.now = now};
	struct context_stat *stat;
	struct user_qp qp;
	struct queue *q;
	struct thread *t = enter_post(ctx, 1, &qp, &stat);
	struct call *c;

	if (!t)
		return 0;
	c = &t->send;
	if (c->chosen) {
		__builtin_memset(&t->tally, 0, sizeof(t->tally));
		q = make_queue(&c->key, qp.qp_num, qp.qp_type, stat);
		w.at = c->list;
		w.tally = &t->tally;
		w.queue = q;
		w.left = &t->left;
		t->left = CALL_BOUND;
		if (q) {
			check_generation(q, stat);
			w.all = q->all;
			t->from = q->tail;
		}
		bpf_loop(CALL_BOUND + 1, walk_send, &w, 0);
		t->to = t->from + w.signaled;
		if (w.lost) {
			/* The page is in memory after the provider has read it. */
			if (w.lost == 1 + PATH_LOSS_UNREADABLE)
				c->unread = 1;
			else
				lose_of(stat, PATH_LOSS_CHAIN_CUT);
			if (q)
				out_of_step(q);
		}
	}
	c->entry_ns = trap_ns(ctx) + bpf_ktime_get_ns() - now;
	return 0;
}

/* Walks the chain again at the return, if it was unreadable at the entry or the provider refused a work request. */
static __noinline int walk_again(struct thread *t, int ret)
{
	struct queue *q;
	struct walk w = {};

	if (!t)
		return 0;
	w.left = &t->left;
	t->left = CALL_BOUND;
	q = queue_of(&t->send.key, t->send.qpn);
	w.at = t->send.list;
	w.tally = &t->tally;
	w.all = q && q->all;
	__builtin_memset(&t->tally, 0, sizeof(t->tally));
	if (ret && (bpf_probe_read_user(&w.stop, sizeof(w.stop), (void *)t->send.bad) || !w.stop)) {
		lose_call(&t->send.key, PATH_LOSS_UNREADABLE);
		w.at = 0;
	}
	bpf_loop(CALL_BOUND + 1, walk_send, &w, 0);
	if (w.lost)
		lose_call(&t->send.key, w.lost == 1 + PATH_LOSS_CHAIN_CUT ? PATH_LOSS_CHAIN_CUT : PATH_LOSS_UNREADABLE);
	if (ret && (!w.stop || w.at != w.stop)) {
		/* bad_wr is not in the chain: it is unknown which work requests were accepted. */
		__builtin_memset(&t->tally, 0, sizeof(t->tally));
		if (q)
			out_of_step(q);
	} else if (q && ret) {
		unpush(q, t->from, t->to, w.signaled);
	}
	return 0;
}

SEC("uretprobe/post_send")
int post_send_return(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct thread *t = this_thread(0);
	struct context_stat *stat;
	int ret = PT_REGS_RC(ctx);
	__u64 now;

	if (!t || t->send.sp != SP_AT_RETURN(ctx))
		return 0;
	now = bpf_ktime_get_ns();
	t->send.sp = 0;
	stat = bpf_map_lookup_elem(&contexts, &t->send.key);
	if (!stat)
		return 0;
	if (t->send.chosen) {
		if (ret || t->send.unread)
			walk_again(t, ret);
		commit(stat, &t->tally);
	}
	spend(stat, CALLS_POST, 1, t->send.entry_ns + trap_ns(ctx) + bpf_ktime_get_ns() - now);
	return 0;
}

SEC("uprobe/post_recv")
int post_recv(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	__u64 now = bpf_ktime_get_ns();
	struct context_stat *stat;
	struct walk w = {};
	struct user_qp qp;
	struct thread *t = enter_post(ctx, 0, &qp, &stat);
	struct queue *q;

	if (!t)
		return 0;
	t->receive.receives = 0;
	if (t->receive.chosen) {
		/* poll_cq subtracts the GRH of datagrams. Completions do not contain the type of the queue pair. */
		q = qp.qp_type == IBV_QPT_UD ? make_queue(&t->receive.key, qp.qp_num, qp.qp_type, stat)
					     : queue_of(&t->receive.key, qp.qp_num);
		w.at = t->receive.list;
		bpf_loop(CALL_BOUND + 1, walk_receive, &w, 0);
		t->receive.unread = w.lost || !w.done;
		t->receive.receives = w.count;
		if (q) {
			check_generation(q, stat);
			add_receives(q, w.count, now);
		}
	}
	t->receive.entry_ns = trap_ns(ctx) + bpf_ktime_get_ns() - now;
	return 0;
}

/* An SRQ begins with the address of its context, like a queue pair. */
SEC("uprobe/post_srq_recv")
int post_srq_recv(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	__u64 now = bpf_ktime_get_ns();
	struct context_stat *stat;
	struct user_qp srq;
	struct thread *t = enter_post(ctx, 0, &srq, &stat);

	if (!t)
		return 0;
	t->receive.qpn = 0;
	t->receive.receives = 0;
	t->receive.unread = 1;
	t->receive.entry_ns = trap_ns(ctx) + bpf_ktime_get_ns() - now;
	return 0;
}

/* Walks the chain at the return. Returns the number of receives that the provider accepted, 0 if that is unknown. */
static __noinline int accepted_receives(struct call *c, int ret)
{
	struct walk w = {};
	struct queue *q;

	if (!c)
		return 0;
	w.at = c->list;
	if (ret && (bpf_probe_read_user(&w.stop, sizeof(w.stop), (void *)c->bad) || !w.stop)) {
		w.lost = 1 + PATH_LOSS_UNREADABLE;
		w.at = 0;
	}
	bpf_loop(CALL_BOUND + 1, walk_receive, &w, 0);
	if (w.lost)
		lose_call(&c->key, PATH_LOSS_UNREADABLE);
	else if (!w.done)
		lose_call(&c->key, PATH_LOSS_CHAIN_CUT);
	/* As for sends, bad_wr must be in the chain. */
	if (ret && w.at != w.stop) {
		w.count = 0;
		w.lost = 1;
	}
	q = queue_of(&c->key, c->qpn);
	if (q && (w.lost || !w.done))
		forget_receives(q);
	else if (q)
		correct_receives(q, c->receives, w.count);
	return w.count;
}

/* Also the return of post_srq_recv. */
SEC("uretprobe/post_recv")
int post_recv_return(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct thread *t = this_thread(0);
	struct context_stat *stat;
	int ret = PT_REGS_RC(ctx);
	__u32 n;
	__u64 now;

	if (!t || t->receive.sp != SP_AT_RETURN(ctx))
		return 0;
	now = bpf_ktime_get_ns();
	t->receive.sp = 0;
	stat = bpf_map_lookup_elem(&contexts, &t->receive.key);
	if (!stat)
		return 0;
	if (t->receive.chosen) {
		n = ret || t->receive.unread ? accepted_receives(&t->receive, ret) : t->receive.receives;
		__sync_fetch_and_add(&stat->posted[OPCODE_RECV], n);
	}
	spend(stat, CALLS_POST, 1, t->receive.entry_ns + trap_ns(ctx) + bpf_ktime_get_ns() - now);
	return 0;
}

#endif
