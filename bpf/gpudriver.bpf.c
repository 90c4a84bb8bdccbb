// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Measures by cgroup how long tasks are in the ioctl operation of GPU drivers. Keeps the calls in progress, so that
 * user space finds the tasks that do not return.
 *
 * User space attaches kprobe_ioctl and kretprobe_ioctl to the ioctl operation of each driver. It attaches the
 * programs with drm in their names to drm_ioctl, which is the operation of some drivers and is called by the
 * operation of others.
 */
#include "maps.h"
#include "bucket.h"
#include "owner.h"
#include "registers.h"

char LICENSE[] SEC("license") = "GPL";

/* User space sets the sizes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct driver_key);
	__type(value, struct driver_stat);
} driver_stats SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, __u32);
	__type(value, struct driver_call);
} driver_calls SEC(".maps");

/* The requests that wait on purpose, such as for the end of a computation. User space sets them. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, struct driver_request);
	__type(value, __u8);
} driver_waits SEC(".maps");

__u64 driver_losses[DRIVER_LOSSES];

/* Result of check_call: the holder of the lock that the call waits for, tgid << 32 | tid, or 0 if unknown. */
__u64 lock_holder;

/* Makes bpf2go generate these types. */
const enum driver_loss *unused_driver_loss __attribute__((unused));
const enum driver_map *unused_driver_map __attribute__((unused));

/* include/uapi/drm/drm.h: the numbers of a driver's own requests are from COMMAND_BASE up to COMMAND_END. */
#define DRM_IOCTL_BASE 'd'
#define DRM_COMMAND_BASE 0x40
#define DRM_COMMAND_END 0xA0

/* include/linux/sched.h */
#define PF_EXITING 0x4

/* include/linux/hung_task.h: the kind of the lock is in the low bits of task_struct.blocker. */
enum {
	BLOCKER_TYPE_MUTEX,
	BLOCKER_TYPE_SEM,
	BLOCKER_TYPE_MASK = 3,
};

/* kernel/locking/mutex.h, kernel/locking/rwsem.c: flags in the low bits of owners */
#define MUTEX_FLAGS 7ULL
#define RWSEM_READER_OWNED 1ULL
#define RWSEM_OWNER_FLAGS 3ULL

#if defined(__TARGET_ARCH_x86)
enum {
	NR_IOCTL = 16,
	NR_COMPAT_IOCTL = 54,
};
#else
enum {
	NR_IOCTL = 29,
	NR_COMPAT_IOCTL = 54,
};
#endif

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct module___driver {
	char name[DRIVER_NAME];
};

struct file_operations___driver {
	struct module___driver *owner;
};

struct file___driver {
	struct file_operations___driver *f_op;
};

struct task_struct___caller {
	__s32 pid;
	__s32 tgid;
	__u64 start_time;
	__u32 flags;
	unsigned long blocker; /* with CONFIG_DETECT_HUNG_TASK_BLOCKER, Linux 6.16 */
};

struct atomic_long {
	long counter;
};

struct mutex___lock {
	struct atomic_long owner; /* real-time kernels lack it */
};

struct semaphore___lock {
	unsigned long last_holder; /* with CONFIG_DETECT_HUNG_TASK_BLOCKER */
};

struct rw_semaphore___lock {
	struct atomic_long owner;
};

#pragma clang attribute pop

static const struct driver_stat zero_stat;

static __always_inline void lose(__u32 why)
{
	__sync_fetch_and_add(&driver_losses[why], 1);
}

static __always_inline struct driver_stat *driver_stat(struct driver_key *key, __u64 owner)
{
	struct driver_stat *stat = bpf_map_lookup_elem(&driver_stats, key);

	if (stat)
		return stat;
	if (!has_share(owner, DRIVER_STATS_OF_OWNER)) {
		if (!bpf_map_update_elem(&driver_stats, key, &zero_stat, BPF_NOEXIST))
			count_entries(owner, DRIVER_STATS_OF_OWNER, 1);
		stat = bpf_map_lookup_elem(&driver_stats, key);
	}
	if (stat)
		stat->owner = owner;
	else
		lose(lost_by_share(owner, DRIVER_STATS_OF_OWNER) ? LOSS_DRIVER_STATS_SHARE : LOSS_DRIVER_STATS_FULL);
	return stat;
}

/* Returns whether a request waits on purpose. The direction and the size of the argument do not matter. */
static __always_inline bool waits(struct driver_key *key, __u32 request)
{
	struct driver_request waiting = {.request = request};
	__u32 type = waiting.request >> 8, number = waiting.request & 0xff;

	if (type != DRM_IOCTL_BASE || (number >= DRM_COMMAND_BASE && number < DRM_COMMAND_END))
		__builtin_memcpy(waiting.driver, key->driver, DRIVER_NAME);
	return bpf_map_lookup_elem(&driver_waits, &waiting);
}

static __always_inline void leave(__u32 tid, __u64 owner)
{
	if (!bpf_map_delete_elem(&driver_calls, &tid))
		count_entries(owner, DRIVER_CALLS_OF_OWNER, -1);
}

static __always_inline int begin(struct file___driver *file, __u32 request, bool drm)
{
	__u64 thread = bpf_get_current_pid_tgid();
	struct driver_call call = {
		.start_ns = bpf_ktime_get_ns(),
		.file = (__u64)file,
		.task = bpf_get_current_task(),
		.tgid = thread >> 32,
		.request = request,
		.drm = drm,
	};
	struct driver_call *last;
	struct owner owner;
	__u32 tid = thread;

	last = bpf_map_lookup_elem(&driver_calls, &tid);
	if (last) {
		/* The operation of the driver has called drm_ioctl. */
		if (drm && !last->drm && last->file == call.file)
			return 0;
		lose(LOSS_DRIVER_RETURN_MISSED);
		leave(tid, last->owner);
	}
	call.registers = (__u64)entry_registers((void *)call.task);
	current_owner(&owner);
	call.key.cgroup = owner.cgroup;
	call.owner = owner.share;
	/* A driver that is built into the kernel has no module: the name is empty. */
	BPF_CORE_READ_STR_INTO(&call.key.driver, file, f_op, owner, name);
	call.key.waits = waits(&call.key, request);
	if (!driver_stat(&call.key, owner.share))
		return 0;
	if (has_share(owner.share, DRIVER_CALLS_OF_OWNER) ||
	    bpf_map_update_elem(&driver_calls, &tid, &call, BPF_NOEXIST))
		lose(lost_by_share(owner.share, DRIVER_CALLS_OF_OWNER) ? LOSS_DRIVER_CALLS_SHARE
								       : LOSS_DRIVER_CALLS_FULL);
	else
		count_entries(owner.share, DRIVER_CALLS_OF_OWNER, 1);
	return 0;
}

static __always_inline int end(bool drm)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct driver_call *call = bpf_map_lookup_elem(&driver_calls, &tid);
	struct driver_stat *stat;
	struct driver_key key;
	__u64 ns, owner;
	__u32 slot;

	/*
	 * It began before the programs were attached, or was lost. Or drm_ioctl returns to the operation of the
	 * driver.
	 */
	if (!call || call->drm != drm)
		return 0;
	ns = bpf_ktime_get_ns() - call->start_ns;
	key = call->key;
	owner = call->owner;
	leave(tid, owner);
	stat = driver_stat(&key, owner);
	if (!stat)
		return 0;
	__sync_fetch_and_add(&stat->sum_ns, ns);
	slot = bucket(ns);
	if (slot < BUCKETS)
		__sync_fetch_and_add(&stat->buckets[slot], 1);
	return 0;
}

SEC("kprobe")
int BPF_KPROBE(kprobe_ioctl, struct file___driver *file, unsigned int request)
{
	return begin(file, request, false);
}

SEC("kretprobe")
int BPF_KRETPROBE(kretprobe_ioctl)
{
	return end(false);
}

SEC("kprobe")
int BPF_KPROBE(kprobe_drm_ioctl, struct file___driver *file, unsigned int request)
{
	return begin(file, request, true);
}

SEC("kretprobe")
int BPF_KRETPROBE(kretprobe_drm_ioctl)
{
	return end(true);
}

/*
 * Returns whether the thread is in the ioctl. A thread in user space has the registers of its last interrupt or
 * system call there. The memory of an ended task may be reused, and is only read.
 */
static __always_inline bool in_call(struct driver_call *call, __u32 tid)
{
	struct pt_regs___entry *regs = (void *)call->registers;
	struct task_struct___caller *task = (void *)call->task;
	bool compat = is_compat((void *)task, regs);
	__u64 number, request;

	if (BPF_CORE_READ(task, pid) != tid || BPF_CORE_READ(task, start_time) > call->start_ns ||
	    BPF_CORE_READ(task, flags) & PF_EXITING)
		return false;
#if defined(__TARGET_ARCH_x86)
	number = BPF_CORE_READ(regs, orig_ax);
	request = compat ? BPF_CORE_READ(regs, cx) : BPF_CORE_READ(regs, si);
#else
	number = (__u32)BPF_CORE_READ(regs, syscallno);
	request = BPF_CORE_READ(regs, regs[1]);
#endif
	return number == (compat ? NR_COMPAT_IOCTL : NR_IOCTL) && (__u32)request == call->request;
}

/* The holder of the lock that a task waits for. A lock that readers share has no single holder. */
static __always_inline struct task_struct___caller *holder_of_lock(struct task_struct___caller *task)
{
	struct rw_semaphore___lock *rwsem;
	struct semaphore___lock *semaphore;
	struct mutex___lock *mutex;
	__u64 blocker, owner = 0;

	if (!bpf_core_field_exists(task->blocker))
		return 0;
	blocker = BPF_CORE_READ(task, blocker);
	rwsem = (void *)(blocker & ~(__u64)BLOCKER_TYPE_MASK);
	semaphore = (void *)rwsem;
	mutex = (void *)rwsem;
	if (!rwsem)
		return 0;
	switch (blocker & BLOCKER_TYPE_MASK) {
	case BLOCKER_TYPE_MUTEX:
		if (bpf_core_field_exists(mutex->owner))
			owner = BPF_CORE_READ(mutex, owner.counter) & ~MUTEX_FLAGS;
		break;
	case BLOCKER_TYPE_SEM:
		if (bpf_core_field_exists(semaphore->last_holder))
			owner = BPF_CORE_READ(semaphore, last_holder);
		break;
	default:
		if (bpf_core_field_exists(rwsem->owner))
			owner = BPF_CORE_READ(rwsem, owner.counter);
		owner = owner & RWSEM_READER_OWNED ? 0 : owner & ~RWSEM_OWNER_FLAGS;
	}
	return (void *)owner;
}

/*
 * User space runs this program with a thread and the beginning of its call. Returns 1 if the thread is still in
 * this call, and sets lock_holder. If the return was missed, the call is removed.
 */
SEC("raw_tp")
int check_call(struct bpf_raw_tracepoint_args *ctx)
{
	__u32 tid = ctx->args[0];
	struct driver_call *call = bpf_map_lookup_elem(&driver_calls, &tid);
	struct task_struct___caller *holder;

	if (!call || call->start_ns != ctx->args[1])
		return 0;
	if (in_call(call, tid)) {
		holder = holder_of_lock((void *)call->task);
		lock_holder = 0;
		if (holder)
			lock_holder = (__u64)BPF_CORE_READ(holder, tgid) << 32 | (__u32)BPF_CORE_READ(holder, pid);
		return 1;
	}
	leave(tid, call->owner);
	lose(LOSS_DRIVER_RETURN_MISSED);
	return 0;
}
