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

char LICENSE[] SEC("license") = "GPL";

/* Makes bpf2go generate these types. */
const enum opcode *unused_opcode __attribute__((unused));
const enum calls *unused_calls __attribute__((unused));
const enum completed *unused_completed __attribute__((unused));
const enum path_loss *unused_path_loss __attribute__((unused));
const enum order *unused_order __attribute__((unused));
const struct control_args *unused_control_args __attribute__((unused));
const struct path_event *unused_path_event __attribute__((unused));

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
	return r.removed;
}

SEC("syscall")
int control(struct control_args *args)
{
	struct context_key key = args->key;
	struct context_stat *stat;

	if (args->what == CONTROL_REMOVE && !key.context)
		return remove_process(key.tgid);
	stat = bpf_map_lookup_elem(&contexts, &key);
	if (!stat && args->what == CONTROL_ADD) {
		stat = add_context(&key, args->cgroup);
		if (stat) {
			stat->cgroup = args->cgroup;
			stat->device = args->device;
		}
	}
	if (!stat)
		return 1;
	switch (args->what) {
	case CONTROL_GAP:
		__sync_fetch_and_add(&stat->generation, 1);
		return 0;
	case CONTROL_REMOVE:
		remove_context(&key, stat->cgroup);
		return 0;
	}
	stat->chosen = args->chosen;
	stat->ready = args->ready;
	return 0;
}
