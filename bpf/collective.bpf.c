// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Counts calls of the public functions of NCCL and RCCL, with a uprobe at the entry of each function. User space loads
 * the program once for each function, with the constants below.
 *
 * A function that makes a communicator returns its handle through a pointer. No return is probed, so the program keeps
 * the pointer, and reads the handle when the process launches something with an unknown handle.
 */
#define OWNER_FUNCTION static __always_inline
#include "owner.h"
#include "stack.h"
#include "numbers.h"

char LICENSE[] SEC("license") = "GPL";

enum function_kind {
	KIND_LAUNCH,
	KIND_MAKE_RANK, /* ncclCommInitRank, ncclCommInitRankConfig */
	KIND_MAKE_SCALABLE,
	KIND_MAKE_ALL,
	KIND_SPLIT,
	KIND_SHRINK,
	KIND_GROW,
	KIND_END,
	KIND_GRAPH, /* launches a graph, which may have captured collectives */
};

enum collective_loss {
	LOSS_COMMUNICATORS_FULL,
	LOSS_COMMUNICATORS_SHARE, /* the owner used up its share of the map (owner.h) */
	LOSS_LAUNCHES_FULL,       /* no room for (communicator, operation) */
	LOSS_LAUNCHES_SHARE,
	LOSS_PENDING,    /* dropped before its first launch, because the process made too many others: it has no id */
	LOSS_UNREADABLE, /* an argument on the stack, or an id: the communicator has no id */
	LOSS_TIMES_FULL, /* no room for the times of launches */
	COLLECTIVE_LOSSES,
};

enum collective_map {
	COMMUNICATORS_OF_OWNER, /* also pending communicators */
	LAUNCHES_OF_OWNER,
};

/* What is known of a communicator. */
enum collective_flag {
	IDENTIFIED = 1, /* id, and with path the communicator itself */
	RANKED = 2,     /* rank and nranks */
	SIZED = 4,      /* nranks */
	LOCAL = 8,      /* ncclCommInitAll: all ranks are in this process, and no id exists */
	DERIVED = 16,   /* made of another communicator, which has parent_path */
};

#define FUNCTIONS 32

/* More than any memory has: such a call counts without bytes. */
#define MAX_ELEMENTS (1ULL << 44)
#define ID_SIZE 128

/* A process: the number of its thread group, and when its first thread started. */
struct collective_process_key {
	__u64 started;
	__u32 tgid;
	__u32 pad;
};

struct collective_process {
	__u64 calls[FUNCTIONS]; /* by function: what the probes cost */
	__u64 lost_in;          /* the workload, if a communicator or launch was lost */
	__u32 next;             /* pending communicators so far */
	__u32 lost;
};

struct handle_key {
	__u64 started;
	__u64 handle; /* ncclComm_t */
	__u32 tgid;
	__u32 pad;
};

struct handle {
	__u64 communicator; /* its number */
	/* The last ncclBcast, which calls ncclBroadcast. */
	__u64 sp;
	__u64 buffer;
	__u64 elements;
	__u32 tid;
	__u32 pad;
};

struct communicator {
	__u64 owner; /* the cgroup whose share this entry takes */
	__u64 cgroup;
	__u64 started; /* of the process */
	__u64 made;    /* when the function that makes it was called */
	__u64 ended;   /* when it was destroyed; 0: it exists */
	__u64 path;    /* how it was derived from the communicator with the id; 0: it has the id itself */
	__u64 parent_path;
	__u64 children; /* communicators that were derived from it */
	__u32 tgid;     /* 0: the entry is being made */
	__u32 flags;
	__u32 nranks;
	__u32 rank;    /* not RANKED: in its parent */
	__u32 library; /* 0: NCCL, 1: RCCL */
	__u32 pad;
	__u8 id[ID_SIZE]; /* secret: who knows it may join */
};

struct pending_key {
	__u64 started;
	__u32 tgid;
	__u32 slot;
};

struct pending {
	__u64 out; /* where the function stores the handle */
	struct communicator communicator;
};

struct launch_key {
	__u64 communicator;
	__u64 operation;
};

struct launches {
	__u64 owner;
	__u64 count;
	__u64 bytes;
	__u64 last; /* CLOCK_MONOTONIC */
};

/*
 * Constants of a function: the positions, from 1 on, of the communicator, the number of elements and their type
 * among its arguments. 0: the function lacks the argument.
 */
const volatile __u32 function;
const volatile __u32 kind;
const volatile __u32 operation;
const volatile __u32 library;
const volatile __u32 communicator_argument = 1;
const volatile __u32 count_argument;
const volatile __u32 type_argument;
const volatile bool calls_broadcast; /* ncclBcast */
const volatile bool is_broadcast;
const volatile bool numbered; /* all ranks of a communicator call it in the same order */

__u64 collective_losses[COLLECTIVE_LOSSES];

/* Makes bpf2go generate these types. */
const enum function_kind *unused_function_kind __attribute__((unused));
const enum collective_loss *unused_collective_loss __attribute__((unused));
const enum collective_map *unused_collective_map __attribute__((unused));
const enum collective_flag *unused_collective_flag __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 2048);
	__type(key, struct collective_process_key);
	__type(value, struct collective_process);
} collective_processes SEC(".maps");

/*
 * User space sets the sizes of the next four maps, and of the maps in numbers.h. Handles and ranks have a communicator, so
 * their maps are not full before, except while user space removes communicators.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct handle_key);
	__type(value, struct handle);
} communicator_handles SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u64);
	__type(value, struct communicator);
} communicators SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct pending_key);
	__type(value, struct pending);
} communicators_pending SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__type(key, struct launch_key);
	__type(value, struct launches);
} collective_launches SEC(".maps");

struct task_struct___leader {
	struct task_struct___leader *group_leader;
	__u64 start_time;
} __attribute__((preserve_access_index));

static const struct collective_process new_process;
static const struct communicator unknown_communicator;

static __always_inline void this_process(struct collective_process_key *key)
{
	struct task_struct___leader *task = (void *)bpf_get_current_task();

	key->started = BPF_CORE_READ(task, group_leader, start_time);
	key->tgid = bpf_get_current_pid_tgid() >> 32;
}

static __always_inline struct collective_process *process_of(const struct collective_process_key *key)
{
	struct collective_process *p = bpf_map_lookup_elem(&collective_processes, key);

	if (p)
		return p;
	bpf_map_update_elem(&collective_processes, key, &new_process, BPF_NOEXIST);
	return bpf_map_lookup_elem(&collective_processes, key);
}

static __always_inline void count_loss(__u32 why)
{
	__sync_fetch_and_add(&collective_losses[why], 1);
}

/* Counts a loss of launches, or of a communicator. */
static __always_inline void lose(__u32 why)
{
	struct collective_process_key key = {};
	struct collective_process *p;

	count_loss(why);
	this_process(&key);
	p = bpf_map_lookup_elem(&collective_processes, &key);
	if (p)
		p->lost = 1;
}

/* The first arguments are in registers. On x86-64 the return address is below the others. */
#if defined(__TARGET_ARCH_x86)
#define REGISTER_ARGUMENTS 6
#define ARGUMENT_6(ctx) ((ctx)->r9)
#define STACK_ARGUMENTS(ctx) (PT_REGS_SP(ctx) + 8)
#else
#define REGISTER_ARGUMENTS 8
#define ARGUMENT_6(ctx) (((struct user_pt_regs *)(ctx))->regs[5])
#define STACK_ARGUMENTS(ctx) PT_REGS_SP(ctx)
#endif

/* A volatile load: the verifier does not accept an address that is computed from the context. */
#define LOAD(value) (*(volatile typeof(value) *)&(value))

static __always_inline __u64 argument(struct pt_regs *ctx, __u32 n)
{
	__u64 v = 0;

	switch (n) {
	case 1:
		return LOAD(PT_REGS_PARM1(ctx));
	case 2:
		return LOAD(PT_REGS_PARM2(ctx));
	case 3:
		return LOAD(PT_REGS_PARM3(ctx));
	case 4:
		return LOAD(PT_REGS_PARM4(ctx));
	case 5:
		return LOAD(PT_REGS_PARM5(ctx));
	case 6:
		return LOAD(ARGUMENT_6(ctx));
#if defined(__TARGET_ARCH_arm64)
	case 7:
		return LOAD(((struct user_pt_regs *)ctx)->regs[6]);
	case 8:
		return LOAD(((struct user_pt_regs *)ctx)->regs[7]);
#endif
	}
	if (n > REGISTER_ARGUMENTS &&
	    bpf_probe_read_user(&v, sizeof(v), (void *)(STACK_ARGUMENTS(ctx) + 8 * (n - REGISTER_ARGUMENTS - 1))))
		lose(LOSS_UNREADABLE);
	return v;
}

/* Bytes of an ncclDataType_t; 0: unknown. */
static __always_inline __u64 size_of(__u32 type)
{
	switch (type) {
	case 0: /* int8, uint8, float8e4m3, float8e5m2 */
	case 1:
	case 10:
	case 11:
		return 1;
	case 6: /* float16, bfloat16 */
	case 9:
		return 2;
	case 2: /* int32, uint32, float32 */
	case 3:
	case 7:
		return 4;
	case 4: /* int64, uint64, float64 */
	case 5:
	case 8:
		return 8;
	}
	return 0;
}

/* splitmix64: ranks that derive a communicator in the same way get the same path. */
static __always_inline __u64 mix(__u64 x)
{
	x += 0x9e3779b97f4a7c15ULL;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	return x ^ (x >> 31);
}

/* Pending communicators of a process: as many as one thread makes before it uses the first. */
#define PENDING 64

/* Keeps a communicator that the function makes. A function that stores its handle at the same place replaces it. */
static __noinline int keep(const struct collective_process_key *process, struct collective_process *p,
			   const struct pending *made)
{
	struct pending_key key = {.started = process->started, .tgid = process->tgid};
	bool replaces = false;
	struct pending *other;

	for (__u32 i = 0; i < PENDING; i++) {
		key.slot = i;
		other = bpf_map_lookup_elem(&communicators_pending, &key);
		if (other && other->out == made->out) {
			replaces = true;
			break;
		}
	}
	if (!replaces) {
		key.slot = p->next++ % PENDING;
		replaces = bpf_map_lookup_elem(&communicators_pending, &key);
		if (replaces)
			count_loss(LOSS_PENDING);
	}
	if (!replaces && has_share(made->communicator.owner, COMMUNICATORS_OF_OWNER)) {
		lose(lost_by_share(made->communicator.owner, COMMUNICATORS_OF_OWNER) ? LOSS_COMMUNICATORS_SHARE
										     : LOSS_COMMUNICATORS_FULL);
		return 0;
	}
	if (bpf_map_update_elem(&communicators_pending, &key, made, BPF_ANY))
		lose(LOSS_COMMUNICATORS_FULL);
	else if (!replaces)
		count_entries(made->communicator.owner, COMMUNICATORS_OF_OWNER, 1);
	return 0;
}

/* The ranks of a communicator get the same identity, and others get another one. */
static __always_inline __u64 identity_of(const struct communicator *c)
{
	const __u64 *id = (const __u64 *)c->id;
	__u64 identity = mix(c->path);

	if (c->flags & LOCAL)
		return mix(mix(mix(identity) ^ c->started) ^ c->tgid);
#pragma nounroll
	for (int i = 0; i < ID_SIZE / 8; i++)
		identity = mix(identity ^ id[i]);
	return identity;
}

/* Launches on a communicator without an id have no numbers: earlier launches may have been missed. */
static __always_inline void add_rank(__u64 number, const struct communicator *c)
{
	struct rank *r;

	if (!(c->flags & (IDENTIFIED | LOCAL)))
		return;
	bpf_map_update_elem(&collective_ranks, &number, &new_rank, BPF_ANY);
	r = bpf_map_lookup_elem(&collective_ranks, &number);
	if (r)
		r->identity = identity_of(c);
	else
		count_loss(LOSS_TIMES_FULL);
}

/* Adds a communicator with a new number, which is returned; 0: there is no room. */
static __always_inline __u64 add(const struct handle_key *key, const struct communicator *c)
{
	struct handle handle = {.communicator = bpf_ktime_get_ns()};

	/* Two processes may add one at the same time. */
	for (int i = 0; i < 4; i++) {
		if (!bpf_map_update_elem(&communicators, &handle.communicator, c, BPF_NOEXIST)) {
			add_rank(handle.communicator, c);
			if (!bpf_map_update_elem(&communicator_handles, key, &handle, BPF_NOEXIST))
				return handle.communicator;
			bpf_map_delete_elem(&communicators, &handle.communicator);
			bpf_map_delete_elem(&collective_ranks, &handle.communicator);
			if (!bpf_map_lookup_elem(&communicator_handles, key)) /* otherwise another thread was faster */
				lose(LOSS_COMMUNICATORS_FULL);
			return 0;
		}
		handle.communicator++;
	}
	lose(LOSS_COMMUNICATORS_FULL);
	return 0;
}

/* Finds the pending communicator whose handle was stored, and adds it. */
static __always_inline bool settle(const struct handle_key *handle)
{
	struct pending_key key = {.started = handle->started, .tgid = handle->tgid};
	struct pending *p;
	__u64 stored;

	for (__u32 i = 0; i < PENDING; i++) {
		key.slot = i;
		p = bpf_map_lookup_elem(&communicators_pending, &key);
		if (!p || bpf_probe_read_user(&stored, sizeof(stored), (void *)p->out) || stored != handle->handle)
			continue;
		if (!add(handle, &p->communicator))
			return false;
		bpf_map_delete_elem(&communicators_pending, &key);
		return true;
	}
	return false;
}

/* Finds a communicator. One that is older than the probes, or whose handle is not where it was stored, has no id. */
static __always_inline struct handle *find(const struct handle_key *key)
{
	struct handle *known = bpf_map_lookup_elem(&communicator_handles, key);
	struct communicator *late;
	struct owner owner;
	__u64 number;

	if (known)
		return known;
	if (!key->handle)
		return 0;
	if (settle(key))
		return bpf_map_lookup_elem(&communicator_handles, key);
	current_owner(&owner);
	if (has_share(owner.share, COMMUNICATORS_OF_OWNER)) {
		lose(lost_by_share(owner.share, COMMUNICATORS_OF_OWNER) ? LOSS_COMMUNICATORS_SHARE
									: LOSS_COMMUNICATORS_FULL);
		return 0;
	}
	number = add(key, &unknown_communicator);
	late = bpf_map_lookup_elem(&communicators, &number);
	if (late) {
		late->owner = owner.share;
		late->cgroup = owner.cgroup;
		late->started = key->started;
		late->library = library;
		late->tgid = key->tgid;
		count_entries(owner.share, COMMUNICATORS_OF_OWNER, 1);
	}
	return bpf_map_lookup_elem(&communicator_handles, key);
}

/* The counts of an operation of a communicator. */
static __always_inline struct launches *launches_of(const struct launch_key *key)
{
	struct launches *l = bpf_map_lookup_elem(&collective_launches, key), none = {};
	struct communicator *c;

	if (l)
		return l;
	c = bpf_map_lookup_elem(&communicators, &key->communicator);
	if (!c) { /* user space is removing it, and will remove its handle */
		lose(LOSS_LAUNCHES_FULL);
		return 0;
	}
	none.owner = c->owner;
	if (has_share(none.owner, LAUNCHES_OF_OWNER)) {
		lose(lost_by_share(none.owner, LAUNCHES_OF_OWNER) ? LOSS_LAUNCHES_SHARE : LOSS_LAUNCHES_FULL);
		return 0;
	}
	if (!bpf_map_update_elem(&collective_launches, key, &none, BPF_NOEXIST))
		count_entries(none.owner, LAUNCHES_OF_OWNER, 1);
	l = bpf_map_lookup_elem(&collective_launches, key);
	if (!l)
		lose(LOSS_LAUNCHES_FULL);
	return l;
}

static __always_inline void launch(struct pt_regs *ctx, const struct handle_key *key)
{
	__u64 elements = argument(ctx, count_argument), sp = PT_REGS_SP(ctx), now = bpf_ktime_get_ns();
	struct launch_key at = {.operation = operation};
	struct handle *h = find(key);
	struct launches *l;

	if (!h)
		return;
	if (calls_broadcast) {
		h->sp = sp;
		h->buffer = argument(ctx, 1);
		h->elements = elements;
		h->tid = bpf_get_current_pid_tgid();
	}
	if (is_broadcast && h->sp) {
		bool nested = sp <= h->sp && h->buffer == argument(ctx, 2) && h->elements == elements &&
			      h->tid == (__u32)bpf_get_current_pid_tgid();

		h->sp = 0;
		if (nested)
			return;
	}
	at.communicator = h->communicator;
	if (numbered && !number_launch(at.communicator, now))
		count_loss(LOSS_TIMES_FULL);
	l = launches_of(&at);
	if (!l)
		return;
	__sync_fetch_and_add(&l->count, 1);
	if (elements < MAX_ELEMENTS)
		__sync_fetch_and_add(&l->bytes, elements * size_of(argument(ctx, type_argument)));
	l->last = now;
}

static __always_inline void read_id(struct communicator *c, __u64 from)
{
	if (bpf_probe_read_user(c->id, sizeof(c->id), (void *)from))
		count_loss(LOSS_UNREADABLE);
	else
		c->flags |= IDENTIFIED;
}

/* How a communicator is derived of another one. Collective calls have the same order in all ranks. */
static __always_inline void derive(struct pending *made, const struct handle_key *key, __u64 how)
{
	struct handle *h = find(key);
	struct communicator *of = h ? bpf_map_lookup_elem(&communicators, &h->communicator) : 0;

	if (!of)
		return;
	made->communicator.flags = (of->flags & (IDENTIFIED | LOCAL | SIZED)) | DERIVED;
	made->communicator.nranks = of->nranks;
	made->communicator.parent_path = of->path;
	made->communicator.rank = of->rank;
	made->communicator.path = mix(of->path ^ mix(how ^ mix(of->children)));
	__builtin_memcpy(made->communicator.id, of->id, sizeof(made->communicator.id));
	__sync_fetch_and_add(&of->children, 1);
}

static __always_inline void make(struct pt_regs *ctx, const struct collective_process_key *process,
				 struct collective_process *p, struct handle_key *key)
{
	struct pending made = {.out = argument(ctx, 1)};
	struct communicator *c = &made.communicator;
	struct owner owner;
	__u32 ranks = 1;

	switch (kind) {
	case KIND_MAKE_RANK:
		c->nranks = argument(ctx, 2);
		c->flags = RANKED | SIZED;
#if defined(__TARGET_ARCH_x86) /* a structure of 128 bytes is on the stack, and takes no register */
		c->rank = argument(ctx, 3);
		read_id(c, STACK_ARGUMENTS(ctx));
#else /* a pointer to a copy of the structure is in a register */
		c->rank = argument(ctx, 4);
		read_id(c, argument(ctx, 3));
#endif
		break;
	case KIND_MAKE_SCALABLE: /* all ranks have the same list of ids */
		c->nranks = argument(ctx, 2);
		c->rank = argument(ctx, 3);
		c->flags = RANKED | SIZED;
		read_id(c, argument(ctx, 5));
		break;
	case KIND_MAKE_ALL:
		c->nranks = ranks = argument(ctx, 2);
		c->flags = RANKED | SIZED | LOCAL;
		c->path = bpf_ktime_get_ns();
		break;
	case KIND_SPLIT:
		/* A negative color (NCCL_SPLIT_NOCOLOR) takes part without getting a communicator. */
		made.out = (int)argument(ctx, 2) < 0 ? 0 : argument(ctx, 4);
		derive(&made, key, mix(KIND_SPLIT) + (__u32)argument(ctx, 2));
		c->flags &= ~SIZED;
		break;
	case KIND_SHRINK:
		made.out = argument(ctx, 4);
		derive(&made, key, mix(KIND_SHRINK));
		c->nranks -= (__u32)argument(ctx, 3);
		break;
	case KIND_GROW:
		made.out = argument(ctx, 5);
		if (key->handle) {
			derive(&made, key, mix(KIND_GROW));
		} else { /* a new rank */
			c->rank = argument(ctx, 4);
			c->flags = RANKED;
			read_id(c, argument(ctx, 3));
		}
		c->nranks = argument(ctx, 2);
		c->flags |= SIZED;
		break;
	}
	current_owner(&owner);
	c->owner = owner.share;
	c->cgroup = owner.cgroup;
	c->started = process->started;
	c->made = bpf_ktime_get_ns();
	c->tgid = process->tgid;
	c->library = library;
	if (kind != KIND_MAKE_ALL) {
		if (made.out)
			keep(process, p, &made);
		return;
	}
	for (__u32 i = 0; i < 16; i++) { /* more GPUs than a node has; LOSS_PENDING would not be exact */
		if (i >= ranks)
			break;
		c->rank = i;
		keep(process, p, &made);
		made.out += 8;
	}
}

static __always_inline void end(const struct handle_key *key)
{
	struct handle *h = bpf_map_lookup_elem(&communicator_handles, key);
	struct communicator *c;

	if (!h && settle(key)) /* made, and never used */
		h = bpf_map_lookup_elem(&communicator_handles, key);
	if (!h)
		return;
	c = bpf_map_lookup_elem(&communicators, &h->communicator);
	if (c)
		c->ended = bpf_ktime_get_ns();
	bpf_map_delete_elem(&communicator_handles, key);
}

SEC("uprobe/collective")
int collective(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct collective_process_key process = {};
	struct collective_process *p;
	struct handle_key key = {};
	struct owner owner;

	this_process(&process);
	p = process_of(&process);
	if (p)
		__sync_fetch_and_add(&p->calls[function % FUNCTIONS], 1);
	key.started = process.started;
	key.tgid = process.tgid;
	key.handle = argument(ctx, communicator_argument);
	switch (kind) {
	case KIND_LAUNCH:
		launch(ctx, &key);
		break;
	case KIND_END:
		end(&key);
		break;
	case KIND_GRAPH:
		break;
	default:
		if (p) /* otherwise the communicator will have no id */
			make(ctx, &process, p, &key);
	}
	if (p && p->lost && !p->lost_in) {
		current_owner(&owner);
		p->lost_in = owner.cgroup;
	}
	return 0;
}
