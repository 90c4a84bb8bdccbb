/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Keys and values of the data path: the ABI between datapath.bpf.c and
 * pkg/source/datapath.
 */
#ifndef ACCELSCOPE_DATAPATH_H
#define ACCELSCOPE_DATAPATH_H

#include "kernel.h"

/* Work requests by opcode: enum ibv_wr_opcode in its order, then what it may get, then receives. */
enum opcode {
	OPCODE_RDMA_WRITE,
	OPCODE_RDMA_WRITE_WITH_IMM,
	OPCODE_SEND,
	OPCODE_SEND_WITH_IMM,
	OPCODE_RDMA_READ,
	OPCODE_ATOMIC_CMP_AND_SWP,
	OPCODE_ATOMIC_FETCH_AND_ADD,
	OPCODE_LOCAL_INV,
	OPCODE_BIND_MW,
	OPCODE_SEND_WITH_INV,
	OPCODE_TSO,
	OPCODE_OTHER,
	OPCODE_RECV,
	OPCODES,
};

/* enum ibv_wc_status, 0 to 23; what is beyond is counted as the last. */
#define STATUSES 24

/* The calls that are probed together. */
enum calls {
	CALLS_POST, /* post_send, post_recv, ibv_wr_* */
	CALLS_POLL, /* poll_cq */
	CALLS,
};

/* What durations are kept for. */
enum completed {
	COMPLETED_WRITE,
	COMPLETED_READ,
	COMPLETED_SEND,
	COMPLETED_ATOMIC,
	COMPLETED,
};

/* Buckets of a duration: upper bounds 2^(i/4) * 2^-21 s up to 2^3 s, and the rest (model.FineHistogram). */
#define FINE_BUCKETS 98

/* A verbs context of a process: the address of its struct ibv_context. */
struct context_key {
	__u64 context;
	__u32 tgid;
	__u32 pad;
};

/* Sets of ibv_wr_* functions that are known of a context, and how often one more is told. */
#define SETS 4
#define SETS_TOLD 64

/* All that a process did through one verbs context since it was first seen. */
struct context_stat {
	__u64 cgroup;
	__u32 device; /* index of the ib_device */
	__u8 chosen;  /* whether to count: else only the cost is */
	__u8 ready;   /* its functions are probed (set by user space) */
	__u8 late;    /* a queue pair was ready to send before that */
	__u8 pad;
	__u64 late_ns;         /* when the first of them was, CLOCK_MONOTONIC */
	__u64 posted[OPCODES]; /* work requests that the provider took */
	__u64 bytes[OPCODES];
	__u64 received; /* completions of receives */
	__u64 received_bytes;
	__u64 errors[STATUSES];
	__u64 hits[CALLS];     /* calls that were seen */
	__u64 spent_ns[CALLS]; /* what all probes took of the process, the traps included */
	__u32 queues;          /* that posts made, whose numbers are the process's word */
	__u32 pad2;
	__u64 sets[SETS];
	__u32 told;
	__u32 generation; /* of the rings: one more after each gap in what was seen */
};

struct latency_key {
	struct context_key context;
	__u32 completed;
	__u32 pad;
};

struct latency {
	__u64 sum_ns;
	__u64 buckets[FINE_BUCKETS];
};

/* A queue pair of a verbs context. */
struct queue_key {
	__u64 context;
	__u32 tgid;
	__u32 qpn;
};

/* What probes took of a process by calls of contexts that are not known (yet): it pays all the same. */
struct stranger {
	__u64 spent_ns[CALLS];
};

/* Told to user space: a context that was opened (qp 0), or a queue pair whose functions are not known yet. */
struct path_event {
	struct context_key key;
	__u64 cgroup;
	__u64 qp; /* address of its struct ibv_qp */
	__u32 device;
	__u32 pad;
};

/* The argument of the program "control". */
enum order {
	CONTROL_MARK, /* sets chosen and ready of one context */
	CONTROL_GAP,  /* what is seen of one context is not continuous */
	CONTROL_REMOVE, /* forgets one context; without one, what else is known of a process, and says how much that was */
};

struct control_args {
	struct context_key key;
	__u32 what;
	__u8 chosen;
	__u8 ready;
	__u16 pad;
};

/*
 * The cookie of an attached probe: what one trap at its place costs, the opcode that a function of ibv_wr_* makes, how far
 * behind the function's entry it is, and where in the context or the queue pair the function is named.
 */
#define COOKIE_TRAP_NS(cookie) ((__u32)(cookie))
#define COOKIE_OPCODE(cookie) ((__u8)((cookie) >> 32))
#define COOKIE_SKIP(cookie) ((__u8)((cookie) >> 40))
#define COOKIE_NAMED(cookie) ((__u16)((cookie) >> 48))

/* Why something could not be recorded. */
enum path_loss {
	PATH_LOSS_CONTEXTS_FULL,  /* no room for one more verbs context */
	PATH_LOSS_UNREADABLE,     /* a work request or completion was not in memory */
	PATH_LOSS_CHAIN_CUT,      /* a chain or a list longer than is followed */
	PATH_LOSS_CALLS_FULL,     /* no room to remember a call until it returns */
	PATH_LOSS_LATENCIES_FULL, /* no room for one more histogram */
	PATH_LOSS_QUEUES_FULL,    /* no room for the work requests of one more queue pair */
	PATH_LOSS_EVENTS_FULL,    /* user space was not told of a context */
	PATH_LOSSES,
};

#endif
