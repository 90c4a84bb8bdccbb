// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Counts failed allocations of GPU memory by workload and API, with a uprobe and a return probe on each allocating
 * function of libcuda and libamdhip64. User space loads both programs once per function.
 *
 * Only the outermost call of a thread counts, because one function may call another. A return belongs to the entry
 * with the same stack pointer.
 */
#define OWNER_FUNCTION static __always_inline
#include "owner.h"
#include "stack.h"

char LICENSE[] SEC("license") = "GPL";

/* CUDA_ERROR_OUT_OF_MEMORY and hipErrorOutOfMemory */
#define OUT_OF_MEMORY 2

/* More than any memory: a request of this size counts as a failure without bytes, and a sum ends there. */
#define MAX_REQUEST (1ULL << 48)
#define MAX_SUM (1ULL << 60)

enum allocation_loss {
	LOSS_FAILURES_FULL,  /* no room for (cgroup, API) */
	LOSS_FAILURES_SHARE, /* (cgroup, API): the owner used up its share of the map (owner.h) */
	LOSS_ENTRY_MISSED,   /* a failed call whose entry was not seen, or is no longer known */
	ALLOCATION_LOSSES,
};

enum allocation_map {
	FAILURES_OF_OWNER,
};

struct failure_key {
	__u64 cgroup;
	__u32 api;
	__u32 pad;
};

struct failures {
	__u64 owner; /* the cgroup whose share this entry takes */
	__u64 count;
	__u64 bytes;
};

struct allocation {
	__u64 sp; /* the stack pointer at the entry; 0: no call */
	__u64 bytes;
	__u64 mm; /* mm and started distinguish threads that had the same number */
	__u64 started;
	__u32 function;
	__u32 generation;
};

struct call_key {
	__u32 tgid;
	__u32 function;
};

const volatile __u32 function; /* number of the function, which may have several names in an API */
const volatile __u32 api;
const volatile bool pitched; /* the size is the product of the third and the fourth argument, not the second argument */

/* Increases when probes were detached: a call of an earlier generation may have returned unseen. */
__u32 generation;

__u64 allocation_losses[ALLOCATION_LOSSES];

/* Makes bpf2go generate these types. */
const enum allocation_loss *unused_allocation_loss __attribute__((unused));
const enum allocation_map *unused_allocation_map __attribute__((unused));

/* User space sets the size. A workload has at most one entry per API. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct failure_key);
	__type(value, struct failures);
} allocation_failures SEC(".maps");

/* By thread. Threads that stay in a call are dropped first, because a used entry becomes the newest. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct allocation);
} allocations SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct call_key);
	__type(value, __u64);
} allocation_calls SEC(".maps");

struct mm_struct;

struct task_struct___thread {
	struct mm_struct *mm;
	__u64 start_time;
} __attribute__((preserve_access_index));

static const struct allocation no_call;
static const __u64 no_calls;

/* Reports whether a call belongs to this thread, and all probes have been attached since. */
static __always_inline bool is_current(const struct allocation *a)
{
	struct task_struct___thread *task = (void *)bpf_get_current_task();

	return a->sp && a->generation == generation && a->started == BPF_CORE_READ(task, start_time) &&
	       a->mm == (__u64)BPF_CORE_READ(task, mm);
}

static __always_inline void count_call(void)
{
	struct call_key key = {.tgid = bpf_get_current_pid_tgid() >> 32, .function = function};
	__u64 *calls = bpf_map_lookup_elem(&allocation_calls, &key);

	if (!calls) {
		bpf_map_update_elem(&allocation_calls, &key, &no_calls, BPF_NOEXIST);
		calls = bpf_map_lookup_elem(&allocation_calls, &key);
	}
	if (calls)
		__sync_fetch_and_add(calls, 1);
}

/* The failures of an owner. They exist from the first call on, so that 0 failures differ from an unobserved owner. */
static __always_inline struct failures *failures_of(const struct owner *owner)
{
	struct failure_key key = {.cgroup = owner->cgroup, .api = api};
	struct failures *f = bpf_map_lookup_elem(&allocation_failures, &key), none = {.owner = owner->share};

	if (f || has_share(owner->share, FAILURES_OF_OWNER))
		return f;
	if (!bpf_map_update_elem(&allocation_failures, &key, &none, BPF_NOEXIST))
		count_entries(owner->share, FAILURES_OF_OWNER, 1);
	return bpf_map_lookup_elem(&allocation_failures, &key);
}

static __always_inline __u64 requested(struct pt_regs *ctx)
{
	__u64 width = PT_REGS_PARM3(ctx), height = PT_REGS_PARM4(ctx);

	if (!pitched)
		return PT_REGS_PARM2(ctx);
	if (width >= MAX_REQUEST || height >= MAX_REQUEST)
		return width && height ? MAX_REQUEST : 0;
	if (height && width > MAX_REQUEST / height)
		return MAX_REQUEST;
	return width * height;
}

SEC("uprobe/allocate")
int allocate(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	struct task_struct___thread *task = (void *)bpf_get_current_task();
	__u32 tid = bpf_get_current_pid_tgid();
	__u64 sp = PT_REGS_SP(ctx);
	struct allocation *a;
	struct owner owner;

	count_call();
	a = bpf_map_lookup_elem(&allocations, &tid);
	/* A function that ends in a jump to another function has the same stack pointer. */
	if (a && is_current(a) && (sp < a->sp || (sp == a->sp && a->function != function)))
		return 0;
	if (!a) {
		bpf_map_update_elem(&allocations, &tid, &no_call, BPF_ANY);
		a = bpf_map_lookup_elem(&allocations, &tid);
	}
	current_owner(&owner);
	failures_of(&owner);
	if (!a)
		return 0; /* LOSS_ENTRY_MISSED if it fails */
	a->sp = sp;
	a->bytes = requested(ctx);
	a->mm = (__u64)BPF_CORE_READ(task, mm);
	a->started = BPF_CORE_READ(task, start_time);
	a->function = function;
	a->generation = generation;
	return 0;
}

static __always_inline void lose(__u32 why)
{
	__sync_fetch_and_add(&allocation_losses[why], 1);
}

SEC("uretprobe/allocate")
int allocate_return(struct pt_regs *ctx)
{
	STACK_OF_THREAD(ctx);
	bool failed = (__u32)PT_REGS_RC(ctx) == OUT_OF_MEMORY;
	__u32 tid = bpf_get_current_pid_tgid();
	struct allocation *a;
	struct failures *f;
	struct owner owner;
	__u64 bytes;

	a = bpf_map_lookup_elem(&allocations, &tid);
	if (!a || !is_current(a)) {
		if (failed)
			lose(LOSS_ENTRY_MISSED);
		return 0;
	}
	if (a->sp != SP_AT_RETURN(ctx) || a->function != function)
		return 0; /* nested */
	bytes = a->bytes;
	a->sp = 0;
	if (!failed)
		return 0;
	current_owner(&owner);
	f = failures_of(&owner);
	if (!f) {
		lose(lost_by_share(owner.share, FAILURES_OF_OWNER) ? LOSS_FAILURES_SHARE : LOSS_FAILURES_FULL);
		return 0;
	}
	__sync_fetch_and_add(&f->count, 1);
	if (bytes < MAX_REQUEST && f->bytes < MAX_SUM)
		__sync_fetch_and_add(&f->bytes, bytes);
	return 0;
}
