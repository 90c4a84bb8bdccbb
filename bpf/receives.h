/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Measures how long queue pairs wait for receives: while a posted receive is older than all incomplete signaled sends
 * of its queue pair. A wait is added once no receive is outstanding. So a receive queue that is filled ahead, and never
 * becomes empty, has no waits.
 *
 * The receives of a queue pair are known if it was created or reset while its functions were probed. Otherwise a queue
 * that is filled ahead would look like a queue that becomes empty: many programs set the same wr_id in all receives.
 */
#ifndef ACCELSCOPE_RECEIVES_H
#define ACCELSCOPE_RECEIVES_H

#include "context.h"

/* A longer time without a completion may be a wait: it does not count as time in which completions came. */
#define PAUSE_NS (ahead_ns / 6)

/* No receive is outstanding, and the next one will be seen. */
static __always_inline void begin_receives(struct queue *q)
{
	q->receives.emptied = 0;
	forget_receives(q);
	q->receives.since_ns = bpf_ktime_get_ns();
}

/* n receives are being posted. */
__noinline int add_receives(struct queue *q, __u32 n, __u64 now)
{
	if (!q || !n || !q->receives.since_ns)
		return 0;
	/* Before the count: another thread may poll a completion as soon as it sees the count. */
	if (!q->receives.count) {
		q->receives.filled_ns = now;
		q->receives.waiting_ns = now;
	}
	__sync_fetch_and_add(&q->receives.count, n);
	return 0;
}

/* The provider accepted another number of receives than were read at the entry. */
__noinline int correct_receives(struct queue *q, __u32 read, __u32 accepted)
{
	if (!q)
		return 0;
	if (accepted >= read)
		add_receives(q, accepted - read, bpf_ktime_get_ns());
	else if (q->receives.count >= read - accepted)
		__sync_fetch_and_add(&q->receives.count, accepted - read);
	else
		forget_receives(q);
	return 0;
}

/* Whether a signaled send that is older than all outstanding receives is incomplete. */
static __always_inline bool waits_to_send(const struct queue *q)
{
	__u64 ns = q->in_step ? oldest(q) : 0;

	return ns && ns < q->receives.filled_ns;
}

/* The queue pair has a shared receive queue, or its receive queue is filled ahead or was never seen empty. */
static __always_inline bool is_filled_ahead(const struct queue *q)
{
	return q->receives.shared || (q->receives.count && (!q->receives.emptied || q->receives.busy_ns >= ahead_ns));
}

/* Adds the waits of a receive queue that has become empty. */
static __always_inline void end_wait(struct queue *q, struct context_stat *stat)
{
	bool ahead = q->receives.busy_ns >= ahead_ns;
	__u64 ns = q->receives.pending_ns;

	q->receives.emptied = !ahead;
	q->receives.busy_ns = 0;
	/* It is not known yet since when the functions of a new context are probed. */
	if (!stat->ready && !ahead)
		return;
	q->receives.pending_ns = 0;
	if (ahead || q->receives.since_ns < stat->probed_ns)
		return;
	q->receives.waited_ns += ns;
	__sync_fetch_and_add(&stat->waited_ns, ns);
}

/* A completion of a receive is polled. */
__noinline int complete_receive(struct queue *q, struct context_stat *stat, __u64 now)
{
	__u64 ns;

	if (!q || !stat || !q->receives.since_ns || q->receives.shared)
		return 0;
	/* It was posted unseen, and others may have been. */
	if (!q->receives.count) {
		forget_receives(q);
		return 0;
	}
	ns = now > q->receives.waiting_ns ? now - q->receives.waiting_ns : 0;
	if (!waits_to_send(q))
		q->receives.pending_ns += ns;
	if (ns < PAUSE_NS)
		q->receives.busy_ns += ns;
	q->receives.waiting_ns = now;
	if (__sync_fetch_and_add(&q->receives.count, -1) == 1)
		end_wait(q, stat);
	return 0;
}

static __always_inline void receive(const struct context_key *key, struct context_stat *stat, __u32 qpn, __u64 now)
{
	struct queue *q = queue_of(key, qpn);

	if (!q)
		return;
	check_generation(q, stat);
	complete_receive(q, stat, now);
}

/* A send completes: what is older than all outstanding receives ends here. */
static __always_inline void complete_send(struct queue *q, __u64 posted_ns, __u64 now)
{
	if (q->receives.count && posted_ns < q->receives.filled_ns)
		q->receives.waiting_ns = now;
}

#endif
