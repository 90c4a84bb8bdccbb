/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Lists the signaled work requests that were posted and not completed, for queue pairs with a ring. */
#ifndef ACCELSCOPE_OUTSTANDING_H
#define ACCELSCOPE_OUTSTANDING_H

#include "context.h"

/*
 * When the oldest work request was posted. If the ring was full then, this time is unknown; the result is the post
 * time of the last work request, and the others are older.
 */
static __always_inline __u64 oldest(const struct queue *q)
{
	__u32 head = q->head;
	struct posted p;

	if ((__s32)(q->tail - head) <= 0)
		return 0;
	if (bpf_probe_read_kernel(&p, sizeof(p), &q->ring[head % RING]) || p.seq != head + 1)
		return q->posted_ns;
	return p.ns;
}

SEC("iter/bpf_map_elem")
int list_outstanding(struct bpf_iter__bpf_map_elem *ctx)
{
	const struct queue_key *key = ctx->key;
	const struct queue *q = ctx->value;
	struct context_key of = {};
	struct context_stat *stat;
	struct outstanding o = {};

	if (!key || !q || q->failed)
		return 0;
	of.context = key->context;
	of.tgid = key->tgid;
	stat = bpf_map_lookup_elem(&contexts, &of);
	if (!stat)
		return 0;
	o.key = *key;
	o.since_ns = q->since_ns;
	o.oldest_ns = oldest(q);
	o.completed_ns = q->completed_ns;
	o.in_step = q->in_step && is_current(q, stat);
	o.plain = q->plain;
	bpf_seq_write(ctx->meta->seq, &o, sizeof(o));
	return 0;
}

#endif
