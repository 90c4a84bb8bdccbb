/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* The verbs contexts of processes, and what probes took of their time. */
#ifndef ACCELSCOPE_CONTEXT_H
#define ACCELSCOPE_CONTEXT_H

#include "datapath.h"
#include "cgroup.h"
#include "libibverbs.h"
#include "queues.h"

/*
 * A uprobe can be preempted, and another thread on the same CPU enters the same program. Since 6.13 (arm64: 6.17) a program
 * of this type whose stack is 64 bytes or more has one of the CPU: each would write into the other's, pointers included.
 * A program with a tail call is excepted, also where it is never reached; the verifier takes it out.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} nowhere SEC(".maps");
static const volatile __u8 never;

#define STACK_OF_THREAD(ctx)                                                                                           \
	do {                                                                                                           \
		if (never)                                                                                             \
			bpf_tail_call(ctx, &nowhere, 0);                                                               \
	} while (0)

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct context_key);
	__type(value, struct context_stat);
} contexts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 65536);
} path_events SEC(".maps");

/* How many contexts a cgroup has, and may have: one must not take the room of others. */
#define CONTEXTS_OF_CGROUP 512
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u32);
} cgroup_contexts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct stranger);
} strangers SEC(".maps");

/* The queue pairs whose every work request is completed, by the address of their struct ib_qp. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u8);
} signal_all SEC(".maps");

/* The numbers of the uverbs devices, for the iterator. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u8);
} uverbs SEC(".maps");

/* How much of one call is read at most: work requests, completions, and elements of lists. */
#define CALL_BOUND 16384

struct tally {
	__u64 posted[OPCODES];
	__u64 bytes[OPCODES];
};

/* A call that has not returned. */
struct call {
	__u64 sp; /* where its return will be; 0: none */
	__u64 object;
	__u64 list;
	__u64 bad;
	__u64 owed_ns; /* what its entry took */
	struct context_key key;
	__u32 qpn;
	__u8 chosen;
	__u8 unread;
	__u16 pad;
};

/* What a thread is in the middle of. */
struct thread {
	struct call send, receive;
	struct tally tally; /* of send */
	__u32 from, to;     /* of its ring */
	__u32 left;
	__u32 pad;

	/* poll_cq */
	__u64 poll_sp;
	__u64 poll_cq;
	__u64 poll_list;
	__u64 poll_ip;
	__u64 poll_owed_ns;
	/* Calls that found nothing: many, and booked together. */
	struct context_key idle;
	__u64 idle_ns;
	__u64 idle_hits;

	/* calibration */
	__u64 idle_sp, idle_list;

	__u8 creates_all;
	__u8 unused[7];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

static const struct context_stat zero_stat;

/* Whether a context is counted from the beginning: not while user space is to choose. */
const volatile __u8 choose_all = 1;

/* The stack pointer at the entry of a function, when it returns. */
#if defined(__TARGET_ARCH_x86)
#define SP_AT_RETURN(ctx) (PT_REGS_SP(ctx) - 8)
#else
#define SP_AT_RETURN(ctx) PT_REGS_SP(ctx)
#endif

static __always_inline __u32 current_tgid(void)
{
	return bpf_get_current_pid_tgid() >> 32;
}

static __always_inline __u64 trap_ns(void *ctx)
{
	return COOKIE_TRAP_NS(bpf_get_attach_cookie(ctx));
}

static __always_inline struct thread *this_thread(__u64 flags)
{
	return bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, flags);
}

static __always_inline void spend(struct context_stat *stat, __u32 calls, __u64 hits, __u64 ns)
{
	__sync_fetch_and_add(&stat->hits[calls], hits);
	__sync_fetch_and_add(&stat->spent_ns[calls], ns);
}

static const struct stranger zero_stranger;

static __always_inline void spend_unknown(__u32 calls, __u64 ns)
{
	__u32 tgid = current_tgid();
	struct stranger *s = bpf_map_lookup_elem(&strangers, &tgid);

	if (!s) {
		bpf_map_update_elem(&strangers, &tgid, &zero_stranger, BPF_NOEXIST);
		s = bpf_map_lookup_elem(&strangers, &tgid);
	}
	if (s)
		__sync_fetch_and_add(&s->spent_ns[calls], ns);
}

/*
 * Whether the process itself names the function where this probe is: at named, in its context or queue pair. A probe is on
 * a file, and another process may have given the functions there other names than they have.
 */
static __always_inline bool is_named(__u64 cookie, __u64 ip, __u64 table)
{
	__u64 function;

	return !bpf_probe_read_user(&function, sizeof(function), (void *)(table + COOKIE_NAMED(cookie))) &&
	       function == ip - COOKIE_SKIP(cookie);
}

/* Reads the struct ibv_qp of a call, and finds its context: none for processes that nobody watches. */
static __always_inline struct context_stat *context_of(__u64 qp, struct user_qp *user, struct context_key *key)
{
	if (bpf_probe_read_user(user, sizeof(*user), (void *)qp))
		return 0;
	key->context = user->context;
	key->tgid = current_tgid();
	key->pad = 0;
	return bpf_map_lookup_elem(&contexts, key);
}

#endif
