// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Looks at the mappings of a file, before the kernel changes instructions in all of them: their number, and the
 * processes that hold their mmap_lock. User space runs these programs one at a time, and reads the variables. They
 * take no lock: if the tree of mappings changes, user space looks again. Other programs measure how long forks
 * wait.
 */
#include "kernel.h"

char LICENSE[] SEC("license") = "GPL";

/* include/linux/mm.h */
#define VM_MAYEXEC 0x40UL
#define VM_MAYSHARE 0x80UL
#define VM_HUGETLB 0x400000UL

/* kernel/locking/rwbase_rt.c (PREEMPT_RT): the number of readers of a free lock. */
#define READER_BIAS (1U << 31)

enum mappings_limit {
	MAX_HELD = 16,    /* processes that are listed */
	WALK_MOVES = 512, /* steps between nodes per run */
	MAX_OWN = 4096,   /* mappings of the sensor */
};

struct held_process {
	__u64 mm;
	__u32 tgid; /* 0: unknown */
	__u32 unused;
};

struct looked_at {
	__u64 mapping;     /* of the file: address of struct address_space */
	__u64 magic;       /* of the file's file system */
	__u32 user_ns;     /* level of the user namespace that mounted it; 0: the first user namespace */
	__u32 mappings;    /* where the kernel would change instructions */
	__u32 held;        /* mappings of processes whose mmap_lock is held */
	__u32 held_listed; /* entries of held_by */
	struct held_process held_by[MAX_HELD];
};

struct looked_at looked;

/* The position of the walk: a node, and the direction from which the walk came. */
__u64 walk_node, first_page, last_page;
__u32 walk_from, page_shift;

/* Makes bpf2go generate these types. */
const enum mappings_limit *unused_mappings_limit __attribute__((unused));

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct rb_node___tree {
	unsigned long __rb_parent_color;
	struct rb_node___tree *rb_right, *rb_left;
};

struct rb_root_cached___tree {
	struct {
		struct rb_node___tree *rb_node;
	} rb_root;
};

struct address_space___tree {
	struct rb_root_cached___tree i_mmap;
};

struct user_namespace___level {
	int level;
};

struct super_block___mounted {
	unsigned long s_magic;
	struct user_namespace___level *s_user_ns;
};

struct inode___mounted {
	struct super_block___mounted *i_sb;
};

struct file___mapped {
	struct inode___mounted *f_inode;
	struct address_space___tree *f_mapping;
};

struct rw_semaphore___plain {
	struct {
		long counter;
	} count;
};

struct rw_semaphore___rt {
	struct {
		struct {
			int counter;
		} readers;
	} rwbase;
};

struct task_struct___owner {
	__s32 tgid;
};

struct vm_area_struct___tree;

struct mm_struct___lock {
	struct rw_semaphore___plain mmap_lock;
	struct task_struct___owner *owner;  /* with CONFIG_MEMCG */
	struct vm_area_struct___tree *mmap; /* before Linux 6.1 */
};

struct vm_area_struct___tree {
	unsigned long vm_start, vm_end, vm_pgoff, vm_flags;
	struct vm_area_struct___tree *vm_next; /* before Linux 6.1 */
	struct mm_struct___lock *vm_mm;
	struct file___mapped *vm_file;
	struct {
		struct rb_node___tree rb;
		unsigned long rb_subtree_last;
	} shared;
};

struct task_struct___mm {
	struct mm_struct___lock *mm;
};

#pragma clang attribute pop

struct vm_area_struct;

/* Takes what identifies the file from one of its mappings. */
static __always_inline void begin_walk(struct vm_area_struct___tree *vma)
{
	struct file___mapped *file = BPF_CORE_READ(vma, vm_file);
	struct super_block___mounted *sb = BPF_CORE_READ(file, f_inode, i_sb);

	looked.mapping = (__u64)BPF_CORE_READ(file, f_mapping);
	looked.magic = BPF_CORE_READ(sb, s_magic);
	looked.user_ns = BPF_CORE_READ(sb, s_user_ns, level);
}

static __always_inline void begin(struct bpf_raw_tracepoint_args *ctx)
{
	__builtin_memset(&looked, 0, sizeof(looked));
	first_page = ctx->args[1];
	last_page = ctx->args[2];
	page_shift = ctx->args[3];
	walk_from = 0;
	walk_node = 0;
}

static __always_inline int root(void)
{
	struct address_space___tree *mapping = (void *)looked.mapping;

	if (!mapping)
		return 0;
	walk_node = (__u64)BPF_CORE_READ(mapping, i_mmap.rb_root.rb_node);
	return walk_node != 0;
}

static long take_vma(struct task_struct *task, struct vm_area_struct *vma, void *unused)
{
	begin_walk((void *)vma);
	return 0;
}

/*
 * Begins a walk through the mappings of the file that this process maps at an address. args: the address, the first
 * and the last page of the file with probes, and PAGE_SHIFT. The kernel also compares the file of mappings: on
 * overlayfs the lower file. Returns 1 if there are mappings to look at.
 */
SEC("raw_tp")
int begin_by_vma(struct bpf_raw_tracepoint_args *ctx)
{
	__u64 unused = 0;

	begin(ctx);
	bpf_find_vma(bpf_get_current_task_btf(), ctx->args[0], take_vma, &unused, 0);
	return root();
}

/* Like begin_by_vma, before Linux 5.17: searches the list of all mappings of this process. */
SEC("raw_tp")
int begin_by_list(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct___mm *task = (void *)bpf_get_current_task();
	struct vm_area_struct___tree *vma = 0;
	__u64 address = ctx->args[0];

	begin(ctx);
	if (!bpf_core_field_exists(vma->vm_next))
		return 0;
	vma = BPF_CORE_READ(task, mm, mmap);
	for (int i = 0; i < MAX_OWN && vma; i++) {
		if (BPF_CORE_READ(vma, vm_start) <= address && address < BPF_CORE_READ(vma, vm_end)) {
			begin_walk(vma);
			break;
		}
		vma = BPF_CORE_READ(vma, vm_next);
	}
	return root();
}

static __always_inline bool is_held(struct mm_struct___lock *mm)
{
	struct rw_semaphore___rt *rt = (void *)&mm->mmap_lock;

	if (bpf_core_field_exists(rt->rwbase.readers.counter))
		return (__u32)BPF_CORE_READ(rt, rwbase.readers.counter) != READER_BIAS;
	return BPF_CORE_READ(mm, mmap_lock.count.counter) != 0; /* readers, a writer, or waiting tasks */
}

static __always_inline void count(struct vm_area_struct___tree *vma)
{
	struct mm_struct___lock *mm = BPF_CORE_READ(vma, vm_mm);
	struct task_struct___mm *self = (void *)bpf_get_current_task();
	struct held_process *held;
	__u32 n;

	if (bpf_core_field_exists(vma->vm_flags) &&
	    (BPF_CORE_READ(vma, vm_flags) & (VM_MAYEXEC | VM_MAYSHARE | VM_HUGETLB)) != VM_MAYEXEC)
		return;
	if (mm == BPF_CORE_READ(self, mm))
		return;
	looked.mappings++;
	if (!is_held(mm))
		return;
	looked.held++;
	n = looked.held_listed;
	if (n >= MAX_HELD)
		return;
	held = &looked.held_by[n];
	held->mm = (__u64)mm;
	if (bpf_core_field_exists(mm->owner))
		held->tgid = BPF_CORE_READ(mm, owner, tgid);
	looked.held_listed = n + 1;
}

static __always_inline __u64 rb_offset(void)
{
	struct vm_area_struct___tree *vma = 0;

	return bpf_core_field_offset(vma->shared.rb);
}

/* Reports whether a node or its children map the pages. */
static __always_inline bool reaches(struct rb_node___tree *node)
{
	struct vm_area_struct___tree *vma = (void *)((__u64)node - rb_offset());

	return node && BPF_CORE_READ(vma, shared.rb_subtree_last) >= first_page;
}

enum walk_from {
	FROM_ABOVE,
	FROM_LEFT,
	FROM_RIGHT,
};

/*
 * Moves by one node, as vma_interval_tree_foreach does (include/linux/interval_tree_generic.h). Returns false at
 * the end.
 */
static __always_inline bool move(void)
{
	struct rb_node___tree *node = (void *)walk_node, *next;
	struct vm_area_struct___tree *vma = (void *)(walk_node - rb_offset());
	__u64 start, pages;

	if (walk_from == FROM_ABOVE) {
		next = BPF_CORE_READ(node, rb_left);
		if (reaches(next)) {
			walk_node = (__u64)next;
			return true;
		}
		walk_from = FROM_LEFT;
	}
	if (walk_from == FROM_LEFT) {
		/* The node left the tree, and its memory may be reused: the walk ends, and user space looks again. */
		if ((__u64)BPF_CORE_READ(vma, vm_file, f_mapping) != looked.mapping) {
			looked.mapping = 0;
			return false;
		}
		start = BPF_CORE_READ(vma, vm_pgoff);
		if (start <= last_page) {
			pages = (BPF_CORE_READ(vma, vm_end) - BPF_CORE_READ(vma, vm_start)) >> page_shift;
			if (start + pages > first_page)
				count(vma);
			next = BPF_CORE_READ(node, rb_right);
			if (reaches(next)) {
				walk_node = (__u64)next;
				walk_from = FROM_ABOVE;
				return true;
			}
		}
	}
	next = (void *)(BPF_CORE_READ(node, __rb_parent_color) & ~3UL);
	if (!next)
		return false;
	walk_from = (__u64)BPF_CORE_READ(next, rb_left) == walk_node ? FROM_LEFT : FROM_RIGHT;
	walk_node = (__u64)next;
	return true;
}

/* Continues the walk. Returns 1 if the walk has not ended. */
SEC("raw_tp")
int walk_mappings(struct bpf_raw_tracepoint_args *ctx)
{
	for (int i = 0; i < WALK_MOVES; i++)
		if (!move())
			return 0;
	return 1;
}

/* Reads the file system of an open file of this process. args: its descriptor, which may be opened with O_PATH. */
SEC("raw_tp")
int check_file(struct bpf_raw_tracepoint_args *ctx)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct fdtable *table = BPF_CORE_READ(task, files, fdt);
	struct file___mapped *file = 0;
	struct super_block___mounted *sb;
	__u64 fd = ctx->args[0];

	__builtin_memset(&looked, 0, sizeof(looked));
	if (fd >= BPF_CORE_READ(table, max_fds))
		return 0;
	bpf_probe_read_kernel(&file, sizeof(file), BPF_CORE_READ(table, fd) + fd);
	sb = BPF_CORE_READ(file, f_inode, i_sb);
	looked.magic = BPF_CORE_READ(sb, s_magic);
	looked.user_ns = BPF_CORE_READ(sb, s_user_ns, level);
	return looked.magic != 0;
}

/* The thread of the sensor that attaches and detaches: struct task_struct. 0: nothing is measured. */
__u64 gate_task;
/* The time when it took dup_mmap_sem for writing, and the longest time that it held it, while forks waited. */
__u64 held_since, longest_hold;

/* Measures this thread from now on. The argument 0 ends the measurement. */
SEC("raw_tp")
int measure(struct bpf_raw_tracepoint_args *ctx)
{
	gate_task = ctx->args[0] ? bpf_get_current_task() : 0;
	held_since = longest_hold = 0;
	return 0;
}

static __always_inline int has_lock(void)
{
	if (gate_task && gate_task == bpf_get_current_task())
		held_since = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int releases_lock(void)
{
	__u64 held;

	if (!gate_task || gate_task != bpf_get_current_task() || !held_since)
		return 0;
	held = bpf_ktime_get_ns() - held_since;
	held_since = 0;
	if (held > longest_hold)
		longest_hold = held;
	return 0;
}

/* While a uprobe is attached or detached, the thread takes no other lock of this kind for writing. */
SEC("fexit/percpu_down_write")
int BPF_PROG(fexit_down_write, void *sem)
{
	return has_lock();
}

SEC("fentry/percpu_up_write")
int BPF_PROG(fentry_up_write, void *sem)
{
	return releases_lock();
}

SEC("kretprobe/percpu_down_write")
int BPF_KRETPROBE(kretprobe_down_write)
{
	return has_lock();
}

SEC("kprobe/percpu_up_write")
int BPF_KPROBE(kprobe_up_write)
{
	return releases_lock();
}

SEC("uprobe")
int nothing(void *ctx)
{
	return 0;
}
