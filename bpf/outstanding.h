/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Lists the signaled work requests and the receives that were posted and not completed, for queue pairs with a ring. */
#ifndef ACCELSCOPE_OUTSTANDING_H
#define ACCELSCOPE_OUTSTANDING_H

#include "receives.h"

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
	o.receives_ns = is_current(q, stat) ? q->receives.since_ns : 0;
	o.waiting_ns = q->receives.count && !waits_to_send(q) ? q->receives.waiting_ns : 0;
	o.waited_ns = q->receives.waited_ns;
	o.ahead = is_filled_ahead(q);
	bpf_seq_write(ctx->meta->seq, &o, sizeof(o));
	return 0;
}

#endif
