/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Counts the completions that processes poll through the extended interface. ibv_start_poll and ibv_next_poll
 * select the next completion and write its status and wr_id into the struct ibv_cq_ex. The process reads everything
 * else with ibv_wc_read_*, which are functions of the provider, and their results are counted.
 *
 * ibv_end_poll is not probed. A completion is counted as soon as enough of it was read. If too little was read when
 * the thread polls again, the completion is counted as unread.
 *
 * If another process uses one of these functions as another operation, several programs run at its entry and
 * return. Only the program with the offset of the operation counts; the others add their cost.
 */
#ifndef ACCELSCOPE_POLL_EX_H
#define ACCELSCOPE_POLL_EX_H

#include "poll.h"

/* A thread polls again: the last completion is not read any further. */
static __noinline int finish(struct found *f)
{
	struct context_stat *stat;

	if (!f || !f->cq)
		return 0;
	f->cq = 0;
	stat = bpf_map_lookup_elem(&contexts, &f->key);
	/* In a gap, the completion may have been read unseen. */
	if (!stat || f->status || f->generation != stat->generation)
		return 0;
	if (!(f->parts & BYTES_COUNTED))
		__sync_fetch_and_add(&stat->unread, 1);
	/* It may belong to a work request in any ring, which stays there. */
	if (!(f->parts & READ_OPCODE) || (!(f->opcode & IBV_WC_RECV) && !f->matched))
		__sync_fetch_and_add(&stat->unmatched, 1);
	return 0;
}

static __always_inline int enter(struct pt_regs *ctx, struct thread *t, struct found_call *c)
{
	c->sp = PT_REGS_SP(ctx);
	c->cq = PT_REGS_PARM1(ctx);
	c->ip = PT_REGS_IP(ctx);
	t->idle_ns += trap_ns(ctx);
	return 0;
}

/* For start_poll and next_poll. As with poll_cq, most calls find no completion. */
SEC("uprobe/poll_cq_ex")
int poll_cq_ex(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct thread *t = polling_thread(ctx);

	return t ? enter(ctx, t, &t->poll_ex) : 0;
}

SEC("uretprobe/poll_cq_ex")
int poll_cq_ex_return(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct thread *t = this_thread(0);
	struct user_cq_ex_completion wc;
	int empty = PT_REGS_RC(ctx);
	struct context_stat *stat;
	__u64 now;

	if (!t) {
		spend_unknown(current_tgid(), CALLS_POLL, trap_ns(ctx));
		return 0;
	}
	if (t->poll_ex.sp != SP_AT_RETURN(ctx) || !add_call(t, t->poll_ex.cq, trap_ns(ctx)))
		return 0;
	if (empty && !t->found.cq) {
		if (t->idle_hits >= IDLE_HITS)
			flush_idle(t);
		return 0;
	}
	now = bpf_ktime_get_ns();
	stat = polled_context(ctx, t, t->poll_ex.ip, t->poll_ex.cq);
	if (!stat)
		return 0;
	t->poll_ex.sp = 0;
	finish(&t->found);
	if (empty || !stat->chosen)
		goto spent;
	if (bpf_probe_read_user(&wc, sizeof(wc), (void *)(t->poll_ex.cq + CQ_EX_COMPLETION))) {
		lose_of(stat, PATH_LOSS_UNREADABLE);
		goto spent;
	}
	if (wc.status)
		count_error(stat, wc.status);
	t->found.cq = t->poll_ex.cq;
	t->found.key = t->idle;
	t->found.wr_id = wc.wr_id;
	t->found.ns = now;
	t->found.status = wc.status;
	t->found.generation = stat->generation;
	t->found.parts = 0;
	t->found.matched = 0;
spent:
	spend(stat, CALLS_POLL, t->idle_hits, t->idle_ns + bpf_ktime_get_ns() - now);
	t->idle_hits = 0;
	t->idle_ns = 0;
	return 0;
}

/* Counts what is known of a completion so far, each thing once. */
static __noinline int count_found(struct found *f)
{
	struct context_stat *stat;

	if (!f)
		return 0;
	stat = bpf_map_lookup_elem(&contexts, &f->key);
	if (!stat)
		return 0;
	if (f->status) {
		if (f->parts & READ_QP_NUM)
			stop_measuring(&f->key, f->qpn);
		return 0;
	}
	if (!(f->parts & READ_OPCODE))
		return 0;
	if (is_receive(f->opcode) && f->parts & READ_QP_NUM && !f->matched) {
		f->matched = 1;
		receive(&f->key, stat, f->qpn, f->ns);
	}
	if (!is_receive(f->opcode)) {
		f->parts |= BYTES_COUNTED;
		if (f->parts & READ_QP_NUM && !(f->opcode & IBV_WC_RECV) && !f->matched) {
			f->matched = 1;
			measure(&f->key, stat, f->qpn, f->wr_id, f->ns);
		}
		return 0;
	}
	/* The type of the queue pair decides whether a receive is a datagram. */
	if (f->parts & BYTES_COUNTED || !(f->parts & READ_BYTE_LEN) || (stat->ud && !(f->parts & READ_QP_NUM)))
		return 0;
	f->parts |= BYTES_COUNTED;
	__sync_fetch_and_add(&stat->received, 1);
	__sync_fetch_and_add(&stat->received_bytes, data_bytes(&f->key, stat, f->qpn, f->byte_len));
	return 0;
}

SEC("uprobe/read_completion")
int read_completion(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct thread *t = this_thread(0);

	if (t)
		return enter(ctx, t, &t->read);
	spend_unknown(current_tgid(), CALLS_POLL, trap_ns(ctx));
	return 0;
}

/* The cookie contains the offset of the function in struct ibv_cq_ex. */
SEC("uretprobe/read_completion")
int read_completion_return(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	__u64 cookie = bpf_get_attach_cookie(ctx), now;
	struct thread *t = this_thread(0);
	__u32 value = PT_REGS_RC(ctx);

	if (!t) {
		spend_unknown(current_tgid(), CALLS_POLL, trap_ns(ctx));
		return 0;
	}
	t->idle_hits++;
	t->idle_ns += trap_ns(ctx);
	if (t->found.cq && t->read.cq == t->found.cq && t->read.sp == SP_AT_RETURN(ctx) &&
	    is_named(cookie, t->read.ip, t->read.cq)) {
		t->read.sp = 0;
		now = bpf_ktime_get_ns();
		switch (COOKIE_NAMED(cookie)) {
		case CQ_EX_READ_OPCODE:
			t->found.opcode = value;
			t->found.parts |= READ_OPCODE;
			break;
		case CQ_EX_READ_BYTE_LEN:
			t->found.byte_len = value;
			t->found.parts |= READ_BYTE_LEN;
			break;
		case CQ_EX_READ_QP_NUM:
			t->found.qpn = value;
			t->found.parts |= READ_QP_NUM;
			break;
		}
		count_found(&t->found);
		t->idle_ns += bpf_ktime_get_ns() - now;
	}
	if (t->idle_hits >= IDLE_HITS)
		flush_idle(t);
	return 0;
}

#endif
