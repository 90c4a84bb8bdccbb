// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Counts by cgroup the opens of device nodes of HCAs and GPUs, and opens that the device cgroup denies. Lists the
 * open files of these nodes.
 *
 * Every character device, terminals and /dev/null included, passes both functions, so the programs return early.
 */
#include "maps.h"
#include "owner.h"
#include "registers.h"

char LICENSE[] SEC("license") = "GPL";

/* User space sets the size. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct access_key);
	__type(value, struct access_count);
} device_opens SEC(".maps");

/* The existing device numbers of the watched devices. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u8);
} device_nodes SEC(".maps");

/* The device that a thread is about to open, or asks for (kprobes): kretprobes do not see arguments. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} opening SEC(".maps"), asking SEC(".maps");

/* How each major is watched: an enum watch. User space sets it. */
__u8 majors[MAJORS];

__u64 access_losses[ACCESS_LOSSES];

/* Makes bpf2go generate these types. */
const enum watch *unused_watch __attribute__((unused));
const enum access_loss *unused_access_loss __attribute__((unused));
const enum access_map *unused_access_map __attribute__((unused));
const struct open_file *unused_open_file __attribute__((unused));

/* include/linux/kdev_t.h */
#define MINOR_BITS 20
#define MINOR_MASK ((1U << MINOR_BITS) - 1)

/* include/linux/device_cgroup.h */
#define DEVCG_DEV_CHAR 2
#define DEVCG_ACC_READ_WRITE (2 | 4)

/* include/linux/fs.h, include/uapi/linux/stat.h */
#define FMODE_PATH 0x4000
#define S_IFMT 0170000
#define S_IFCHR 0020000

/* include/linux/sched.h */
#define PF_IO_WORKER 0x10

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct inode___node {
	__u16 i_mode;
	__u32 i_rdev;
};

struct file___node {
	__u32 f_mode;
	struct inode___node *f_inode;
};

#pragma clang attribute pop

static __always_inline void lose(__u32 why)
{
	__sync_fetch_and_add(&access_losses[why], 1);
}

static __always_inline bool watched(__u32 rdev)
{
	__u8 how = majors[rdev >> MINOR_BITS];

	return how == WATCH_ALL || (how == WATCH_NODES && bpf_map_lookup_elem(&device_nodes, &rdev));
}

static __always_inline struct access_count *counter(__u32 rdev)
{
	struct access_key key = {.rdev = rdev};
	struct access_count *found, none = {};
	struct owner owner;

	current_owner(&owner);
	key.cgroup = owner.cgroup;
	none.owner = owner.share;
	found = bpf_map_lookup_elem(&device_opens, &key);
	if (found)
		return found;
	if (!has_share(owner.share, OPENS_OF_OWNER)) {
		if (!bpf_map_update_elem(&device_opens, &key, &none, BPF_NOEXIST))
			count_entries(owner.share, OPENS_OF_OWNER, 1);
		found = bpf_map_lookup_elem(&device_opens, &key);
	}
	if (!found)
		lose(lost_by_share(owner.share, OPENS_OF_OWNER) ? LOSS_OPENS_SHARE : LOSS_OPENS_FULL);
	return found;
}

static __always_inline int begin(__u32 rdev)
{
	__u32 tid = bpf_get_current_pid_tgid();

	bpf_map_update_elem(&opening, &tid, &rdev, BPF_ANY);
	return 0;
}

static __always_inline int opened(__u32 rdev, int ret)
{
	struct access_count *count;

	if (ret)
		return 0;
	count = counter(rdev);
	if (count)
		__sync_fetch_and_add(&count->allowed, 1);
	return 0;
}

/* System calls that open files: include/uapi/asm-generic/unistd.h, for all architectures since 5.1. */
enum {
	NR_IO_URING_ENTER = 426,
	NR_OPENAT2 = 437,
};

#if defined(__TARGET_ARCH_x86)
/* arch/x86/entry/syscalls/syscall_64.tbl */
enum {
	NR_OPEN = 2,
	NR_CREAT = 85,
	NR_OPENAT = 257,
	NR_OPEN_BY_HANDLE_AT = 304,
};

/* arch/x86/entry/syscalls/syscall_32.tbl */
enum {
	NR_COMPAT_OPEN = 5,
	NR_COMPAT_CREAT = 8,
	NR_COMPAT_OPENAT = 295,
	NR_COMPAT_OPEN_BY_HANDLE_AT = 342,
};

/* arch/x86/include/uapi/asm/unistd.h */
#define X32_SYSCALL_BIT 0x40000000ULL
#else
/* include/uapi/asm-generic/unistd.h: without open and creat */
enum {
	NR_OPENAT = 56,
	NR_OPEN_BY_HANDLE_AT = 265,
};

/* arch/arm64/tools/syscall_32.tbl */
enum {
	NR_COMPAT_OPEN = 5,
	NR_COMPAT_CREAT = 8,
	NR_COMPAT_OPENAT = 322,
	NR_COMPAT_OPEN_BY_HANDLE_AT = 371,
};
#endif

/* Reports whether a system call may open a file. compat: the call of a 32-bit program. */
static __always_inline bool opens(__u64 nr, bool compat)
{
	if (nr == NR_OPENAT2 || nr == NR_IO_URING_ENTER)
		return true;
	if (compat)
		return nr == NR_COMPAT_OPEN || nr == NR_COMPAT_CREAT || nr == NR_COMPAT_OPENAT ||
		       nr == NR_COMPAT_OPEN_BY_HANDLE_AT;
#if defined(__TARGET_ARCH_x86)
	return nr == NR_OPEN || nr == NR_CREAT || nr == NR_OPENAT || nr == NR_OPEN_BY_HANDLE_AT;
#else
	return nr == NR_OPENAT || nr == NR_OPEN_BY_HANDLE_AT;
#endif
}

/* Returns whether the thread is in a system call that opens files, unlike access(2). */
static __always_inline bool in_open(void)
{
	struct task_struct___registers *task = (void *)bpf_get_current_task();
	struct pt_regs___entry *regs;

	/* A worker of io_uring has no system call. Of its operations, only opens ask for a node. */
	if (BPF_CORE_READ(task, flags) & PF_IO_WORKER)
		return true;
	regs = entry_registers(task);
#if defined(__TARGET_ARCH_x86)
	return opens(BPF_CORE_READ(regs, orig_ax) & ~X32_SYSCALL_BIT, is_compat(task, regs));
#else
	return opens((__u32)BPF_CORE_READ(regs, syscallno), is_compat(task, regs));
#endif
}

static __always_inline bool asked(short type, __u32 major, __u32 minor, short access)
{
	return type == DEVCG_DEV_CHAR && access & DEVCG_ACC_READ_WRITE && major < MAJORS && minor <= MINOR_MASK &&
	       watched(major << MINOR_BITS | minor);
}

static __noinline int refused(__u32 rdev)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct access_count *count;

	/* A driver also asks: kfd, while it is opened, for each GPU. */
	if (bpf_map_lookup_elem(&opening, &tid) || !in_open())
		return 0;
	/* A container that may make nodes can make a million nodes without a device. */
	if (!bpf_map_lookup_elem(&device_nodes, &rdev))
		rdev |= MINOR_MASK;
	count = counter(rdev);
	if (count)
		__sync_fetch_and_add(&count->denied, 1);
	return 0;
}

SEC("fentry/chrdev_open")
int BPF_PROG(fentry_chrdev_open, struct inode *inode)
{
	__u32 rdev = inode->i_rdev;

	return watched(rdev) ? begin(rdev) : 0;
}

SEC("fexit/chrdev_open")
int BPF_PROG(fexit_chrdev_open, struct inode *inode, struct file *file, int ret)
{
	__u32 tid, rdev = inode->i_rdev;

	if (!watched(rdev))
		return 0;
	tid = bpf_get_current_pid_tgid();
	bpf_map_delete_elem(&opening, &tid);
	return opened(rdev, ret);
}

SEC("fexit/devcgroup_check_permission")
int BPF_PROG(fexit_permission, short type, __u32 major, __u32 minor, short access, int ret)
{
	if (!ret || !asked(type, major, minor, access))
		return 0;
	return refused(major << MINOR_BITS | minor);
}

SEC("kprobe/chrdev_open")
int BPF_KPROBE(kprobe_chrdev_open, struct inode *inode)
{
	__u32 tid, rdev = BPF_CORE_READ(inode, i_rdev);

	if (!watched(rdev))
		return 0;
	tid = bpf_get_current_pid_tgid();
	/* The return of this thread's former call was missed. */
	if (bpf_map_lookup_elem(&opening, &tid))
		lose(LOSS_OPEN_RETURN_MISSED);
	return begin(rdev);
}

SEC("kretprobe/chrdev_open")
int BPF_KRETPROBE(kretprobe_chrdev_open, int ret)
{
	__u32 tid = bpf_get_current_pid_tgid();
	__u32 rdev, *found = bpf_map_lookup_elem(&opening, &tid);

	if (!found)
		return 0;
	rdev = *found;
	bpf_map_delete_elem(&opening, &tid);
	return opened(rdev, ret);
}

SEC("kprobe/devcgroup_check_permission")
int BPF_KPROBE(kprobe_permission, short type, __u32 major, __u32 minor, short access)
{
	__u32 tid, rdev = major << MINOR_BITS | minor;

	if (!asked(type, major, minor, access))
		return 0;
	tid = bpf_get_current_pid_tgid();
	bpf_map_update_elem(&asking, &tid, &rdev, BPF_ANY);
	return 0;
}

SEC("kretprobe/devcgroup_check_permission")
int BPF_KRETPROBE(kretprobe_permission, int ret)
{
	__u32 tid = bpf_get_current_pid_tgid();
	__u32 rdev, *found = bpf_map_lookup_elem(&asking, &tid);

	if (!found)
		return 0;
	rdev = *found;
	bpf_map_delete_elem(&asking, &tid);
	return ret ? refused(rdev) : 0;
}

SEC("iter/task_file")
int open_files(struct bpf_iter__task_file *ctx)
{
	struct file___node *file = (void *)ctx->file;
	struct task_struct *task = ctx->task;
	struct open_file f = {};
	struct owner owner;

	if (!task || !file)
		return 0;
	f.rdev = file->f_inode->i_rdev;
	if (!f.rdev || !watched(f.rdev))
		return 0;
	/* Block devices have other numbers. An open with O_PATH does not open the device. */
	if ((file->f_inode->i_mode & S_IFMT) != S_IFCHR || file->f_mode & FMODE_PATH)
		return 0;
	f.file = (__u64)file;
	owner_of(task, cgroup_of(task), &owner);
	f.cgroup = owner.cgroup;
	f.tgid = task->tgid;
	bpf_seq_write(ctx->meta->seq, &f, sizeof(f));
	return 0;
}
