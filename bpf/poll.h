/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Counts the completions that processes poll. */
#ifndef ACCELSCOPE_POLL_H
#define ACCELSCOPE_POLL_H

#include "receives.h"

/* The number of polls without completions that are added to the counters together. */
#define IDLE_HITS 32

static __always_inline struct thread *polling_thread(struct pt_regs *ctx)
{
	struct context_key key = {.tgid = current_tgid()};
	struct thread *t = this_thread(0);
	struct context_stat *stat;

	if (t)
		return t;
	/* Only threads that poll on a known context get task storage. */
	if (bpf_probe_read_user(&key.context, sizeof(key.context), (void *)PT_REGS_PARM1(ctx)) ||
	    !(stat = bpf_map_lookup_elem(&contexts, &key))) {
		spend_unknown(current_tgid(), CALLS_POLL, trap_ns(ctx));
		return 0;
	}
	t = this_thread(BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!t) {
		lose_of(stat, PATH_LOSS_CALLS_FULL);
		miss_completions(stat);
	}
	return t;
}

/*
 * Most polls find no completion. For these polls the programs read neither the clock nor a hash map; the cost of a
 * trap includes both programs.
 */
SEC("uprobe/poll_cq")
int poll_cq(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct thread *t = polling_thread(ctx);

	if (!t)
		return 0;
	t->poll_sp = PT_REGS_SP(ctx);
	t->poll_cq = PT_REGS_PARM1(ctx);
	t->poll_list = PT_REGS_PARM3(ctx);
	t->poll_ip = PT_REGS_IP(ctx);
	t->poll_entry_ns = trap_ns(ctx);
	return 0;
}

/* Whether a successful completion is a receive. Some completions with the bit IBV_WC_RECV are not receives. */
static __always_inline bool is_receive(__u32 opcode)
{
	return opcode == IBV_WC_RECV || opcode == IBV_WC_RECV_RDMA_WITH_IMM || opcode == IBV_WC_TM_RECV ||
	       opcode == IBV_WC_TM_NO_TAG;
}

/* The length of a received datagram includes the space for a GRH, even if the GRH is missing. */
static __always_inline __u32 data_bytes(const struct context_key *key, const struct context_stat *stat, __u32 qpn,
					__u32 byte_len)
{
	struct queue *q;

	if (!stat->ud || byte_len < GRH_BYTES)
		return byte_len;
	q = queue_of(key, qpn);
	return q && q->ud ? byte_len - GRH_BYTES : byte_len;
}

/* Measures the duration of the work request of a completion. */
static __always_inline void measure(const struct context_key *key, struct context_stat *stat, __u32 qpn, __u64 wr_id,
				    __u64 now)
{
	struct queue *q = queue_of(key, qpn);
	struct posted posted;

	if (!q)
		return;
	check_generation(q, stat);
	if (!match(q, wr_id, now, &posted))
		return;
	complete_send(q, posted.ns, now);
	if (posted.completed < COMPLETED && now > posted.ns)
		record_duration(key, stat->number, posted.completed, now - posted.ns);
}

static __always_inline void count_error(struct context_stat *stat, __u32 status)
{
	__sync_fetch_and_add(&stat->errors[status < STATUSES ? status : STATUSES - 1], 1);
}

static __always_inline void stop_measuring(const struct context_key *key, __u32 qpn)
{
	struct queue *q = queue_of(key, qpn);

	if (q)
		fail(q);
}

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
	struct user_wc wc;

	if (bpf_probe_read_user(&wc, sizeof(wc), (void *)(p->list + (__u64)i * WC_SIZE))) {
		p->lost = 1;
		return 1;
	}
	if (wc.status) {
		count_error(stat, wc.status);
		stop_measuring(&p->key, wc.qp_num);
		return 0;
	}
	if (is_receive(wc.opcode)) {
		p->received++;
		p->some = 1;
		p->received_bytes += data_bytes(&p->key, stat, wc.qp_num, wc.byte_len);
		receive(&p->key, stat, wc.qp_num, p->now);
	} else if (!(wc.opcode & IBV_WC_RECV)) {
		measure(&p->key, stat, wc.qp_num, wc.wr_id, p->now);
	}
	return 0;
}

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

static __always_inline bool add_call(struct thread *t, __u64 cq, __u64 ns)
{
	__u64 context;

	if (bpf_probe_read_user(&context, sizeof(context), (void *)cq))
		return false;
	if (context != t->idle.context) {
		flush_idle(t);
		t->idle.context = context;
		t->idle.tgid = current_tgid();
	}
	t->idle_hits++;
	t->idle_ns += ns;
	return true;
}

/* The context of a poll, if it is known and the probed function is its operation in a table of the process. */
static __always_inline struct context_stat *polled_context(struct pt_regs *ctx, struct thread *t, __u64 ip, __u64 table)
{
	struct context_stat *stat = bpf_map_lookup_elem(&contexts, &t->idle);

	if (stat && is_named(bpf_get_attach_cookie(ctx), ip, table))
		return stat;
	spend_unknown(current_tgid(), CALLS_POLL, t->idle_ns);
	t->idle_hits = 0;
	t->idle_ns = 0;
	return 0;
}

SEC("uretprobe/poll_cq")
int poll_cq_return(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct thread *t = this_thread(0);
	int n = PT_REGS_RC(ctx);
	struct polled p = {};

	if (!t) {
		spend_unknown(current_tgid(), CALLS_POLL, trap_ns(ctx));
		return 0;
	}
	if (t->poll_sp != SP_AT_RETURN(ctx))
		return 0;
	t->poll_sp = 0;
	if (!add_call(t, t->poll_cq, t->poll_entry_ns + trap_ns(ctx)))
		return 0;
	if (n <= 0) {
		if (t->idle_hits >= IDLE_HITS)
			flush_idle(t);
		return 0;
	}
	p.now = bpf_ktime_get_ns();
	p.key = t->idle;
	p.list = t->poll_list;
	p.stat = polled_context(ctx, t, t->poll_ip, p.key.context);
	if (!p.stat)
		return 0;
	if (p.stat->chosen) {
		if (n > CALL_BOUND) {
			lose_of(p.stat, PATH_LOSS_CHAIN_CUT);
			miss_completions(p.stat);
			n = CALL_BOUND;
		}
		if (n == 1)
			walk_completion(0, &p);
		else
			bpf_loop(n, walk_completion, &p, 0);
		if (p.lost) {
			lose_of(p.stat, PATH_LOSS_UNREADABLE);
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

#endif
