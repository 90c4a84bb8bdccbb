/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Numbers and times of the launches of ranks: how late ranks are, and the times that user space compares over nodes. */
#ifndef ACCELSCOPE_NUMBERS_H
#define ACCELSCOPE_NUMBERS_H

#include "kernel.h"

/* Launches by which a rank may be behind another one, so that it is known how late each launch is. */
#define FIRSTS 128

/* The ranks of a communicator on this node: when the first of them made its launch with a number, as in stamp. */
struct first_launches {
	__u64 at[FIRSTS]; /* by the number */
};

/*
 * The last four launches are kept whose number has k zeros at its end in binary, for each k: the last launches, and
 * ever fewer of the launches before. All nodes keep the same numbers, without knowing how often the others launch.
 */
enum kept_launches {
	ZEROS = 16,
	KEPT = 4,
};

/*
 * A rank of a communicator with an id, by the number of the communicator. Its launches have numbers from 1 on. A
 * launch has the same number in all ranks. Sends and receives have no number, because they differ by rank.
 */
struct rank {
	__u64 identity;            /* the same in all ranks of the communicator: the key in collective_firsts */
	__u64 launched;            /* the number of the last launch */
	__u64 late;                /* nanoseconds from the first launch of the same number on this node, added up */
	__u64 unsure;              /* launches that were later than they add to late */
	__u64 times[ZEROS * KEPT]; /* of launches, as in stamp */
};

/* Makes bpf2go generate the type. */
const enum kept_launches *unused_kept_launches __attribute__((unused));

/* User space sets the sizes of these maps. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct rank);
} collective_ranks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct first_launches);
} collective_firsts SEC(".maps");

static const struct rank new_rank;
static const struct first_launches no_launches;

/*
 * A time, and which of the launches that share a place has it, in 8 bytes that are written at once: programs on other
 * CPUs and user space read the place at any time. The time is exact to 256 ns.
 */
#define STAMP_TURNS 0xffULL

static __always_inline __u64 stamp(__u64 time, __u64 turn)
{
	return (time & ~STAMP_TURNS) | (turn & STAMP_TURNS);
}

/* The place of a number. Linux 5.10 forgets the bounds of a value on the stack, so the number is bounded where it is used. */
static __always_inline __u64 place(__u64 n, __u64 places)
{
	asm volatile("" : "+r"(n));
	return n % places;
}

static __always_inline void keep_time(struct rank *r, __u64 n, __u64 now)
{
	__u64 zeros = 0;

#pragma unroll
	for (int bits = ZEROS / 2; bits; bits /= 2) {
		if (!(n & ((1 << bits) - 1))) {
			n >>= bits;
			zeros += bits;
		}
	}
	if (!(n & 1))
		return;
	n /= 2;
	r->times[place(zeros * KEPT + n % KEPT, ZEROS * KEPT)] = stamp(now, n / KEPT);
}

static __always_inline struct first_launches *firsts_of(__u64 identity)
{
	struct first_launches *f = bpf_map_lookup_elem(&collective_firsts, &identity);

	if (f)
		return f;
	bpf_map_update_elem(&collective_firsts, &identity, &no_launches, BPF_NOEXIST);
	return bpf_map_lookup_elem(&collective_firsts, &identity);
}

/*
 * Adds how late a launch is. If a later launch has taken the place of the first launch, only the time since the later
 * launch is known. Returns false if there is no room for the times.
 */
static __always_inline bool add_late(struct rank *r, __u64 n, __u64 now)
{
	struct first_launches *f = firsts_of(r->identity);
	__u64 mine = stamp(now, n / FIRSTS), first;
	__s8 ahead;

	if (!f) {
		r->unsure++;
		return false;
	}
	first = f->at[place(n, FIRSTS)];
	ahead = (__u8)first - (__u8)mine;
	if (!first || ahead < 0) {
		f->at[place(n, FIRSTS)] = mine;
		return true;
	}
	if (ahead)
		r->unsure++;
	if (mine > first) /* the first launch may be on another CPU at this moment */
		__sync_fetch_and_add(&r->late, (mine & ~STAMP_TURNS) - (first & ~STAMP_TURNS));
	return true;
}

/* Threads that launch on one communicator at the same time may get the same number, and then miss the one before. */
static __always_inline bool number_launch(__u64 communicator, __u64 now)
{
	struct rank *r = bpf_map_lookup_elem(&collective_ranks, &communicator);
	__u64 n;

	if (!r)
		return true;
	__sync_fetch_and_add(&r->launched, 1);
	n = *(volatile __u64 *)&r->launched;
	keep_time(r, n, now);
	return add_late(r, n, now);
}

#endif
