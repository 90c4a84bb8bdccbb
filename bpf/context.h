/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * State that the probes share: verbs contexts of processes, calls of threads, and CPU time that probes take from
 * processes.
 */
#ifndef ACCELSCOPE_CONTEXT_H
#define ACCELSCOPE_CONTEXT_H

#include "datapath.h"
#include "owner.h"
#include "libibverbs.h"
#include "queues.h"
#include "stack.h"

/* User space sets the sizes of contexts, open_contexts, queues and latencies. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct context_key);
	__type(value, struct context_stat);
} contexts SEC(".maps");

/* Counts a loss of bytes of a context. */
static __always_inline void lose_of(struct context_stat *stat, __u32 why)
{
	lose(why);
	__sync_fetch_and_add(&stat->lost, 1);
}

static __noinline int lose_call(const struct context_key *key, __u32 why)
{
	struct context_stat *stat = bpf_map_lookup_elem(&contexts, key);

	if (stat)
		lose_of(stat, why);
	else
		lose(why);
	return 0;
}

/* Room for 2,300 events: a large job causes two for each context, within seconds. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 131072);
} path_events SEC(".maps");

__u32 last_number; /* of a context */

/* The keys of open contexts, by the address of the struct ib_ucontext. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct context_key);
} open_contexts SEC(".maps");

/* CPU time of calls with contexts that are unknown, or whose counters were removed, by process. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct unknown_cost);
} unknown_costs SEC(".maps");

/* Queue pairs with sq_sig_all, where every work request gets a completion. By the address of the struct ib_qp. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, __u8);
} signal_all SEC(".maps");

/* The number of work requests, completions and list elements that are read per call. */
#define CALL_BOUND 16384

struct tally {
	__u64 posted[OPCODES];
	__u64 bytes[OPCODES];
};

struct call {
	__u64 sp; /* the stack pointer at the entry; 0: no call */
	__u64 object;
	__u64 list;
	__u64 bad;
	__u64 entry_ns;
	struct context_key key;
	__u32 qpn;
	__u8 chosen;
	__u8 unread;
	__u16 pad;
	__u32 receives; /* read at the entry of post_recv */
	__u32 pad2;
};

/* The parts of a completion that its process read. BYTES_COUNTED: its bytes are counted, or it has no bytes. */
#define READ_OPCODE (1 << 0)
#define READ_BYTE_LEN (1 << 1)
#define READ_QP_NUM (1 << 2)
#define BYTES_COUNTED (1 << 3)

/* The completion that ibv_start_poll or ibv_next_poll found last. */
struct found {
	__u64 cq; /* address of its struct ibv_cq_ex; 0: nothing was found */
	struct context_key key;
	__u64 wr_id;
	__u64 ns;
	__u32 status;
	__u32 opcode;
	__u32 byte_len;
	__u32 qpn;
	__u32 generation; /* of its context */
	__u8 parts;       /* READ_*, BYTES_COUNTED */
	__u8 matched;
	__u8 pad[2];
};

struct found_call {
	__u64 sp;
	__u64 cq;
	__u64 ip;
};

struct thread {
	struct call send, receive;
	struct tally tally; /* of send */
	__u32 from, to;     /* positions in the ring of the queue pair */
	__u32 left;
	__u32 pad;

	/* poll_cq */
	__u64 poll_sp;
	__u64 poll_cq;
	__u64 poll_list;
	__u64 poll_ip;
	__u64 poll_entry_ns;
	/* Calls of this context that its counters lack. */
	struct context_key idle;
	__u64 idle_ns;
	__u64 idle_hits;

	struct found found;
	struct found_call poll_ex, read; /* start_poll or next_poll; a call that returns a part of found */

	__u8 creates_signal_all; /* ib_create_qp_user was called with IB_SIGNAL_ALL_WR */
	__u8 unused[7];
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct thread);
} threads SEC(".maps");

/*
 * While a thread is preempted in an operation on task storage, other threads on that CPU cannot get new task
 * storage. From Linux 6.2 on, the kernel counts these operations per CPU; before, existing storage is not found
 * either. A thread without storage then uses an entry of an LRU map under its number, until it gets storage.
 * crowded is 1 on these kernels.
 */
const volatile __u8 crowded;

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, struct thread);
} crowded_threads SEC(".maps");

static const struct thread no_call;

static const struct context_stat zero_stat;

/* Contexts are counted from the start. Otherwise user space chooses them ("control"). */
const volatile __u8 choose_all = 1;

static __always_inline void remove_context(const struct context_key *key, const struct context_stat *stat)
{
	__u64 owner = stat->owner, ucontext = stat->ucontext;

	if (bpf_map_delete_elem(&contexts, key))
		return;
	count_entries(owner, CONTEXTS_OF_OWNER, -1);
	if (!key->number)
		bpf_map_delete_elem(&open_contexts, &ucontext);
}

/*
 * Adds a context if there is room: a process can make up any number of context addresses. If threads add the same
 * context, only one counts it. User space corrects the numbers of contexts each second.
 */
static __always_inline struct context_stat *add_context(const struct context_key *key, __u64 cgroup, __u64 owner,
							__u32 device, __u64 ucontext)
{
	struct context_stat *stat = 0;

	if (!has_share(owner, CONTEXTS_OF_OWNER)) {
		if (!bpf_map_update_elem(&contexts, key, &zero_stat, BPF_NOEXIST))
			count_entries(owner, CONTEXTS_OF_OWNER, 1);
		stat = bpf_map_lookup_elem(&contexts, key);
	}
	if (!stat) {
		lose(lost_by_share(owner, CONTEXTS_OF_OWNER) ? PATH_LOSS_CONTEXTS_SHARE : PATH_LOSS_CONTEXTS_FULL);
		return 0;
	}
	stat->owner = owner;
	stat->number = __sync_fetch_and_add(&last_number, 1) + 1;
	stat->cgroup = cgroup;
	stat->device = device;
	stat->ucontext = ucontext;
	bpf_map_update_elem(&open_contexts, &ucontext, key, BPF_ANY);
	return stat;
}

/* A context was closed, or another context is open at its address. The key of its counters gets its number. */
static __noinline int close_context(struct context_key *key)
{
	struct context_stat *stat = bpf_map_lookup_elem(&contexts, key);
	struct context_key closed = *key;

	if (!stat)
		return 0;
	closed.number = stat->number;
	if (bpf_map_update_elem(&contexts, &closed, stat, BPF_NOEXIST))
		lose(PATH_LOSS_CONTEXTS_FULL);
	else
		count_entries(stat->owner, CONTEXTS_OF_OWNER, 1);
	remove_context(key, stat);
	return 0;
}

static __always_inline __u32 current_tgid(void)
{
	return bpf_get_current_pid_tgid() >> 32;
}

/* The cost of a trap at this probe for the process, in ns. */
static __always_inline __u64 trap_ns(void *ctx)
{
	return COOKIE_TRAP_NS(bpf_get_attach_cookie(ctx));
}

/* The entry of this thread in a map of crowded threads. If zero is not NULL, a missing entry is added. */
static __always_inline void *crowded_entry(void *map, const void *zero)
{
	__u32 tid = bpf_get_current_pid_tgid();
	void *found;

	if (!crowded)
		return 0;
	found = bpf_map_lookup_elem(map, &tid);
	if (found || !zero)
		return found;
	bpf_map_update_elem(map, &tid, zero, BPF_NOEXIST);
	return bpf_map_lookup_elem(map, &tid);
}

static __always_inline struct thread *this_thread(__u64 flags)
{
	struct thread *t = bpf_task_storage_get(&threads, bpf_get_current_task_btf(), 0, flags);

	return t ?: crowded_entry(&crowded_threads, flags ? &no_call : 0);
}

static __always_inline void spend(struct context_stat *stat, __u32 calls, __u64 hits, __u64 ns)
{
	__sync_fetch_and_add(&stat->hits[calls], hits);
	__sync_fetch_and_add(&stat->spent_ns[calls], ns);
}

/* cgroup 0: the cgroup of this process. */
static __noinline int add_unknown_cost(__u32 tgid, __u64 cgroup)
{
	struct unknown_cost none = {.cgroup = cgroup ?: current_cgroup()};

	bpf_map_update_elem(&unknown_costs, &tgid, &none, BPF_NOEXIST);
	return 0;
}

/* Adds the CPU time of calls of this process with an unknown context. */
static __always_inline void spend_unknown(__u32 tgid, __u32 calls, __u64 ns)
{
	struct unknown_cost *s = bpf_map_lookup_elem(&unknown_costs, &tgid);

	if (!s) {
		add_unknown_cost(tgid, 0);
		s = bpf_map_lookup_elem(&unknown_costs, &tgid);
	}
	if (s)
		__sync_fetch_and_add(&s->spent_ns[calls], ns);
}

/*
 * Reports whether the context or queue pair of the calling process (table) has the probed function as this
 * operation. A probe on a file hits all processes that map it, and the located process may have registered the
 * function as another operation.
 */
static __always_inline bool is_named(__u64 cookie, __u64 ip, __u64 table)
{
	__u64 function;

	return !bpf_probe_read_user(&function, sizeof(function), (void *)(table + COOKIE_NAMED(cookie))) &&
	       function == ip - COOKIE_SKIP(cookie);
}

/* Reads the struct ibv_qp of a call. Returns its context, or NULL if the context is unknown. */
static __always_inline struct context_stat *context_of(__u64 qp, struct user_qp *user, struct context_key *key)
{
	if (bpf_probe_read_user(user, sizeof(*user), (void *)qp))
		return 0;
	key->context = user->context;
	key->tgid = current_tgid();
	key->number = 0;
	return bpf_map_lookup_elem(&contexts, key);
}

#endif
