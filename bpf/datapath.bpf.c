// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Counts the work requests that processes post and the completions that they poll, with uprobes on the functions of
 * their verbs providers:
 *
 *   post.h       ibv_post_send and ibv_post_recv
 *   poll.h       ibv_poll_cq
 *   poll_ex.h    ibv_start_poll, ibv_next_poll and ibv_wc_read_*
 *   wr.h         ibv_wr_*
 *   lifecycle.h  contexts and queue pairs, seen in the kernel
 *   queues.h     the durations of work requests
 *   receives.h   waits for receives
 *   outstanding.h  incomplete work requests
 *   context.h    shared state
 *
 * The result of a call is known at its return. A return belongs to an entry of the same thread with the same stack
 * pointer. An entry without a return is overwritten by the next entry. So nested calls and missed returns are not
 * mixed up.
 *
 * The program "control" in this file lets user space change maps while the other programs use them.
 */
#include "post.h"
#include "poll.h"
#include "poll_ex.h"
#include "wr.h"
#include "lifecycle.h"
#include "outstanding.h"

char LICENSE[] SEC("license") = "GPL";

/* Makes bpf2go generate these types. */
const enum opcode *unused_opcode __attribute__((unused));
const enum calls *unused_calls __attribute__((unused));
const enum completed *unused_completed __attribute__((unused));
const enum path_loss *unused_path_loss __attribute__((unused));
const enum path_map *unused_path_map __attribute__((unused));
const enum order *unused_order __attribute__((unused));
const struct control_args *unused_control_args __attribute__((unused));
const struct path_event *unused_path_event __attribute__((unused));
const struct outstanding *unused_outstanding __attribute__((unused));

/* Ended processes. User space adds and removes them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u8);
} ended SEC(".maps");

/* For the maps queues and ringless: drop_queue removes from both. */
static long remove_queue(void *map, struct queue_key *key, void *value, __u32 *removed)
{
	if (bpf_map_lookup_elem(&ended, &key->tgid)) {
		drop_queue(key);
		(*removed)++;
	}
	return 0;
}

static long remove_latency(void *map, struct latency_key *key, struct latency *l, __u32 *removed)
{
	if (bpf_map_lookup_elem(&ended, &key->context.tgid)) {
		bpf_map_delete_elem(map, key);
		(*removed)++;
	}
	return 0;
}

static long remove_cost(void *map, __u32 *tgid, __u8 *yes, void *unused)
{
	bpf_map_delete_elem(&unknown_costs, tgid);
	return 0;
}

/*
 * Removes the queue pairs and durations of ended processes, and returns their number. A walk may skip entries while
 * other programs add and remove: user space repeats it until the number is 0.
 */
static __noinline int remove_processes(void)
{
	__u32 removed = 0;

	bpf_for_each_map_elem(&ended, remove_cost, 0, 0);
	bpf_for_each_map_elem(&queues, remove_queue, &removed, 0);
	bpf_for_each_map_elem(&latencies, remove_latency, &removed, 0);
	bpf_for_each_map_elem(&ringless, remove_queue, &removed, 0);
	return removed;
}

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 2048);
	__type(key, __u64);
	__type(value, __s64);
} found_rings SEC(".maps");

static long forget_found(void *map, __u64 *owner, __s64 *n, void *unused)
{
	bpf_map_delete_elem(&found_rings, owner);
	return 0;
}

/*
 * If the driver takes a queue pair from a living process, another process destroys it: only the missing context
 * shows its end.
 */
static long count_ring(void *map, struct queue_key *key, struct queue *q, void *unused)
{
	struct context_key context = {.context = key->context, .tgid = key->tgid};
	__u64 owner = q->owner;
	__s64 one = 1, *n;

	if (!bpf_map_lookup_elem(&contexts, &context)) {
		drop_queue(key);
		return 0;
	}
	n = bpf_map_lookup_elem(&found_rings, &owner);
	if (n)
		(*n)++;
	else if (entries_of(owner))
		bpf_map_update_elem(&found_rings, &owner, &one, BPF_NOEXIST);
	return 0;
}

static long correct_owner(void *map, __u64 *owner, struct owner_entries *entries, void *unused)
{
	__s64 *n = bpf_map_lookup_elem(&found_rings, owner);

	__sync_fetch_and_add(&entries->made[QUEUES_OF_OWNER], (n ? *n : 0) - entries->made[QUEUES_OF_OWNER]);
	return 0;
}

/* A ring that a program makes or removes meanwhile may be miscounted until the next call. */
static __noinline int correct_rings(void)
{
	bpf_for_each_map_elem(&found_rings, forget_found, 0, 0);
	bpf_for_each_map_elem(&queues, count_ring, 0, 0);
	bpf_for_each_map_elem(&owner_entries, correct_owner, 0, 0);
	return 0;
}

static __always_inline void remove_spent(struct context_key *key, struct context_stat *stat)
{
	__u32 tgid = key->tgid;
	struct unknown_cost *s;

	add_unknown_cost(tgid, stat->cgroup);
	s = bpf_map_lookup_elem(&unknown_costs, &tgid);
	for (__u32 i = 0; s && i < CALLS; i++)
		__sync_fetch_and_add(&s->spent_ns[i], stat->spent_ns[i]);
	remove_context(key, stat);
}

/*
 * Removes a context and keeps what it cost the process. A context that is about to be closed has two entries.
 * Returns 1 if the context is missing.
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

/* From here on the calls of a context are counted as args says. */
static __always_inline void mark(struct context_stat *stat, const struct control_args *args)
{
	__u64 ns = args->chosen && !stat->chosen ? bpf_ktime_get_ns() : args->probed_ns;

	if (ns > stat->probed_ns)
		stat->probed_ns = ns;
	stat->chosen = args->chosen;
	stat->ready = args->probed_ns != 0;
}

/* The next queue pair of a context that changes its state is announced, whatever functions it has. */
static __always_inline int repeat(struct context_stat *stat)
{
	if (stat->repeated >= MAX_REPEATED)
		return 2;
	stat->repeated++;
	for (int i = 0; i < SETS; i++)
		stat->sets[i] = 0;
	return 0;
}

SEC("syscall")
int control(struct control_args *args)
{
	struct context_key key = args->key;
	struct context_stat *stat;

	if (args->what == CONTROL_RINGS)
		return correct_rings();
	if (args->what == CONTROL_REMOVE && !key.context)
		return remove_processes();
	if (args->what == CONTROL_REMOVE)
		return remove_numbered(&key);
	key.number = 0;
	stat = bpf_map_lookup_elem(&contexts, &key);
	if (args->what == CONTROL_ADD) {
		if (!stat)
			stat = add_context(&key, args->cgroup, args->owner, args->device, args->ucontext);
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
	case CONTROL_REPEAT:
		return repeat(stat);
	case CONTROL_MARK:
		mark(stat, args);
	}
	return 0;
}
