/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Measures the durations of work requests. Signaled work requests of a queue pair complete in the order of their
 * posts, so each queue pair has a ring of them. Work requests that complete as IBV_WC_DRIVER1 to 3 are left out.
 *
 * A ring is in step if it has seen all posts since before the queue pair could send. A completion then belongs to
 * the head of the ring, whatever its wr_id, which many programs never change. Otherwise, and after a gap, a
 * completion is looked up by its wr_id if the wr_ids differ. Once a work request is found, the ring is in step.
 */
#ifndef ACCELSCOPE_QUEUES_H
#define ACCELSCOPE_QUEUES_H

#include <linux/errno.h>
#include "datapath.h"
#include "fine.h"
#include "libibverbs.h"
#include "owner.h"

/* A receive queue that had receives all the time while completions came for so long is filled ahead. */
const volatile __u64 ahead_ns = 60000000000;

#define RING 128 /* a power of two */
#define NEAR 8   /* the distance by which completions may be out of order if several threads poll */

struct posted {
	__u64 wr_id;
	__u64 ns;
	__u32 seq; /* its number, from 1; if seq does not match, the slot is empty */
	__u32 completed;
};

/* Posted receives of a queue pair (receives.h). Times are of CLOCK_MONOTONIC. */
struct receives {
	__u64 since_ns;   /* all posts and completions are seen since then; 0: older receives may be outstanding */
	__u64 filled_ns;  /* when the first receive was posted to an empty queue */
	__u64 waiting_ns; /* since when no completion ended the wait for the oldest receive */
	__u64 busy_ns;    /* the time since filled_ns in which completions came */
	__u64 pending_ns; /* waits that are not added yet */
	__u64 waited_ns;
	__u32 count;
	__u8 emptied; /* completions emptied the queue while all receives were known */
	__u8 shared;  /* it has an SRQ */
	__u8 pad[2];
};

struct queue {
	__u32 head, tail; /* the number of completions, and of posts */
	__u32 since;      /* the tail at the last gap */
	__u32 generation;
	__u8 in_step;
	__u8 same; /* some work requests have the same wr_id */
	__u8 odd;  /* consecutive completions that were not in the ring */
	__u8 all;  /* sq_sig_all: all work requests are signaled */
	__u8 ud;
	__u8 fresh;      /* has not been ready to send since it was created or reset */
	__u8 failed;     /* a work request failed, or the process set the error state: all completions come at once */
	__u8 plain;      /* its completion queue has no functions besides poll_cq */
	__u64 owner;     /* the cgroup whose share this entry takes */
	__u64 since_ns;  /* when it fell out of step */
	__u64 posted_ns; /* the last signaled work request, CLOCK_MONOTONIC; 0: none yet */
	__u64 completed_ns; /* the last completion of a signaled work request */
	struct receives receives;
	struct posted ring[RING];
};

/* An entry has 3 KiB, and exists while its queue pair does. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, struct queue_key);
	__type(value, struct queue);
} queues SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, struct latency_key);
	__type(value, struct latency);
} latencies SEC(".maps");

/* Queue pairs whose missing ring was counted as a loss. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, struct queue_key);
	__type(value, __u8);
} ringless SEC(".maps");

static const struct queue zero_queue;
static const struct latency zero_latency;

__u64 path_losses[PATH_LOSSES];

/* The number of entries of queues; otherwise user space would have to walk the map. */
__u64 live_queues;

static __always_inline void lose(__u32 why)
{
	__sync_fetch_and_add(&path_losses[why], 1);
}

static __always_inline struct queue *queue_of(const struct context_key *context, __u32 qpn)
{
	struct queue_key key = {.context = context->context, .tgid = context->tgid, .qpn = qpn};

	return bpf_map_lookup_elem(&queues, &key);
}

/* Counts a queue pair without a ring once, and remembers it. If too many are remembered, each attempt counts. */
static __always_inline struct queue *no_queue(const struct queue_key *key, struct context_stat *stat)
{
	__u8 yes = 1;

	stat->ringless = 1;
	if (bpf_map_update_elem(&ringless, key, &yes, BPF_NOEXIST) != -EEXIST)
		lose(lost_by_share(stat->owner, QUEUES_OF_OWNER) ? PATH_LOSS_QUEUES_SHARE : PATH_LOSS_QUEUES_FULL);
	return 0;
}

/* A post makes the ring of a queue pair older than the hooks. A process can make up any number of queue pairs. */
static __always_inline struct queue *make_queue(const struct context_key *context, __u32 qpn, __u32 type,
						struct context_stat *stat)
{
	struct queue_key key = {.context = context->context, .tgid = context->tgid, .qpn = qpn};
	struct queue *q = bpf_map_lookup_elem(&queues, &key);

	if (q)
		return q;
	if (has_share(stat->owner, QUEUES_OF_OWNER))
		return no_queue(&key, stat);
	if (!bpf_map_update_elem(&queues, &key, &zero_queue, BPF_NOEXIST)) {
		__sync_fetch_and_add(&live_queues, 1);
		count_entries(stat->owner, QUEUES_OF_OWNER, 1);
	}
	q = bpf_map_lookup_elem(&queues, &key);
	if (!q)
		return no_queue(&key, stat);
	q->owner = stat->owner;
	q->since_ns = bpf_ktime_get_ns();
	q->ud = type == IBV_QPT_UD;
	stat->ud |= q->ud;
	return q;
}

static __always_inline void drop_queue(const struct queue_key *key)
{
	struct queue *q = bpf_map_lookup_elem(&queues, key);
	__u64 owner = q ? q->owner : 0;

	if (!bpf_map_delete_elem(&queues, key)) {
		__sync_fetch_and_add(&live_queues, -1);
		count_entries(owner, QUEUES_OF_OWNER, -1);
	}
	bpf_map_delete_elem(&ringless, key);
}

/*
 * Receives may have been posted or completed unseen. If completions have emptied the queue before, they soon do again:
 * until then too few receives are known to be outstanding, so that waits are too short.
 */
static __always_inline void forget_receives(struct queue *q)
{
	if (q->receives.busy_ns >= ahead_ns)
		q->receives.emptied = 0;
	q->receives.since_ns = q->receives.emptied ? bpf_ktime_get_ns() : 0;
	q->receives.count = 0;
	q->receives.busy_ns = 0;
	q->receives.pending_ns = 0;
}

/* From here on, completions are looked up by wr_id. */
static __always_inline void out_of_step(struct queue *q)
{
	q->in_step = 0;
	q->head = q->tail;
	q->since = q->tail;
	q->same = 0;
	q->odd = 0;
	q->since_ns = bpf_ktime_get_ns();
}

/* All work requests get completions, also unsignaled work requests, and are soon complete. */
static __always_inline void fail(struct queue *q)
{
	out_of_step(q);
	q->receives.emptied = 0;
	forget_receives(q);
	q->same = 1;
	q->failed = 1;
}

/* Completions of some queue pairs of a context were polled unseen. */
static __always_inline void miss_completions(struct context_stat *stat)
{
	__sync_fetch_and_add(&stat->generation, 1);
}

/* A number that changes whenever work requests or completions of unknown queue pairs were missed. */
static __always_inline __u32 generation_of(const struct context_stat *stat)
{
	return stat->generation + stat->unmatched;
}

static __always_inline bool is_current(const struct queue *q, const struct context_stat *stat)
{
	return q->generation == generation_of(stat);
}

static __always_inline void check_generation(struct queue *q, const struct context_stat *stat)
{
	if (is_current(q, stat))
		return;
	q->generation = generation_of(stat);
	out_of_step(q);
	forget_receives(q);
}

/*
 * When the oldest incomplete work request was posted, 0 if all are complete. If the ring was full then, this time is
 * unknown; the result is the post time of the last work request, and the others are older.
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

/*
 * Adds a work request to the ring. The verifier verifies a function that is not static only once, not at each call,
 * where nested loops would exceed its limit. So these functions check their arguments.
 */
__noinline int push(struct queue *q, __u64 wr_id, __u32 completed, __u64 now)
{
	struct posted *p;
	__u32 at, head;

	if (!q)
		return 0;
	at = __sync_fetch_and_add(&q->tail, 1);
	head = q->head;
	p = &q->ring[at % RING];
	q->posted_ns = now;

	if (!q->in_step && !q->same) {
		for (__u32 i = 1; i <= NEAR; i++) {
			struct posted *last = &q->ring[(at - i) % RING];

			if (at - q->since >= i && last->seq == at - i + 1 && last->wr_id == wr_id)
				q->same = 1;
		}
	}
	/* If the ring is full, older entries stay, so that some work requests of a long queue are measured. */
	if (p->seq - 1 - head < at - head)
		return 0;
	p->wr_id = wr_id;
	p->ns = now;
	p->completed = completed;
	/* A barrier: a reader that sees the number also sees the other members. */
	__sync_lock_test_and_set(&p->seq, at + 1);
	return 0;
}

/* Removes refused work requests. If another thread posted meanwhile, their order is unknown. */
static __always_inline void unpush(struct queue *q, __u32 from, __u32 to, __u32 accepted)
{
	if (__sync_val_compare_and_swap(&q->tail, to, from + accepted) != to)
		out_of_step(q);
}

static __always_inline struct posted *at_place(struct queue *q, __u32 at, __u64 wr_id)
{
	struct posted *p = &q->ring[at % RING];

	return p->seq == at + 1 && p->wr_id == wr_id ? p : 0;
}

/* Finds the work request of a completion that is being polled. Returns 0 without a match. */
__noinline int match(struct queue *q, __u64 wr_id, __u64 now, struct posted *out)
{
	struct posted *p = 0;
	__u32 at;

	if (!q || !out)
		return 0;
	q->completed_ns = now;
	if (!q->in_step) {
		__u32 tail = q->tail;

		if (q->same || tail - q->since < NEAR)
			return 0;
		at = q->head;
		for (int i = 0; i < RING && !p; i++, at++) {
			if ((__s32)(tail - at) <= 0)
				return 0;
			p = at_place(q, at, wr_id);
		}
		if (!p)
			return 0;
		q->head = at;
		q->in_step = 1;
		*out = *p;
		return 1;
	}
	at = __sync_fetch_and_add(&q->head, 1);
	if ((__s32)(q->tail - at) <= 0) {
		out_of_step(q);
		return 0;
	}
	p = &q->ring[at % RING];
	/* The ring was full when it was posted. */
	if (p->seq != at + 1)
		return 0;
	if (p->wr_id != wr_id) {
		p = 0;
		for (__u32 i = 1; i <= NEAR && !p; i++) {
			p = at_place(q, at + i, wr_id);
			if (!p)
				p = at_place(q, at - i, wr_id);
		}
		if (!p) {
			if (++q->odd > NEAR)
				out_of_step(q);
			return 0;
		}
	}
	q->odd = 0;
	*out = *p;
	return 1;
}

/* Adds a duration to a histogram of the context with this number. */
__noinline int record_duration(const struct context_key *context, __u32 number, __u32 completed, __u64 ns)
{
	struct latency_key key = {.completed = completed};
	struct latency *l;
	__u32 bucket;

	if (!context)
		return 0;
	key.context = *context;
	key.context.number = number;
	l = bpf_map_lookup_elem(&latencies, &key);
	if (!l) {
		bpf_map_update_elem(&latencies, &key, &zero_latency, BPF_NOEXIST);
		l = bpf_map_lookup_elem(&latencies, &key);
		if (!l) {
			lose(PATH_LOSS_LATENCIES_FULL);
			return 0;
		}
	}
	bucket = fine_bucket(ns);
	if (bucket >= FINE_BUCKETS)
		return 0;
	__sync_fetch_and_add(&l->buckets[bucket], 1);
	__sync_fetch_and_add(&l->sum_ns, ns);
	return 0;
}

#endif
