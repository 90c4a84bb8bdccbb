// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Counts the work requests that processes post and the completions that they poll, with uprobes on the functions of their
 * verbs providers:
 *
 *   post.h       ibv_post_send and ibv_post_recv
 *   poll.h       ibv_poll_cq, and the calibration of the cost of a probe
 *   wr.h         ibv_wr_*
 *   lifecycle.h  contexts and queue pairs, seen in the kernel
 *   queues.h     the durations of work requests
 *   outstanding.h  the work requests that are not completed
 *   context.h    the state that these share
 *
 * The result of a call is known at its return. A return belongs to an entry of the same thread with the same stack pointer;
 * an entry without a return is overwritten by the next one. So nested calls and missed returns are not mixed up.
 *
 * This file has the program "control", with which user space changes maps while the others use them.
 */
#include "post.h"
#include "poll.h"
#include "wr.h"
#include "lifecycle.h"
#include "outstanding.h"

char LICENSE[] SEC("license") = "GPL";

/* Makes bpf2go generate these types. */
const enum opcode *unused_opcode __attribute__((unused));
const enum calls *unused_calls __attribute__((unused));
const enum completed *unused_completed __attribute__((unused));
const enum path_loss *unused_path_loss __attribute__((unused));
const enum order *unused_order __attribute__((unused));
const struct control_args *unused_control_args __attribute__((unused));
const struct path_event *unused_path_event __attribute__((unused));
const struct outstanding *unused_outstanding __attribute__((unused));

struct removal {
	__u32 tgid;
	__u32 removed;
};

static long remove_queue(void *map, struct queue_key *key, struct queue *q, struct removal *r)
{
	if (key->tgid == r->tgid) {
		drop_queue(key);
		r->removed++;
	}
	return 0;
}

static long remove_ringless(void *map, struct queue_key *key, __u8 *yes, struct removal *r)
{
	if (key->tgid == r->tgid) {
		bpf_map_delete_elem(map, key);
		r->removed++;
	}
	return 0;
}

static long remove_latency(void *map, struct latency_key *key, struct latency *l, struct removal *r)
{
	if (key->context.tgid == r->tgid) {
		bpf_map_delete_elem(map, key);
		r->removed++;
	}
	return 0;
}

/*
 * Removes the queue pairs and durations of a process and returns their number. A walk may skip entries while other programs
 * add and remove: user space repeats it until the number is 0.
 */
static __noinline int remove_process(__u32 tgid)
{
	struct removal r = {.tgid = tgid};

	bpf_map_delete_elem(&unknown_costs, &tgid);
	bpf_for_each_map_elem(&queues, remove_queue, &r, 0);
	bpf_for_each_map_elem(&latencies, remove_latency, &r, 0);
	bpf_for_each_map_elem(&ringless, remove_ringless, &r, 0);
	return r.removed;
}

static __always_inline void remove_spent(struct context_key *key, struct context_stat *stat)
{
	for (__u32 i = 0; i < CALLS; i++)
		spend_unknown(key->tgid, i, stat->spent_ns[i]);
	remove_context(key, stat);
}

/*
 * Removes a context and keeps what it cost the process. A context that is about to be closed has two entries. Returns 1 if
 * there is none.
 */
static __noinline int remove_numbered(struct context_key *numbered)
{
	struct context_stat *stat = bpf_map_lookup_elem(&contexts, numbered);
	struct context_key key = *numbered;
	int absent = 1;

	if (stat) {
		remove_spent(&key, stat);
		absent = 0;
	}
	key.number = 0;
	stat = bpf_map_lookup_elem(&contexts, &key);
	if (stat && stat->number == numbered->number) {
		if (absent)
			remove_spent(&key, stat);
		else
			remove_context(&key, stat);
		absent = 0;
	}
	for (__u32 i = 0; i < COMPLETED; i++) {
		struct latency_key of = {.context = *numbered, .completed = i};

		bpf_map_delete_elem(&latencies, &of);
	}
	return absent;
}

SEC("syscall")
int control(struct control_args *args)
{
	struct context_key key = args->key;
	struct context_stat *stat;

	if (args->what == CONTROL_REMOVE && !key.context)
		return remove_process(key.tgid);
	if (args->what == CONTROL_REMOVE)
		return remove_numbered(&key);
	key.number = 0;
	stat = bpf_map_lookup_elem(&contexts, &key);
	if (args->what == CONTROL_ADD) {
		if (!stat)
			stat = add_context(&key, args->cgroup, args->device, args->ucontext);
		if (!stat)
			return 0;
		stat->chosen = args->chosen;
		return stat->number;
	}
	if (!stat || stat->number != args->key.number)
		return 1;
	switch (args->what) {
	case CONTROL_GAP:
		__sync_fetch_and_add(&stat->generation, 1);
		return 0;
	case CONTROL_MARK:
		stat->chosen = args->chosen;
		stat->ready = args->ready;
	}
	return 0;
}
