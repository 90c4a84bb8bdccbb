/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* Keys and values of the maps of datapath.bpf.c, which pkg/source/datapath reads. */
#ifndef ACCELSCOPE_DATAPATH_H
#define ACCELSCOPE_DATAPATH_H

#include "kernel.h"

/* Opcodes of work requests: enum ibv_wr_opcode in its order, then opcodes that it lacks, then receives. */
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

/* enum ibv_wc_status, 0 to IBV_WC_TM_RNDV_INCOMPLETE. Later values are counted as the last value. */
#define STATUSES 24

enum calls {
	CALLS_POST, /* post_send, post_recv, ibv_wr_* */
	CALLS_POLL, /* poll_cq, ibv_start_poll, ibv_next_poll, ibv_wc_read_* */
	CALLS,
};

/* Classes of work requests with histograms of durations. */
enum completed {
	COMPLETED_WRITE,
	COMPLETED_READ,
	COMPLETED_SEND,
	COMPLETED_ATOMIC,
	COMPLETED,
};

/* Buckets of model.FineHistogram: upper bounds 2^(i/4) * 2^-21 s up to 2^3 s, then infinity. */
#define FINE_BUCKETS 98

/*
 * A verbs context of a process. context is the address of its struct ibv_context, which a later context may get;
 * number distinguishes them. In the key of an open context's counters the number is 0, because the probes do not know
 * it. The key of a closed context has its number, until user space has read the counters.
 */
struct context_key {
	__u64 context;
	__u32 tgid;
	__u32 number;
};

/* The number of remembered sets of ibv_wr_* functions per context, and of events for new sets. */
#define SETS 4
#define MAX_ANNOUNCED 64
/*
 * How often user space may ask for another announcement of a context, because it did not find a queue pair's
 * functions.
 */
#define MAX_REPEATED 32

/* The counters of a verbs context since it was first seen. */
struct context_stat {
	__u64 cgroup;
	__u64 owner;           /* the cgroup whose share of the map this entry takes (owner.h) */
	__u32 device;          /* index of the ib_device */
	__u8 chosen;           /* its calls are counted; otherwise only their cost */
	__u8 ready;            /* its functions are probed (user space sets it) */
	__u8 late;             /* a queue pair was ready to send before ready was set */
	__u8 ud;               /* has or had a queue pair for datagrams */
	__u64 late_ns;         /* when late was set, CLOCK_MONOTONIC */
	__u64 posted[OPCODES]; /* work requests that the provider accepted */
	__u64 bytes[OPCODES];
	__u64 received; /* completions of receives */
	__u64 received_bytes;
	__u64 errors[STATUSES];
	__u64 hits[CALLS];     /* calls that hit a probe */
	__u64 spent_ns[CALLS]; /* CPU time of probes, traps included */
	__u32 number;
	__u32 announced;
	__u64 ucontext; /* address of its struct ib_ucontext */
	__u64 sets[SETS];
	__u32 generation; /* increased after each gap in the probing of calls */
	__u32 unmatched;  /* completions without a read queue pair that are not known to be receives */
	__u32 ringless;   /* not 0: some queue pair has no ring */
	__u32 repeated;   /* CONTROL_REPEAT orders */
	__u64 qp;         /* address of the struct ibv_qp that changed its state last; 0: it was destroyed */
	__u64 unread;     /* completions where the process did not read what the number of bytes depends on */
	__u64 probed_ns; /* its calls are probed and counted since then, CLOCK_MONOTONIC (user space sets it with ready) */
	__u64 lost;      /* calls that could not be followed or read: their bytes are not counted */
	__u64 waited_ns; /* the time in which a posted receive was the oldest incomplete work request of a queue pair */
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

struct queue_key {
	__u64 context;
	__u32 tgid;
	__u32 qpn;
};

/* The output of the iterator "list_outstanding" for a queue pair. Times are of CLOCK_MONOTONIC. */
struct outstanding {
	struct queue_key key;
	__u64 since_ns;     /* work requests posted before this time may be missing */
	__u64 oldest_ns;    /* post time of the oldest incomplete signaled work request; 0: all are complete */
	__u64 completed_ns; /* the last completion of a signaled work request; 0: not seen */
	__u8 in_step;       /* the incomplete work requests are known */
	__u8 plain;         /* its completions are polled with poll_cq only */
	__u8 ahead;         /* its receives are posted ahead of their use, also to an SRQ */
	__u8 pad[5];
	__u64 receives_ns; /* all receives are known since then; 0: unknown */
	__u64 waiting_ns;  /* since when a receive has been the oldest incomplete work request; 0: none is */
	__u64 waited_ns;   /* the total of such times that have ended */
};

/* CPU time of probes in calls with contexts that are unknown, or not known any more. */
struct unknown_cost {
	__u64 cgroup; /* of the process when it was first seen */
	__u64 spent_ns[CALLS];
};

/* Sent to user space: a context was opened (qp 0), or a queue pair has unknown functions. */
struct path_event {
	struct context_key key;
	__u64 cgroup;
	__u64 owner; /* the cgroup whose share the context will take; 0 unless "existing" lists it */
	__u64 qp;    /* address of its struct ibv_qp */
	__u64 ucontext;
	__u32 device;
	__u32 pad;
};

/* The argument of the program "control". */
enum order {
	CONTROL_MARK, /* sets chosen, ready and probed_ns of a context */
	CONTROL_ADD,  /* adds and marks a context of a cgroup and device, if it is missing, and returns its number */
	CONTROL_GAP,  /* some calls of a context were not probed */
	CONTROL_REMOVE, /* removes a context, or (without a context) the entries of ended processes, and returns their number */
	CONTROL_REPEAT, /* announces the next queue pair of a context that changes its state; 2 after MAX_REPEATED times */
	CONTROL_RINGS, /* removes the rings of contexts that are gone, and corrects the number of rings of each owner */
};

struct control_args {
	struct context_key key;
	__u64 cgroup;
	__u64 owner;
	__u64 ucontext;
	__u64 probed_ns; /* 0: its functions are not probed */
	__u32 device;
	__u32 what;
	__u8 chosen;
	__u8 pad[7];
};

/*
 * The cookie of an attached probe: the cost of a trap in ns, the opcode of an ibv_wr_* function, the distance from
 * the function's entry, and the offset of the function's address in the context or queue pair.
 */
#define COOKIE_TRAP_NS(cookie) ((__u32)(cookie))
#define COOKIE_OPCODE(cookie) ((__u8)((cookie) >> 32))
#define COOKIE_SKIP(cookie) ((__u8)((cookie) >> 40))
#define COOKIE_NAMED(cookie) ((__u16)((cookie) >> 48))

enum path_map {
	CONTEXTS_OF_OWNER,
	QUEUES_OF_OWNER,
};

/*
 * Why something could not be recorded. FULL: the map is full. SHARE: the owner used up its share of the map
 * (owner.h).
 */
enum path_loss {
	PATH_LOSS_CONTEXTS_FULL,  /* a verbs context */
	PATH_LOSS_CONTEXTS_SHARE, /* a verbs context */
	PATH_LOSS_UNREADABLE,     /* a work request or completion could not be read */
	PATH_LOSS_CHAIN_CUT,      /* a chain or list has more elements than are read */
	PATH_LOSS_CALLS_FULL,
	PATH_LOSS_LATENCIES_FULL, /* a histogram */
	PATH_LOSS_QUEUES_FULL,    /* the work requests of a queue pair */
	PATH_LOSS_QUEUES_SHARE,   /* the work requests of a queue pair */
	PATH_LOSS_EVENTS_FULL,    /* an event */
	PATH_LOSSES,
};

#endif
