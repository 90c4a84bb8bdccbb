/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Counts the completions that processes poll, and calibrates the cost of probes. */
#ifndef ACCELSCOPE_POLL_H
#define ACCELSCOPE_POLL_H

#include "context.h"

/* The number of polls without completions that are added to the counters together. */
#define IDLE_HITS 32

/*
 * Most polls find no completion. For these, the programs read neither the clock nor a hash map, and the calibrated cost of
 * a trap includes the cost of both programs.
 */
SEC("uprobe/poll_cq")
int poll_cq(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct context_key key = {.tgid = current_tgid()};
	struct thread *t = this_thread(0);
	struct context_stat *stat;

	if (!t) {
		/* Only threads that poll on a known context get task storage. */
		if (bpf_probe_read_user(&key.context, sizeof(key.context), (void *)PT_REGS_PARM1(ctx)) ||
		    !(stat = bpf_map_lookup_elem(&contexts, &key))) {
			spend_unknown(current_tgid(), CALLS_POLL, trap_ns(ctx));
			return 0;
		}
		t = this_thread(BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (!t) {
			lose(PATH_LOSS_CALLS_FULL);
			miss_completions(stat);
			return 0;
		}
	}
	t->poll_sp = PT_REGS_SP(ctx);
	t->poll_cq = PT_REGS_PARM1(ctx);
	t->poll_list = PT_REGS_PARM3(ctx);
	t->poll_ip = PT_REGS_IP(ctx);
	t->poll_entry_ns = trap_ns(ctx);
	return 0;
}

/* A walk along the completions of one poll. */
struct polled {
	__u64 list;
	struct context_stat *stat;
	__u64 now;
	struct context_key key;
	__u64 received;
	__u64 received_bytes;
	__u8 lost;
	__u8 some; /* received is not 0. The verifier would follow each value of a sum that a branch depends on. */
};

static long walk_completion(__u32 i, struct polled *p)
{
	struct context_stat *stat = p->stat;
	struct posted posted;
	struct user_wc wc;
	struct queue *q;

	if (bpf_probe_read_user(&wc, sizeof(wc), (void *)(p->list + (__u64)i * WC_SIZE))) {
		p->lost = 1;
		return 1;
	}
	if (wc.status) {
		__u32 status = wc.status < STATUSES ? wc.status : STATUSES - 1;

		__sync_fetch_and_add(&stat->errors[status], 1);
		q = queue_of(&p->key, wc.qp_num);
		if (q)
			fail(q);
		return 0;
	}
	switch (wc.opcode) {
	case IBV_WC_RECV:
	case IBV_WC_RECV_RDMA_WITH_IMM:
	case IBV_WC_TM_RECV:
	case IBV_WC_TM_NO_TAG:
		p->received++;
		p->some = 1;
		/* The length of a datagram includes the space for a GRH, whether there is one or not. */
		if (stat->ud && wc.byte_len >= GRH_BYTES) {
			q = queue_of(&p->key, wc.qp_num);
			if (q && q->ud)
				wc.byte_len -= GRH_BYTES;
		}
		p->received_bytes += wc.byte_len;
		return 0;
	}
	if (wc.opcode & IBV_WC_RECV)
		return 0;
	q = queue_of(&p->key, wc.qp_num);
	if (!q)
		return 0;
	check_generation(q, stat);
	if (match(q, wc.wr_id, p->now, &posted) && posted.completed < COMPLETED && p->now > posted.ns)
		record_duration(&p->key, stat->number, posted.completed, p->now - posted.ns);
	return 0;
}

/* Adds polls without completions to the counters of their context. */
static __always_inline void flush_idle(struct thread *t)
{
	struct context_stat *stat;

	if (!t->idle_hits)
		return;
	stat = bpf_map_lookup_elem(&contexts, &t->idle);
	if (stat)
		spend(stat, CALLS_POLL, t->idle_hits, t->idle_ns);
	else
		spend_unknown(current_tgid(), CALLS_POLL, t->idle_ns);
	t->idle_hits = 0;
	t->idle_ns = 0;
}

SEC("uretprobe/poll_cq")
int poll_cq_return(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct thread *t = this_thread(0);
	int n = PT_REGS_RC(ctx);
	struct polled p = {};
	__u64 context;

	if (!t) {
		spend_unknown(current_tgid(), CALLS_POLL, trap_ns(ctx));
		return 0;
	}
	if (t->poll_sp != SP_AT_RETURN(ctx))
		return 0;
	t->poll_sp = 0;
	if (bpf_probe_read_user(&context, sizeof(context), (void *)t->poll_cq))
		return 0;
	if (context != t->idle.context) {
		flush_idle(t);
		t->idle.context = context;
		t->idle.tgid = current_tgid();
	}
	t->idle_hits++;
	t->idle_ns += t->poll_entry_ns + trap_ns(ctx);
	if (n <= 0) {
		if (t->idle_hits >= IDLE_HITS)
			flush_idle(t);
		return 0;
	}
	p.now = bpf_ktime_get_ns();
	p.key = t->idle;
	p.list = t->poll_list;
	p.stat = bpf_map_lookup_elem(&contexts, &p.key);
	if (!p.stat || !is_named(bpf_get_attach_cookie(ctx), t->poll_ip, context)) {
		spend_unknown(current_tgid(), CALLS_POLL, t->idle_ns);
		t->idle_hits = 0;
		t->idle_ns = 0;
		return 0;
	}
	if (p.stat->chosen) {
		if (n > CALL_BOUND) {
			lose(PATH_LOSS_CHAIN_CUT);
			miss_completions(p.stat);
			n = CALL_BOUND;
		}
		if (n == 1)
			walk_completion(0, &p);
		else
			bpf_loop(n, walk_completion, &p, 0);
		if (p.lost) {
			lose(PATH_LOSS_UNREADABLE);
			miss_completions(p.stat);
		}
		if (p.some) {
			__sync_fetch_and_add(&p.stat->received, p.received);
			__sync_fetch_and_add(&p.stat->received_bytes, p.received_bytes);
		}
	}
	spend(p.stat, CALLS_POLL, t->idle_hits, t->idle_ns + bpf_ktime_get_ns() - p.now);
	t->idle_hits = 0;
	t->idle_ns = 0;
	return 0;
}

/* Does the same work as the poll_cq programs do without a completion: the measured cost of a trap includes it. */
SEC("uprobe/calibrate")
int calibrate(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct thread *t = this_thread(BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!t)
		return 0;
	t->idle_sp = PT_REGS_SP(ctx);
	t->idle_list = PT_REGS_PARM3(ctx);
	t->poll_entry_ns = trap_ns(ctx);
	return 0;
}

SEC("uretprobe/calibrate")
int calibrate_return(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct thread *t = this_thread(0);
	__u64 value;

	if (!t)
		return 0;
	t->idle_sp = SP_AT_RETURN(ctx);
	bpf_probe_read_user(&value, sizeof(value), (void *)PT_REGS_SP(ctx));
	t->idle_list = value + trap_ns(ctx);
	return 0;
}

#endif
