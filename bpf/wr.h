/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Counts the work requests that processes post with ibv_wr_*. A thread builds them for one queue pair between
 * ibv_wr_start and ibv_wr_complete or ibv_wr_abort.
 */
#ifndef ACCELSCOPE_WR_H
#define ACCELSCOPE_WR_H

#include "post.h"

/* The number of signaled work requests per batch that get a duration. */
#define SIGNALS 32

struct signal {
	__u64 wr_id;
	__u64 completed;
};

/* The work requests between ibv_wr_start and ibv_wr_complete. */
struct batch {
	struct call call; /* object: the struct ibv_qp_ex; list: 1 from ibv_wr_start on; sp: of ibv_wr_complete */
	struct tally tally;
	__u32 opcode;
	__u32 signals;
	__u8 cut; /* some signaled work requests are missing */
	__u8 all;
	__u8 pad[2];
	__u32 from, to;
	struct signal signal[SIGNALS];
};

/* A thread may have open batches for two queue pairs. */
struct batches {
	struct batch of[2];
	__u32 next;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct batches);
} posting SEC(".maps");

/* Like crowded_threads. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct batches);
} crowded_posting SEC(".maps");

static const struct batches no_batch;

static __always_inline struct batches *this_posting(__u64 flags)
{
	struct batches *b = bpf_task_storage_get(&posting, bpf_get_current_task_btf(), 0, flags);

	return b ?: crowded_entry(&crowded_posting, flags ? &no_batch : 0);
}

/* The open batch of a queue pair. */
static __always_inline struct batch *batch_of(__u64 qp)
{
	struct batches *b = this_posting(0);

	if (!b)
		return 0;
	for (int i = 0; i < 2; i++)
		if (b->of[i].call.list && b->of[i].call.object == qp)
			return &b->of[i];
	return 0;
}

/* The open batch of a call, if the probed function is this operation of the queue pair. */
static __always_inline struct batch *called(struct pt_regs *ctx)
{
	struct batch *b = batch_of(PT_REGS_PARM1(ctx));

	return b && is_named(bpf_get_attach_cookie(ctx), PT_REGS_IP(ctx), b->call.object) ? b : 0;
}

SEC("uprobe/wr_start")
int wr_start(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	__u64 now = bpf_ktime_get_ns();
	__u64 address = PT_REGS_PARM1(ctx);
	struct context_stat *stat;
	struct context_key key;
	struct batches *both;
	struct user_qp qp;
	struct batch *b;
	struct queue *q;

	stat = context_of(address, &qp, &key);
	if (!stat || !is_named(bpf_get_attach_cookie(ctx), PT_REGS_IP(ctx), address)) {
		spend_unknown(current_tgid(), CALLS_POST, trap_ns(ctx));
		return 0;
	}
	both = this_posting(BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!both) {
		lose_of(stat, PATH_LOSS_CALLS_FULL);
		spend(stat, CALLS_POST, 1, trap_ns(ctx));
		return 0;
	}
	b = batch_of(address);
	if (!b) {
		b = &both->of[both->next++ & 1];
		/* The batch was not completed, or its end was not seen, or the thread has three open batches. */
		if (b->call.list)
			lose_call(&b->call.key, PATH_LOSS_CALLS_FULL);
	}
	b->call.object = address;
	b->call.list = 1;
	b->call.sp = 0;
	b->call.key = key;
	b->call.qpn = qp.qp_num;
	b->call.chosen = stat->chosen;
	b->signals = 0;
	b->cut = 0;
	b->opcode = OPCODE_OTHER;
	if (stat->chosen) {
		__builtin_memset(&b->tally, 0, sizeof(b->tally));
		q = make_queue(&key, qp.qp_num, qp.qp_type, stat);
		b->all = q && q->all;
	}
	b->call.entry_ns = trap_ns(ctx) + bpf_ktime_get_ns() - now;
	return 0;
}

/* For all functions that begin a work request. The cookie contains its opcode. */
SEC("uprobe/wr_build")
int wr_build(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	__u64 cookie = bpf_get_attach_cookie(ctx);
	struct batch *b = called(ctx);
	__u32 op = COOKIE_OPCODE(cookie), at;
	struct user_qp_ex_wr wr;
	__u64 now;

	if (!b)
		return 0;
	if (!b->call.chosen) {
		b->call.entry_ns += COOKIE_TRAP_NS(cookie);
		return 0;
	}
	now = bpf_ktime_get_ns();
	if (op > OPCODE_OTHER)
		op = OPCODE_OTHER;
	b->opcode = op;
	b->tally.posted[op]++;
	if (op == OPCODE_TSO)
		b->tally.bytes[op] += (__u16)PT_REGS_PARM3(ctx);
	if (bpf_probe_read_user(&wr, sizeof(wr), (void *)(b->call.object + QP_EX_WR_ID))) {
		b->cut = 1;
	} else if (b->all || wr.wr_flags & IBV_SEND_SIGNALED) {
		at = b->signals;
		if (at < SIGNALS) {
			b->signal[at].wr_id = wr.wr_id;
			b->signal[at].completed = class_of(op);
			b->signals = at + 1;
		} else {
			b->cut = 1;
		}
	}
	b->call.entry_ns += COOKIE_TRAP_NS(cookie) + bpf_ktime_get_ns() - now;
	return 0;
}

static __always_inline int add_bytes(void *ctx, struct batch *b, __u64 bytes)
{
	__u32 op = b->opcode;

	if (op < OPCODES && b->call.chosen)
		b->tally.bytes[op] += bytes;
	b->call.entry_ns += trap_ns(ctx);
	return 0;
}

SEC("uprobe/wr_set_sge")
int wr_set_sge(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct batch *b = called(ctx);

	return b ? add_bytes(ctx, b, (__u32)PT_REGS_PARM4(ctx)) : 0;
}

SEC("uprobe/wr_set_inline_data")
int wr_set_inline_data(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct batch *b = called(ctx);

	return b ? add_bytes(ctx, b, (__u32)PT_REGS_PARM3(ctx)) : 0;
}

static __always_inline int add_list(struct pt_regs *ctx, bool wide)
{
	struct batch *b = called(ctx);
	__u64 now, bytes, n = PT_REGS_PARM2(ctx);
	__u32 left = CALL_BOUND;
	__u8 lost = 0;

	if (!b)
		return 0;
	if (!b->call.chosen)
		return add_bytes(ctx, b, 0);
	now = bpf_ktime_get_ns();
	bytes = list_bytes(PT_REGS_PARM3(ctx), n > CALL_BOUND ? CALL_BOUND + 1 : n, wide, &left, &lost);
	if (lost)
		lose_call(&b->call.key, lost == 1 + PATH_LOSS_CHAIN_CUT ? PATH_LOSS_CHAIN_CUT : PATH_LOSS_UNREADABLE);
	b->call.entry_ns += bpf_ktime_get_ns() - now;
	return add_bytes(ctx, b, bytes);
}

SEC("uprobe/wr_set_sge_list")
int wr_set_sge_list(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	return add_list(ctx, false);
}

SEC("uprobe/wr_set_inline_data_list")
int wr_set_inline_data_list(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	return add_list(ctx, true);
}

SEC("uprobe/wr_complete")
int wr_complete(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	__u64 now = bpf_ktime_get_ns();
	struct batch *b = called(ctx);
	struct context_stat *stat;
	struct queue *q;

	if (!b)
		return 0;
	b->call.sp = PT_REGS_SP(ctx);
	b->from = b->to = 0;
	if (b->call.chosen) {
		q = queue_of(&b->call.key, b->call.qpn);
		stat = bpf_map_lookup_elem(&contexts, &b->call.key);
		if (q && stat) {
			check_generation(q, stat);
			b->from = q->tail;
			for (int i = 0; i < SIGNALS; i++) {
				if (i >= b->signals)
					break;
				push(q, b->signal[i].wr_id, b->signal[i].completed, now);
			}
			b->to = b->from + b->signals;
			if (b->cut)
				out_of_step(q);
		}
	}
	b->call.entry_ns += trap_ns(ctx) + bpf_ktime_get_ns() - now;
	return 0;
}

SEC("uretprobe/wr_complete")
int wr_complete_return(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct batches *both = this_posting(0);
	__u64 sp = SP_AT_RETURN(ctx), now;
	struct context_stat *stat;
	struct batch *b = 0;
	struct queue *q;

	if (!both)
		return 0;
	for (int i = 0; i < 2; i++)
		if (both->of[i].call.list && both->of[i].call.sp == sp)
			b = &both->of[i];
	if (!b)
		return 0;
	now = bpf_ktime_get_ns();
	b->call.sp = 0;
	b->call.list = 0;
	stat = bpf_map_lookup_elem(&contexts, &b->call.key);
	if (!stat)
		return 0;
	if (b->call.chosen) {
		if ((int)PT_REGS_RC(ctx) == 0) {
			commit(stat, &b->tally);
		} else {
			/* ibv_wr_complete refuses all work requests of a batch. */
			q = queue_of(&b->call.key, b->call.qpn);
			if (q)
				unpush(q, b->from, b->to, 0);
		}
	}
	spend(stat, CALLS_POST, 1, b->call.entry_ns + trap_ns(ctx) + bpf_ktime_get_ns() - now);
	return 0;
}

SEC("uprobe/wr_abort")
int wr_abort(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct batch *b = called(ctx);
	struct context_stat *stat;

	if (!b)
		return 0;
	b->call.list = 0;
	stat = bpf_map_lookup_elem(&contexts, &b->call.key);
	if (stat)
		spend(stat, CALLS_POST, 1, b->call.entry_ns + trap_ns(ctx));
	return 0;
}

#endif
