// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Counts what processes post to and poll from their queue pairs and completion
 * queues, by uprobes on the functions of their providers.
 *
 * What a call did is known when it returns. A call that has an entry and no
 * return of its own is forgotten: a return belongs to an entry when it is at the
 * same place of the same stack, so neither nested calls nor returns that were
 * missed are taken for another.
 */
#include "datapath.h"
#include "cgroup.h"
#include "queues.h"

char LICENSE[] SEC("license") = "GPL";

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

/* So that the types reach user space. */
const enum opcode *unused_opcode __attribute__((unused));
const enum calls *unused_calls __attribute__((unused));
const enum completed *unused_completed __attribute__((unused));
const enum path_loss *unused_path_loss __attribute__((unused));
const enum order *unused_order __attribute__((unused));
const struct control_args *unused_control_args __attribute__((unused));
const struct path_event *unused_path_event __attribute__((unused));

/* What libibverbs has in memory: offsets are its ABI since 2016 (64-bit). */

/* struct ibv_qp */
struct user_qp {
	__u64 context;
	__u8 skipped[44];
	__u32 qp_num;
	__u32 state;
	__u32 qp_type;
};

/* struct ibv_send_wr */
struct user_wr {
	__u64 wr_id;
	__u64 next;
	__u64 sg_list;
	__s32 num_sge;
	__u32 opcode;
	__u32 send_flags;
	__u32 pad;
};
#define WR_TSO_HDR_SZ 88
#define SEND_SIGNALED 2

/* struct ibv_sge, with the length of a struct ibv_data_buf in the place of length and lkey */
struct user_sge {
	__u64 addr;
	union {
		__u32 length;
		__u64 wide;
	};
};

/* struct ibv_wc */
struct user_wc {
	__u64 wr_id;
	__u32 status;
	__u32 opcode;
	__u32 vendor_err;
	__u32 byte_len;
	__u32 imm_data;
	__u32 qp_num;
	__u32 src_qp;
	__u32 wc_flags;
};
#define WC_SIZE 48
#define WC_GRH 1
#define GRH_BYTES 40

/* struct ibv_qp_ex: wr_id and wr_flags, and functions of each kind */
#define QP_EX_WR_ID 168
#define QP_EX_FUNCTIONS 184
#define QP_EX_FUNCTIONS_COUNT 20

struct user_qp_ex_wr {
	__u64 wr_id;
	__u32 wr_flags;
	__u32 pad;
};

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

/* Empty polls that are booked together. */
#define IDLE_HITS 32

/* Work requests between ibv_wr_start and ibv_wr_complete. */
#define SIGNALS 32
struct signal {
	__u64 wr_id;
	__u64 completed;
};

struct batch {
	struct call call; /* object is the ibv_qp_ex; list whether it has begun; sp that of ibv_wr_complete */
	struct tally tally;
	__u32 opcode;
	__u32 signals;
	__u8 cut;
	__u8 all;
	__u8 pad[2];
	__u32 from, to;
	struct signal signal[SIGNALS];
};

/* A thread may fill two queue pairs at a time; the use of more is unheard of. */
struct batches {
	struct batch of[2];
	__u32 next;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct batches);
} posting SEC(".maps");

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

static __always_inline void commit(struct context_stat *stat, struct tally *t)
{
	for (int i = 0; i < OPCODES; i++) {
		if (!t->posted[i])
			continue;
		__sync_fetch_and_add(&stat->posted[i], t->posted[i]);
		if (t->bytes[i])
			__sync_fetch_and_add(&stat->bytes[i], t->bytes[i]);
	}
}

/* The class of durations of an opcode; COMPLETED: none. */
static __always_inline __u32 class_of(__u32 opcode)
{
	switch (opcode) {
	case OPCODE_RDMA_WRITE:
	case OPCODE_RDMA_WRITE_WITH_IMM:
		return COMPLETED_WRITE;
	case OPCODE_RDMA_READ:
		return COMPLETED_READ;
	case OPCODE_SEND:
	case OPCODE_SEND_WITH_IMM:
	case OPCODE_SEND_WITH_INV:
		return COMPLETED_SEND;
	case OPCODE_ATOMIC_CMP_AND_SWP:
	case OPCODE_ATOMIC_FETCH_AND_ADD:
		return COMPLETED_ATOMIC;
	}
	return COMPLETED;
}

/* Following lists in the memory of a process. */
struct walk {
	__u64 at;   /* what is next */
	__u64 stop; /* where to stop, or 0 */
	struct tally *tally;
	struct queue *queue;
	__u64 now;
	__u64 bytes;
	__u32 *left; /* how much may still be read; not here, where the verifier would count with it */
	__u32 signaled;
	__u32 count;
	__u8 lost; /* 1 + the reason for which the walk ended early */
	__u8 all;
	__u8 wide;
	__u8 done;
	__u8 some;
};

static long sum_sge(__u32 i, struct walk *w)
{
	struct user_sge sge;

	if (bpf_probe_read_user(&sge, sizeof(sge), (void *)(w->at + i * sizeof(sge)))) {
		w->lost = 1 + PATH_LOSS_UNREADABLE;
		return 1;
	}
	w->bytes += w->wide ? (__u32)sge.wide : sge.length;
	return 0;
}

/* The bytes of a scatter/gather list. */
static __always_inline __u64 list_bytes(__u64 list, __u32 n, bool wide, __u32 *left, __u8 *lost)
{
	struct walk w = {.at = list, .wide = wide};

	if (n > *left) {
		*lost = 1 + PATH_LOSS_CHAIN_CUT;
		n = *left;
	}
	*left -= n;
	if (n == 1)
		sum_sge(0, &w);
	else if (n)
		bpf_loop(n, sum_sge, &w, 0);
	if (w.lost)
		*lost = w.lost;
	return w.bytes;
}

static long walk_send(__u32 i, struct walk *w)
{
	struct tally *tally = w->tally;
	struct user_wr wr;
	__u16 header = 0;
	__u64 bytes = 0;
	__u32 op;

	if (!w->at || w->at == w->stop) {
		w->done = 1;
		return 1;
	}
	if (!*w->left) {
		w->lost = 1 + PATH_LOSS_CHAIN_CUT;
		return 1;
	}
	*w->left -= 1;
	if (bpf_probe_read_user(&wr, sizeof(wr), (void *)w->at)) {
		w->lost = 1 + PATH_LOSS_UNREADABLE;
		return 1;
	}
	op = wr.opcode < OPCODE_OTHER ? wr.opcode : OPCODE_OTHER;
	/* These have no list, and what is in its place means something else. */
	if (op != OPCODE_LOCAL_INV && op != OPCODE_BIND_MW && wr.num_sge > 0)
		bytes = list_bytes(wr.sg_list, wr.num_sge, false, w->left, &w->lost);
	if (op == OPCODE_TSO && !bpf_probe_read_user(&header, sizeof(header), (void *)(w->at + WR_TSO_HDR_SZ)))
		bytes += header;
	if (tally) {
		tally->posted[op]++;
		tally->bytes[op] += bytes;
	}
	if (w->all || wr.send_flags & SEND_SIGNALED) {
		w->signaled++;
		if (w->queue)
			push(w->queue, wr.wr_id, class_of(op), w->now);
	}
	w->at = wr.next;
	return w->lost != 0;
}

static long walk_receive(__u32 i, struct walk *w)
{
	if (!w->at || w->at == w->stop) {
		w->done = 1;
		return 1;
	}
	/* struct ibv_recv_wr: next is where that of a send is. */
	if (bpf_probe_read_user(&w->bytes, sizeof(w->bytes), (void *)(w->at + 8))) {
		w->lost = 1 + PATH_LOSS_UNREADABLE;
		return 1;
	}
	w->at = w->bytes;
	w->count++;
	w->some = 1;
	return 0;
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

/*
 * The chain is walked at the entry: it must be complete by then, and a
 * completion may be polled by another thread before the call returns.
 */
SEC("uprobe/post_send")
int post_send(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	__u64 now = bpf_ktime_get_ns();
	struct walk w = {.now = now};
	struct context_stat *stat;
	struct context_key key;
	struct user_qp qp;
	struct queue *q;
	struct thread *t;

	stat = context_of(PT_REGS_PARM1(ctx), &qp, &key);
	if (!stat || !is_named(bpf_get_attach_cookie(ctx), PT_REGS_IP(ctx), key.context)) {
		spend_unknown(CALLS_POST, 2 * trap_ns(ctx)); /* the return, too */
		return 0;
	}
	t = this_thread(BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!t) {
		lose(PATH_LOSS_CALLS_FULL);
		spend(stat, CALLS_POST, 1, trap_ns(ctx));
		return 0;
	}
	t->send.sp = PT_REGS_SP(ctx);
	t->send.object = PT_REGS_PARM1(ctx);
	t->send.list = PT_REGS_PARM2(ctx);
	t->send.bad = PT_REGS_PARM3(ctx);
	t->send.key = key;
	t->send.qpn = qp.qp_num;
	t->send.chosen = stat->chosen;
	t->send.unread = 0;
	if (stat->chosen) {
		__builtin_memset(&t->tally, 0, sizeof(t->tally));
		q = make_queue(&key, qp.qp_num, qp.qp_type, stat);
		w.at = t->send.list;
		w.tally = &t->tally;
		w.queue = q;
		w.left = &t->left;
		t->left = CALL_BOUND;
		if (q) {
			check_generation(q, stat);
			w.all = q->all;
			t->from = q->tail;
		}
		bpf_loop(CALL_BOUND + 1, walk_send, &w, 0);
		t->to = t->from + w.signaled;
		if (w.lost) {
			/* It will be when the provider has read it. */
			if (w.lost == 1 + PATH_LOSS_UNREADABLE)
				t->send.unread = 1;
			else
				lose(PATH_LOSS_CHAIN_CUT);
			if (q)
				out_of_step(q);
		}
	}
	t->send.owed_ns = trap_ns(ctx) + bpf_ktime_get_ns() - now;
	return 0;
}

/* Walks once more, when something went wrong: what was not read, and what was not accepted. */
static __noinline int walk_again(struct thread *t, int ret)
{
	struct queue *q;
	struct walk w = {};

	if (!t)
		return 0;
	w.left = &t->left;
	t->left = CALL_BOUND;
	q = queue_of(&t->send.key, t->send.qpn);
	w.at = t->send.list;
	w.tally = &t->tally;
	w.all = q && q->all;
	__builtin_memset(&t->tally, 0, sizeof(t->tally));
	if (ret && (bpf_probe_read_user(&w.stop, sizeof(w.stop), (void *)t->send.bad) || !w.stop)) {
		lose(PATH_LOSS_UNREADABLE);
		w.at = 0;
	}
	bpf_loop(CALL_BOUND + 1, walk_send, &w, 0);
	if (w.lost)
		lose(w.lost == 1 + PATH_LOSS_CHAIN_CUT ? PATH_LOSS_CHAIN_CUT : PATH_LOSS_UNREADABLE);
	if (ret && (!w.stop || w.at != w.stop)) {
		/* It says that one was refused that is not in the chain: then nobody knows which were not. */
		__builtin_memset(&t->tally, 0, sizeof(t->tally));
		if (q)
			out_of_step(q);
	} else if (q && ret) {
		unpush(q, t->from, t->to, w.signaled);
	}
	return 0;
}

SEC("uretprobe/post_send")
int post_send_return(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct thread *t = this_thread(0);
	struct context_stat *stat;
	int ret = PT_REGS_RC(ctx);
	__u64 now;

	if (!t || t->send.sp != SP_AT_RETURN(ctx))
		return 0;
	now = bpf_ktime_get_ns();
	t->send.sp = 0;
	stat = bpf_map_lookup_elem(&contexts, &t->send.key);
	if (!stat)
		return 0;
	if (t->send.chosen) {
		if (ret || t->send.unread)
			walk_again(t, ret);
		commit(stat, &t->tally);
	}
	spend(stat, CALLS_POST, 1, t->send.owed_ns + trap_ns(ctx) + bpf_ktime_get_ns() - now);
	return 0;
}

SEC("uprobe/post_recv")
int post_recv(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	__u64 now = bpf_ktime_get_ns();
	struct context_stat *stat;
	struct context_key key;
	struct user_qp qp;
	struct thread *t;

	stat = context_of(PT_REGS_PARM1(ctx), &qp, &key);
	if (!stat || !is_named(bpf_get_attach_cookie(ctx), PT_REGS_IP(ctx), key.context)) {
		spend_unknown(CALLS_POST, 2 * trap_ns(ctx)); /* the return, too */
		return 0;
	}
	t = this_thread(BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!t) {
		lose(PATH_LOSS_CALLS_FULL);
		spend(stat, CALLS_POST, 1, trap_ns(ctx));
		return 0;
	}
	t->receive.sp = PT_REGS_SP(ctx);
	t->receive.list = PT_REGS_PARM2(ctx);
	t->receive.bad = PT_REGS_PARM3(ctx);
	t->receive.key = key;
	t->receive.chosen = stat->chosen;
	/* The completion of a datagram does not tell that it is one. */
	if (stat->chosen && qp.qp_type == QPT_UD)
		make_queue(&key, qp.qp_num, qp.qp_type, stat);
	t->receive.owed_ns = trap_ns(ctx) + bpf_ktime_get_ns() - now;
	return 0;
}

SEC("uretprobe/post_recv")
int post_recv_return(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct thread *t = this_thread(0);
	struct context_stat *stat;
	int ret = PT_REGS_RC(ctx);
	struct walk w = {};
	__u64 now;

	if (!t || t->receive.sp != SP_AT_RETURN(ctx))
		return 0;
	now = bpf_ktime_get_ns();
	t->receive.sp = 0;
	stat = bpf_map_lookup_elem(&contexts, &t->receive.key);
	if (!stat)
		return 0;
	if (t->receive.chosen) {
		w.at = t->receive.list;
		if (ret && (bpf_probe_read_user(&w.stop, sizeof(w.stop), (void *)t->receive.bad) || !w.stop)) {
			w.lost = 1 + PATH_LOSS_UNREADABLE;
			w.at = 0;
		}
		bpf_loop(CALL_BOUND + 1, walk_receive, &w, 0);
		if (w.lost)
			lose(PATH_LOSS_UNREADABLE);
		else if (!w.done)
			lose(PATH_LOSS_CHAIN_CUT);
		/* As of sends, whose refusal must be of the chain. */
		if (w.some && (!ret || w.at == w.stop))
			__sync_fetch_and_add(&stat->posted[OPCODE_RECV], w.count);
	}
	spend(stat, CALLS_POST, 1, t->receive.owed_ns + trap_ns(ctx) + bpf_ktime_get_ns() - now);
	return 0;
}

/*
 * Polling finds nothing nearly always: neither the clock nor the maps are asked
 * then, and the cost of both programs is part of what a trap is calibrated to.
 */
SEC("uprobe/poll_cq")
int poll_cq(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct context_key key = {.tgid = current_tgid()};
	struct thread *t = this_thread(0);

	if (!t) {
		/* Only who is known costs memory. */
		if (bpf_probe_read_user(&key.context, sizeof(key.context), (void *)PT_REGS_PARM1(ctx)) ||
		    !bpf_map_lookup_elem(&contexts, &key)) {
			spend_unknown(CALLS_POLL, trap_ns(ctx));
			return 0;
		}
		t = this_thread(BPF_LOCAL_STORAGE_GET_F_CREATE);
		if (!t) {
			lose(PATH_LOSS_CALLS_FULL);
			return 0;
		}
	}
	t->poll_sp = PT_REGS_SP(ctx);
	t->poll_cq = PT_REGS_PARM1(ctx);
	t->poll_list = PT_REGS_PARM3(ctx);
	t->poll_ip = PT_REGS_IP(ctx);
	t->poll_owed_ns = trap_ns(ctx);
	return 0;
}

struct polled {
	__u64 list;
	struct context_stat *stat;
	__u64 now;
	struct context_key key;
	__u64 received;
	__u64 received_bytes;
	__u8 lost;
	__u8 some; /* was received: no branch may depend on a sum, which the verifier would count out */
};

static long walk_completion(__u32 i, struct polled *p)
{
	struct context_stat *stat = p->stat;
	struct posted posted;
	struct user_wc wc;
	struct queue *q;

	if (bpf_probe_read_user(&wc, sizeof(wc), (void *)(p->list + (__u64)i * WC_SIZE))) {
		p->lost = 1;
		return 1;
	}
	if (wc.status) {
		__u32 status = wc.status < STATUSES ? wc.status : STATUSES - 1;

		__sync_fetch_and_add(&stat->errors[status], 1);
		/* From here on, all are completed: those, too, that did not ask for it. */
		q = queue_of(&p->key, wc.qp_num);
		if (q) {
			out_of_step(q);
			q->same = 1;
		}
		return 0;
	}
	switch (wc.opcode) {
	case 128: /* RECV */
	case 129: /* RECV_RDMA_WITH_IMM */
	case 133: /* TM_RECV */
	case 134: /* TM_NO_TAG */
		p->received++;
		p->some = 1;
		if (wc.wc_flags & WC_GRH && wc.byte_len >= GRH_BYTES) {
			q = queue_of(&p->key, wc.qp_num);
			if (q && q->ud)
				wc.byte_len -= GRH_BYTES;
		}
		p->received_bytes += wc.byte_len;
		return 0;
	}
	if (wc.opcode & 128)
		return 0;
	q = queue_of(&p->key, wc.qp_num);
	if (!q)
		return 0;
	check_generation(q, stat);
	if (match(q, wc.wr_id, &posted) && posted.completed < COMPLETED && p->now > posted.ns)
		book(&p->key, posted.completed, p->now - posted.ns);
	return 0;
}

static __always_inline void flush_idle(struct thread *t)
{
	struct context_stat *stat;

	if (!t->idle_hits)
		return;
	stat = bpf_map_lookup_elem(&contexts, &t->idle);
	if (stat)
		spend(stat, CALLS_POLL, t->idle_hits, t->idle_ns);
	else
		spend_unknown(CALLS_POLL, t->idle_ns);
	t->idle_hits = 0;
	t->idle_ns = 0;
}

SEC("uretprobe/poll_cq")
int poll_cq_return(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct thread *t = this_thread(0);
	int n = PT_REGS_RC(ctx);
	struct polled p = {};
	__u64 context;

	if (!t) {
		spend_unknown(CALLS_POLL, trap_ns(ctx));
		return 0;
	}
	if (t->poll_sp != SP_AT_RETURN(ctx))
		return 0;
	t->poll_sp = 0;
	if (bpf_probe_read_user(&context, sizeof(context), (void *)t->poll_cq))
		return 0;
	if (context != t->idle.context) {
		flush_idle(t);
		t->idle.context = context;
		t->idle.tgid = current_tgid();
	}
	t->idle_hits++;
	t->idle_ns += t->poll_owed_ns + trap_ns(ctx);
	if (n <= 0) {
		if (t->idle_hits >= IDLE_HITS)
			flush_idle(t);
		return 0;
	}
	p.now = bpf_ktime_get_ns();
	p.key = t->idle;
	p.list = t->poll_list;
	p.stat = bpf_map_lookup_elem(&contexts, &p.key);
	if (!p.stat || !is_named(bpf_get_attach_cookie(ctx), t->poll_ip, context)) {
		spend_unknown(CALLS_POLL, t->idle_ns);
		t->idle_hits = 0;
		t->idle_ns = 0;
		return 0;
	}
	if (p.stat->chosen) {
		if (n > CALL_BOUND) {
			lose(PATH_LOSS_CHAIN_CUT);
			n = CALL_BOUND;
		}
		if (n == 1)
			walk_completion(0, &p);
		else
			bpf_loop(n, walk_completion, &p, 0);
		if (p.lost)
			lose(PATH_LOSS_UNREADABLE);
		if (p.some) {
			__sync_fetch_and_add(&p.stat->received, p.received);
			__sync_fetch_and_add(&p.stat->received_bytes, p.received_bytes);
		}
	}
	spend(p.stat, CALLS_POLL, t->idle_hits, t->idle_ns + bpf_ktime_get_ns() - p.now);
	t->idle_hits = 0;
	t->idle_ns = 0;
	return 0;
}

/* What the programs of poll_cq do when there is nothing, so that this is what a trap is found to cost. */
SEC("uprobe/calibrate")
int calibrate(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct thread *t = this_thread(BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!t)
		return 0;
	t->idle_sp = PT_REGS_SP(ctx);
	t->idle_list = PT_REGS_PARM3(ctx);
	t->poll_owed_ns = trap_ns(ctx);
	return 0;
}

SEC("uretprobe/calibrate")
int calibrate_return(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct thread *t = this_thread(0);
	__u64 value;

	if (!t)
		return 0;
	t->idle_sp = SP_AT_RETURN(ctx);
	bpf_probe_read_user(&value, sizeof(value), (void *)PT_REGS_SP(ctx));
	t->idle_list = value + trap_ns(ctx);
	return 0;
}

/* ibv_wr_*: what one thread puts together for one queue pair. */

static __always_inline struct batches *this_posting(__u64 flags)
{
	return bpf_task_storage_get(&posting, bpf_get_current_task_btf(), 0, flags);
}

/* The batch that is open for a queue pair. */
static __always_inline struct batch *batch_of(__u64 qp)
{
	struct batches *b = this_posting(0);

	if (!b)
		return 0;
	for (int i = 0; i < 2; i++)
		if (b->of[i].call.list && b->of[i].call.object == qp)
			return &b->of[i];
	return 0;
}

/* That of a call, if the queue pair names the function so. */
static __always_inline struct batch *called(struct pt_regs *ctx)
{
	struct batch *b = batch_of(PT_REGS_PARM1(ctx));

	return b && is_named(bpf_get_attach_cookie(ctx), PT_REGS_IP(ctx), b->call.object) ? b : 0;
}

SEC("uprobe/wr_start")
int wr_start(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	__u64 now = bpf_ktime_get_ns();
	__u64 address = PT_REGS_PARM1(ctx);
	struct context_stat *stat;
	struct context_key key;
	struct batches *both;
	struct user_qp qp;
	struct batch *b;
	struct queue *q;

	stat = context_of(address, &qp, &key);
	if (!stat || !is_named(bpf_get_attach_cookie(ctx), PT_REGS_IP(ctx), address)) {
		spend_unknown(CALLS_POST, trap_ns(ctx));
		return 0;
	}
	both = this_posting(BPF_LOCAL_STORAGE_GET_F_CREATE);
	if (!both) {
		lose(PATH_LOSS_CALLS_FULL);
		spend(stat, CALLS_POST, 1, trap_ns(ctx));
		return 0;
	}
	b = batch_of(address);
	if (!b) {
		b = &both->of[both->next++ & 1];
		/* One was never completed, or its end not seen; or this thread fills three. */
		if (b->call.list)
			lose(PATH_LOSS_CALLS_FULL);
	}
	b->call.object = address;
	b->call.list = 1;
	b->call.sp = 0;
	b->call.key = key;
	b->call.qpn = qp.qp_num;
	b->call.chosen = stat->chosen;
	b->signals = 0;
	b->cut = 0;
	b->opcode = OPCODE_OTHER;
	if (stat->chosen) {
		__builtin_memset(&b->tally, 0, sizeof(b->tally));
		q = make_queue(&key, qp.qp_num, qp.qp_type, stat);
		b->all = q && q->all;
	}
	b->call.owed_ns = trap_ns(ctx) + bpf_ktime_get_ns() - now;
	return 0;
}

/* All that begin a work request: the cookie tells which. */
SEC("uprobe/wr_build")
int wr_build(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	__u64 cookie = bpf_get_attach_cookie(ctx);
	struct batch *b = called(ctx);
	__u32 op = COOKIE_OPCODE(cookie), at;
	struct user_qp_ex_wr wr;
	__u64 now;

	if (!b)
		return 0;
	if (!b->call.chosen) {
		b->call.owed_ns += COOKIE_TRAP_NS(cookie);
		return 0;
	}
	now = bpf_ktime_get_ns();
	if (op > OPCODE_OTHER)
		op = OPCODE_OTHER;
	b->opcode = op;
	b->tally.posted[op]++;
	if (op == OPCODE_TSO)
		b->tally.bytes[op] += (__u16)PT_REGS_PARM3(ctx);
	if (bpf_probe_read_user(&wr, sizeof(wr), (void *)(b->call.object + QP_EX_WR_ID))) {
		b->cut = 1;
	} else if (b->all || wr.wr_flags & SEND_SIGNALED) {
		at = b->signals;
		if (at < SIGNALS) {
			b->signal[at].wr_id = wr.wr_id;
			b->signal[at].completed = class_of(op);
			b->signals = at + 1;
		} else {
			b->cut = 1;
		}
	}
	b->call.owed_ns += COOKIE_TRAP_NS(cookie) + bpf_ktime_get_ns() - now;
	return 0;
}

static __always_inline int add_bytes(void *ctx, struct batch *b, __u64 bytes)
{
	__u32 op = b->opcode;

	if (op < OPCODES && b->call.chosen)
		b->tally.bytes[op] += bytes;
	b->call.owed_ns += trap_ns(ctx);
	return 0;
}

SEC("uprobe/wr_set_sge")
int wr_set_sge(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct batch *b = called(ctx);

	return b ? add_bytes(ctx, b, (__u32)PT_REGS_PARM4(ctx)) : 0;
}

SEC("uprobe/wr_set_inline_data")
int wr_set_inline_data(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct batch *b = called(ctx);

	return b ? add_bytes(ctx, b, (__u32)PT_REGS_PARM3(ctx)) : 0;
}

static __always_inline int add_list(struct pt_regs *ctx, bool wide)
{
	struct batch *b = called(ctx);
	__u64 now, bytes, n = PT_REGS_PARM2(ctx);
	__u32 left = CALL_BOUND;
	__u8 lost = 0;

	if (!b)
		return 0;
	if (!b->call.chosen)
		return add_bytes(ctx, b, 0);
	now = bpf_ktime_get_ns();
	bytes = list_bytes(PT_REGS_PARM3(ctx), n > CALL_BOUND ? CALL_BOUND + 1 : n, wide, &left, &lost);
	if (lost)
		lose(lost == 1 + PATH_LOSS_CHAIN_CUT ? PATH_LOSS_CHAIN_CUT : PATH_LOSS_UNREADABLE);
	b->call.owed_ns += bpf_ktime_get_ns() - now;
	return add_bytes(ctx, b, bytes);
}

SEC("uprobe/wr_set_sge_list")
int wr_set_sge_list(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	return add_list(ctx, false);
}

SEC("uprobe/wr_set_inline_data_list")
int wr_set_inline_data_list(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	return add_list(ctx, true);
}

SEC("uprobe/wr_complete")
int wr_complete(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	__u64 now = bpf_ktime_get_ns();
	struct batch *b = called(ctx);
	struct context_stat *stat;
	struct queue *q;

	if (!b)
		return 0;
	b->call.sp = PT_REGS_SP(ctx);
	b->from = b->to = 0;
	if (b->call.chosen) {
		q = queue_of(&b->call.key, b->call.qpn);
		stat = bpf_map_lookup_elem(&contexts, &b->call.key);
		if (q && stat) {
			check_generation(q, stat);
			b->from = q->tail;
			for (int i = 0; i < SIGNALS; i++) {
				if (i >= b->signals)
					break;
				push(q, b->signal[i].wr_id, b->signal[i].completed, now);
			}
			b->to = b->from + b->signals;
			if (b->cut)
				out_of_step(q);
		}
	}
	b->call.owed_ns += trap_ns(ctx) + bpf_ktime_get_ns() - now;
	return 0;
}

SEC("uretprobe/wr_complete")
int wr_complete_return(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct batches *both = this_posting(0);
	__u64 sp = SP_AT_RETURN(ctx), now;
	struct context_stat *stat;
	struct batch *b = 0;
	struct queue *q;

	if (!both)
		return 0;
	for (int i = 0; i < 2; i++)
		if (both->of[i].call.list && both->of[i].call.sp == sp)
			b = &both->of[i];
	if (!b)
		return 0;
	now = bpf_ktime_get_ns();
	b->call.sp = 0;
	b->call.list = 0;
	stat = bpf_map_lookup_elem(&contexts, &b->call.key);
	if (!stat)
		return 0;
	if (b->call.chosen) {
		if ((int)PT_REGS_RC(ctx) == 0) {
			commit(stat, &b->tally);
		} else {
			/* All of it was refused. */
			q = queue_of(&b->call.key, b->call.qpn);
			if (q)
				unpush(q, b->from, b->to, 0);
		}
	}
	spend(stat, CALLS_POST, 1, b->call.owed_ns + trap_ns(ctx) + bpf_ktime_get_ns() - now);
	return 0;
}

SEC("uprobe/wr_abort")
int wr_abort(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct batch *b = called(ctx);
	struct context_stat *stat;

	if (!b)
		return 0;
	b->call.list = 0;
	stat = bpf_map_lookup_elem(&contexts, &b->call.key);
	if (stat)
		spend(stat, CALLS_POST, 1, b->call.owed_ns + trap_ns(ctx));
	return 0;
}

/* What the kernel knows: contexts that are opened, queue pairs that come and go. */

static __always_inline void tell(const struct context_key *key, __u64 cgroup, __u32 device, __u64 qp)
{
	struct path_event *e = bpf_ringbuf_reserve(&path_events, sizeof(*e), 0);

	if (!e) {
		lose(PATH_LOSS_EVENTS_FULL);
		return;
	}
	e->key = *key;
	e->cgroup = cgroup;
	e->qp = qp;
	e->device = device;
	e->pad = 0;
	bpf_ringbuf_submit(e, 0);
}

/* Tells the ibv_wr_* functions of a queue pair apart from those of others. */
static __always_inline __u64 set_of(__u64 qp)
{
	__u64 functions[QP_EX_FUNCTIONS_COUNT] = {};
	__u64 set = 1;

	/* Those of a queue pair that has none are whatever is there: user space finds out. */
	if (bpf_probe_read_user(functions, sizeof(functions), (void *)(qp + QP_EX_FUNCTIONS)))
		return set;
	for (int i = 0; i < QP_EX_FUNCTIONS_COUNT; i++)
		set = set * 31 + functions[i];
	return set;
}

static __always_inline void announce(struct context_stat *stat, const struct context_key *key, __u64 qp)
{
	__u64 set = set_of(qp);

	for (int i = 0; i < SETS; i++)
		if (stat->sets[i] == set)
			return;
	if (stat->told >= SETS_TOLD)
		return;
	stat->sets[stat->told % SETS] = set;
	stat->told++;
	tell(key, stat->cgroup, stat->device, qp);
}

/* enum ib_qp_attr_mask: IB_QP_STATE; enum ib_qp_state: IB_QPS_RTS */
#define QP_STATE 1
#define RTS 3

/* Counts one more context of a cgroup: the address of a context is the word of a process, which may have many. */
static __always_inline bool make_room(__u64 cgroup)
{
	__u32 none = 0, *n = bpf_map_lookup_elem(&cgroup_contexts, &cgroup);

	if (!n) {
		bpf_map_update_elem(&cgroup_contexts, &cgroup, &none, BPF_NOEXIST);
		n = bpf_map_lookup_elem(&cgroup_contexts, &cgroup);
	}
	if (!n || *n >= CONTEXTS_OF_CGROUP)
		return false;
	__sync_fetch_and_add(n, 1);
	return true;
}

static __noinline int modified(struct ib_qp *handle, struct ib_qp_attr *attr, __u32 mask)
{
	struct ib_uobject *uobject = (struct ib_uobject *)BPF_CORE_READ(handle, uobject);
	struct context_key key = {.tgid = current_tgid()};
	__u64 address = (__u64)handle, qp;
	struct context_stat *stat;
	struct queue *q;
	__u32 state;

	if (!uobject || !(mask & QP_STATE))
		return 0;
	state = BPF_CORE_READ(attr, qp_state);
	qp = BPF_CORE_READ(uobject, user_handle);
	if (bpf_probe_read_user(&key.context, sizeof(key.context), (void *)qp)) {
		lose(PATH_LOSS_UNREADABLE);
		return 0;
	}
	/* It is 0 as long as the queue pair is only being made. */
	if (!key.context)
		return 0;
	stat = bpf_map_lookup_elem(&contexts, &key);
	if (!stat) {
		if (!make_room(current_cgroup())) {
			lose(PATH_LOSS_CONTEXTS_FULL);
			return 0;
		}
		bpf_map_update_elem(&contexts, &key, &zero_stat, BPF_NOEXIST);
		stat = bpf_map_lookup_elem(&contexts, &key);
		if (!stat) {
			lose(PATH_LOSS_CONTEXTS_FULL);
			return 0;
		}
		stat->device = BPF_CORE_READ(handle, device, index);
		stat->cgroup = current_cgroup();
		stat->chosen = choose_all;
	}
	announce(stat, &key, qp);
	if (state == RTS && !stat->ready && !stat->late) {
		stat->late_ns = bpf_ktime_get_ns();
		stat->late = 1;
	}
	if (state != IB_QPS_RESET && state != IB_QPS_INIT && state != RTS)
		return 0;
	q = make_queue(&key, BPF_CORE_READ(handle, qp_num), BPF_CORE_READ(handle, qp_type), 0);
	if (!q || (state == RTS && !q->fresh))
		return 0;
	/* Nothing is under way on it, whatever was missed before. */
	out_of_step(q);
	q->generation = stat->generation;
	q->all = bpf_map_lookup_elem(&signal_all, &address) != 0;
	q->in_step = 1;
	q->fresh = state != RTS;
	return 0;
}

SEC("kprobe/ib_modify_qp_with_udata")
int BPF_KPROBE(kprobe_modify, struct ib_qp *qp, struct ib_qp_attr *attr, int mask)
{
	return modified(qp, attr, mask);
}

SEC("fentry/ib_modify_qp_with_udata")
int BPF_PROG(fentry_modify, struct ib_qp *qp, struct ib_qp_attr *attr, int mask)
{
	return modified(qp, attr, mask);
}

/* Before the number can be another's. */
static __noinline int destroyed(struct ib_qp *handle)
{
	struct ib_uobject *uobject = (struct ib_uobject *)BPF_CORE_READ(handle, uobject);
	struct queue_key key = {.tgid = current_tgid(), .qpn = BPF_CORE_READ(handle, qp_num)};
	__u64 address = (__u64)handle;

	bpf_map_delete_elem(&signal_all, &address);
	if (uobject &&
	    !bpf_probe_read_user(&key.context, sizeof(key.context), (void *)BPF_CORE_READ(uobject, user_handle)))
		drop_queue(&key);
	return 0;
}

SEC("kprobe/ib_destroy_qp_user")
int BPF_KPROBE(kprobe_destroy, struct ib_qp *qp)
{
	return destroyed(qp);
}

SEC("fentry/ib_destroy_qp_user")
int BPF_PROG(fentry_destroy, struct ib_qp *qp)
{
	return destroyed(qp);
}

static __noinline int creating(struct ib_qp_init_attr *attr)
{
	struct thread *t = this_thread(BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (t)
		t->creates_all = BPF_CORE_READ(attr, sq_sig_type) == IB_SIGNAL_ALL_WR;
	return 0;
}

SEC("kprobe/ib_create_qp_user")
int BPF_KPROBE(kprobe_create, void *device, void *pd, struct ib_qp_init_attr *attr)
{
	return creating(attr);
}

SEC("fentry/ib_create_qp_user")
int BPF_PROG(fentry_create, void *device, void *pd, struct ib_qp_init_attr *attr)
{
	return creating(attr);
}

#define OWNER(res, type) ((struct type *)((void *)(res)-bpf_core_field_offset(struct type, res)))

static __noinline int tracked(struct rdma_restrack_entry *res)
{
	__u32 type = BPF_CORE_READ(res, type);
	struct context_key key = {.tgid = current_tgid()};
	struct ib_device *device;
	struct thread *t;
	__u64 address;
	__u8 yes = 1;

	if (type == RDMA_RESTRACK_CTX) {
		device = BPF_CORE_READ(OWNER(res, ib_ucontext), device);
		tell(&key, current_cgroup(), BPF_CORE_READ(device, index), 0);
		return 0;
	}
	if (type != RDMA_RESTRACK_QP || !BPF_CORE_READ(res, user))
		return 0;
	t = this_thread(0);
	if (!t || !t->creates_all)
		return 0;
	t->creates_all = 0;
	address = (__u64)OWNER(res, ib_qp);
	bpf_map_update_elem(&signal_all, &address, &yes, BPF_ANY);
	return 0;
}

SEC("kprobe/rdma_restrack_add")
int BPF_KPROBE(kprobe_track, struct rdma_restrack_entry *res)
{
	return tracked(res);
}

SEC("fentry/rdma_restrack_add")
int BPF_PROG(fentry_track, struct rdma_restrack_entry *res)
{
	return tracked(res);
}

/*
 * The queue pairs that exist: a struct path_event for each, without the address
 * of the context, which is in the memory of a process that is not running.
 */

/* UVERBS_OBJECT_QP */
#define OBJECT_QP 4
/* How many objects of one file are looked at, and how many queue pairs of it told. */
#define OBJECTS_OF_FILE 65536
#define QPS_OF_FILE 256

struct listing {
	struct seq_file *seq;
	__u64 head;
	struct list_head *at;
	__u64 cgroup;
	__u32 tgid;
	__u32 told;
};

static long list_object(__u32 i, struct listing *l)
{
	struct list_head *at = l->at;
	struct ib_uobject *object;
	struct path_event e = {};
	struct ib_qp *qp;

	if (!at || (__u64)at == l->head || l->told >= QPS_OF_FILE)
		return 1;
	object = (struct ib_uobject *)((void *)at - bpf_core_field_offset(struct ib_uobject, list));
	l->at = BPF_CORE_READ(at, next);
	if (BPF_CORE_READ(object, uapi_object, id) != OBJECT_QP)
		return 0;
	qp = BPF_CORE_READ(object, object);
	e.key.tgid = l->tgid;
	e.cgroup = l->cgroup;
	e.qp = BPF_CORE_READ(object, user_handle);
	e.device = BPF_CORE_READ(qp, device, index);
	l->told++;
	bpf_seq_write(l->seq, &e, sizeof(e));
	return 0;
}

SEC("iter/task_file")
int existing(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct ib_uverbs_file *uverbs_file;
	struct listing l = {};
	__u32 rdev;

	if (!task || !file)
		return 0;
	rdev = BPF_CORE_READ(file, f_inode, i_rdev);
	if (!rdev || !bpf_map_lookup_elem(&uverbs, &rdev))
		return 0;
	uverbs_file = BPF_CORE_READ(file, private_data);
	if (!uverbs_file)
		return 0;
	l.seq = ctx->meta->seq;
	l.head = (__u64)uverbs_file + bpf_core_field_offset(struct ib_uverbs_file, uobjects);
	l.at = BPF_CORE_READ(uverbs_file, uobjects.next);
	l.tgid = BPF_CORE_READ(task, tgid);
	l.cgroup = cgroup_of(task);
	bpf_loop(OBJECTS_OF_FILE, list_object, &l, 0);
	return 0;
}

/* What user space changes while others count. */

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
 * Forgets what hangs on the contexts of a process, and says how much: a walk may lose its way among those who add and
 * remove meanwhile, and is to be repeated until nothing is left.
 */
static __noinline int remove_process(__u32 tgid)
{
	struct removal r = {.tgid = tgid};

	bpf_map_delete_elem(&strangers, &tgid);
	bpf_for_each_map_elem(&queues, remove_queue, &r, 0);
	bpf_for_each_map_elem(&latencies, remove_latency, &r, 0);
	return r.removed;
}

static __always_inline void remove_context(struct context_key *key, struct context_stat *stat)
{
	__u64 cgroup = stat->cgroup;
	__u32 *n = bpf_map_lookup_elem(&cgroup_contexts, &cgroup);

	if (n && *n)
		__sync_fetch_and_add(n, -1);
	bpf_map_delete_elem(&contexts, key);
}

SEC("syscall")
int control(struct control_args *args)
{
	struct context_key key = args->key;
	struct context_stat *stat;

	if (args->what == CONTROL_REMOVE && !key.context)
		return remove_process(key.tgid);
	stat = bpf_map_lookup_elem(&contexts, &key);
	if (!stat)
		return 1;
	switch (args->what) {
	case CONTROL_GAP:
		__sync_fetch_and_add(&stat->generation, 1);
		return 0;
	case CONTROL_REMOVE:
		remove_context(&key, stat);
		return 0;
	}
	stat->chosen = args->chosen;
	stat->ready = args->ready;
	return 0;
}
