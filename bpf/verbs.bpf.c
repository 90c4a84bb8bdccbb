// SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0
/*
 * Counts the verbs system calls of each cgroup on each HCA, with a histogram of their durations and the errors by
 * errno.
 *
 * Three tiers share begin() and end(): fentry and fexit, kprobe and kretprobe, both at the file operations of the
 * uverbs character device, and the system call tracepoints. User space loads one tier.
 */
#include <linux/ioctl.h>
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include "maps.h"
#include "owner.h"
#include "bucket.h"

char LICENSE[] SEC("license") = "GPL";

/* The first object id of drivers, in the namespaces of include/uapi/rdma/ib_user_ioctl_cmds.h */
#define UVERBS_ID_DRIVER_NS (1U << UVERBS_ID_NS_SHIFT)

/* include/uapi/rdma/rdma_user_ioctl_cmds.h, with a header that ends before the attributes */
struct ib_uverbs_ioctl_hdr {
	__u16 length;
	__u16 object_id;
	__u16 method_id;
	__u16 num_attrs;
	__u64 reserved1;
	__u32 driver_id;
	__u32 reserved2;
};

struct ib_uverbs_attr {
	__u16 attr_id;
	__u16 len;
	__u16 flags;
	__u16 reserved;
	__u64 data;
};

#define RDMA_VERBS_IOCTL _IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)

/* How many attributes of an INVOKE_WRITE are searched for the command; libibverbs sends at most five. */
#define MAX_ATTRS 8

/* User space sets the sizes. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct verb_key);
	__type(value, struct verb_stat);
} verbs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__type(key, struct error_key);
	__type(value, struct error_stat);
} verb_errors SEC(".maps");

/* The current call of a task: task storage, or for kprobes, which 5.10 needs, a hash by thread id. */
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct call);
} task_calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, __u32);
	__type(value, struct call);
} calls SEC(".maps");

/* The uverbs devices of this node, for the tracepoint tier, which sees every file of every task. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u8);
} rdevs SEC(".maps");

__u64 verb_losses[LOSSES];

/* Makes bpf2go generate these types. */
const enum verb *unused_verb __attribute__((unused));
const enum loss *unused_loss __attribute__((unused));
const enum verb_map *unused_verb_map __attribute__((unused));

static __always_inline void lose(__u32 why)
{
	__sync_fetch_and_add(&verb_losses[why], 1);
}

/* The verb of each write command of include/uapi/rdma/ib_user_verbs.h. Other commands are VERB_OTHER. */
#define COMMANDS 64
/* clang-format off */
static const __u8 commands[COMMANDS] = {
	[IB_USER_VERBS_CMD_GET_CONTEXT] = VERB_GET_CONTEXT,
	[IB_USER_VERBS_CMD_QUERY_DEVICE] = VERB_QUERY_DEVICE,
	[IB_USER_VERBS_CMD_QUERY_PORT] = VERB_QUERY_PORT,
	[IB_USER_VERBS_CMD_ALLOC_PD] = VERB_ALLOC_PD,
	[IB_USER_VERBS_CMD_DEALLOC_PD] = VERB_DEALLOC_PD,
	[IB_USER_VERBS_CMD_CREATE_AH] = VERB_CREATE_AH,
	[IB_USER_VERBS_CMD_DESTROY_AH] = VERB_DESTROY_AH,
	[IB_USER_VERBS_CMD_REG_MR] = VERB_REG_MR,
	[IB_USER_VERBS_CMD_REREG_MR] = VERB_REREG_MR,
	[IB_USER_VERBS_CMD_DEREG_MR] = VERB_DEREG_MR,
	[IB_USER_VERBS_CMD_ALLOC_MW] = VERB_ALLOC_MW,
	[IB_USER_VERBS_CMD_DEALLOC_MW] = VERB_DEALLOC_MW,
	[IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL] = VERB_COMP_CHANNEL,
	[IB_USER_VERBS_CMD_CREATE_CQ] = VERB_CREATE_CQ,
	[IB_USER_VERBS_CMD_RESIZE_CQ] = VERB_MODIFY_CQ,
	[IB_USER_VERBS_CMD_DESTROY_CQ] = VERB_DESTROY_CQ,
	[IB_USER_VERBS_CMD_POLL_CQ] = VERB_POLL_CQ,
	[IB_USER_VERBS_CMD_REQ_NOTIFY_CQ] = VERB_REQ_NOTIFY_CQ,
	[IB_USER_VERBS_CMD_CREATE_QP] = VERB_CREATE_QP,
	[IB_USER_VERBS_CMD_QUERY_QP] = VERB_QUERY_QP,
	[IB_USER_VERBS_CMD_MODIFY_QP] = VERB_MODIFY_QP,
	[IB_USER_VERBS_CMD_DESTROY_QP] = VERB_DESTROY_QP,
	[IB_USER_VERBS_CMD_POST_SEND] = VERB_POST_SEND,
	[IB_USER_VERBS_CMD_POST_RECV] = VERB_POST_RECV,
	[IB_USER_VERBS_CMD_ATTACH_MCAST] = VERB_ATTACH_MCAST,
	[IB_USER_VERBS_CMD_DETACH_MCAST] = VERB_DETACH_MCAST,
	[IB_USER_VERBS_CMD_CREATE_SRQ] = VERB_CREATE_SRQ,
	[IB_USER_VERBS_CMD_MODIFY_SRQ] = VERB_MODIFY_SRQ,
	[IB_USER_VERBS_CMD_QUERY_SRQ] = VERB_QUERY_SRQ,
	[IB_USER_VERBS_CMD_DESTROY_SRQ] = VERB_DESTROY_SRQ,
	[IB_USER_VERBS_CMD_POST_SRQ_RECV] = VERB_POST_RECV,
	[IB_USER_VERBS_CMD_OPEN_XRCD] = VERB_XRCD,
	[IB_USER_VERBS_CMD_CLOSE_XRCD] = VERB_XRCD,
	[IB_USER_VERBS_CMD_CREATE_XSRQ] = VERB_CREATE_SRQ,
	[IB_USER_VERBS_CMD_OPEN_QP] = VERB_CREATE_QP,
	[IB_USER_VERBS_EX_CMD_CREATE_FLOW] = VERB_FLOW,
	[IB_USER_VERBS_EX_CMD_DESTROY_FLOW] = VERB_FLOW,
	[IB_USER_VERBS_EX_CMD_CREATE_WQ] = VERB_WQ,
	[IB_USER_VERBS_EX_CMD_MODIFY_WQ] = VERB_WQ,
	[IB_USER_VERBS_EX_CMD_DESTROY_WQ] = VERB_WQ,
	[IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL] = VERB_WQ,
	[IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL] = VERB_WQ,
	[IB_USER_VERBS_EX_CMD_MODIFY_CQ] = VERB_MODIFY_CQ,
};
/* clang-format on */

static __always_inline __u32 command_verb(__u64 command)
{
	command &= IB_USER_VERBS_CMD_COMMAND_MASK;
	return command < COMMANDS ? commands[command] : VERB_OTHER;
}

/* Members of enum uverbs_methods_device and uverbs_methods_mr that the headers of Debian 12 lack. */
#define UVERBS_METHOD_QUERY_PORT_SPEED 7
#define UVERBS_METHOD_REG_MR 5

/* The verb of each ioctl method: by object (enum uverbs_default_objects), then by method. */
#define OBJECTS 18
#define METHODS 8
/* clang-format off */
static const __u8 methods[OBJECTS][METHODS] = {
	[UVERBS_OBJECT_DEVICE] = {
		[UVERBS_METHOD_INVOKE_WRITE] = VERB_OTHER, /* its command decides */
		[UVERBS_METHOD_INFO_HANDLES] = VERB_QUERY_DEVICE,
		[UVERBS_METHOD_QUERY_PORT] = VERB_QUERY_PORT,
		[UVERBS_METHOD_GET_CONTEXT] = VERB_GET_CONTEXT,
		[UVERBS_METHOD_QUERY_CONTEXT] = VERB_QUERY_DEVICE,
		[UVERBS_METHOD_QUERY_GID_TABLE] = VERB_QUERY_GID,
		[UVERBS_METHOD_QUERY_GID_ENTRY] = VERB_QUERY_GID,
		[UVERBS_METHOD_QUERY_PORT_SPEED] = VERB_QUERY_PORT,
	},
	[UVERBS_OBJECT_PD] = {[UVERBS_METHOD_PD_DESTROY] = VERB_DEALLOC_PD},
	[UVERBS_OBJECT_COMP_CHANNEL] = {VERB_COMP_CHANNEL},
	[UVERBS_OBJECT_CQ] = {
		[UVERBS_METHOD_CQ_CREATE] = VERB_CREATE_CQ,
		[UVERBS_METHOD_CQ_DESTROY] = VERB_DESTROY_CQ,
	},
	[UVERBS_OBJECT_QP] = {
		[UVERBS_METHOD_QP_CREATE] = VERB_CREATE_QP,
		[UVERBS_METHOD_QP_DESTROY] = VERB_DESTROY_QP,
	},
	[UVERBS_OBJECT_SRQ] = {
		[UVERBS_METHOD_SRQ_CREATE] = VERB_CREATE_SRQ,
		[UVERBS_METHOD_SRQ_DESTROY] = VERB_DESTROY_SRQ,
	},
	[UVERBS_OBJECT_AH] = {[UVERBS_METHOD_AH_DESTROY] = VERB_DESTROY_AH},
	[UVERBS_OBJECT_MR] = {
		[UVERBS_METHOD_DM_MR_REG] = VERB_REG_MR,
		[UVERBS_METHOD_MR_DESTROY] = VERB_DEREG_MR,
		[UVERBS_METHOD_ADVISE_MR] = VERB_ADVISE_MR,
		[UVERBS_METHOD_QUERY_MR] = VERB_OTHER,
		[UVERBS_METHOD_REG_DMABUF_MR] = VERB_REG_DMABUF_MR,
		[UVERBS_METHOD_REG_MR] = VERB_REG_MR,
	},
	[UVERBS_OBJECT_MW] = {[UVERBS_METHOD_MW_DESTROY] = VERB_DEALLOC_MW},
	[UVERBS_OBJECT_FLOW] = {
		[UVERBS_METHOD_FLOW_DESTROY] = VERB_FLOW,
		[UVERBS_METHOD_FLOW_DESTROY + 1] = VERB_FLOW,
	},
	[UVERBS_OBJECT_XRCD] = {[UVERBS_METHOD_XRCD_DESTROY] = VERB_XRCD},
	[UVERBS_OBJECT_RWQ_IND_TBL] = {[UVERBS_METHOD_RWQ_IND_TBL_DESTROY] = VERB_WQ},
	[UVERBS_OBJECT_WQ] = {
		[UVERBS_METHOD_WQ_CREATE] = VERB_WQ,
		[UVERBS_METHOD_WQ_DESTROY] = VERB_WQ,
	},
	[UVERBS_OBJECT_ASYNC_EVENT] = {[UVERBS_METHOD_ASYNC_EVENT_ALLOC] = VERB_ASYNC_EVENT},
};
/* clang-format on */

static __always_inline __u32 ioctl_verb(__u64 arg)
{
	struct {
		struct ib_uverbs_ioctl_hdr hdr;
		struct ib_uverbs_attr attr;
	} in;

	/*
	 * Reads the header and the first attribute at once, because reads of user memory cost most. libibverbs
	 * passes the command in the first attribute.
	 */
	if (bpf_probe_read_user(&in, sizeof(in), (void *)arg) &&
	    bpf_probe_read_user(&in.hdr, sizeof(in.hdr), (void *)arg))
		return VERB_OTHER;
	if (in.hdr.object_id >= UVERBS_ID_DRIVER_NS)
		return VERB_DEVX;
	if (in.hdr.object_id == UVERBS_OBJECT_DEVICE && in.hdr.method_id == UVERBS_METHOD_INVOKE_WRITE) {
		for (int i = 0; i < MAX_ATTRS && i < in.hdr.num_attrs; i++) {
			__u64 next = arg + sizeof(in.hdr) + i * sizeof(in.attr);

			if (i && bpf_probe_read_user(&in.attr, sizeof(in.attr), (void *)next))
				return VERB_OTHER;
			if (in.attr.attr_id == UVERBS_ATTR_WRITE_CMD)
				return command_verb(in.attr.data);
		}
		return VERB_OTHER;
	}
	if (in.hdr.object_id < OBJECTS && in.hdr.method_id < METHODS)
		return methods[in.hdr.object_id][in.hdr.method_id];
	return VERB_OTHER;
}

static __always_inline __u32 call_verb(const struct call *call)
{
	__u32 command;

	if (!call->write)
		return ioctl_verb(call->arg);
	if (bpf_probe_read_user(&command, sizeof(command), (void *)call->arg))
		return VERB_OTHER;
	return command_verb(command);
}

static const struct verb_stat zero_stat;

static __always_inline struct verb_stat *verb_stat(struct verb_key *key, __u64 owner)
{
	struct verb_stat *stat = bpf_map_lookup_elem(&verbs, key);

	if (stat || has_share(owner, VERBS_OF_OWNER))
		return stat;
	if (!bpf_map_update_elem(&verbs, key, &zero_stat, BPF_NOEXIST))
		count_entries(owner, VERBS_OF_OWNER, 1);
	stat = bpf_map_lookup_elem(&verbs, key);
	if (stat)
		stat->owner = owner;
	return stat;
}

static __always_inline void count_error(struct error_key *key, __u64 owner)
{
	struct error_stat first = {.owner = owner, .count = 1}, *stat = bpf_map_lookup_elem(&verb_errors, key);

	if (!stat && !has_share(owner, ERRORS_OF_OWNER)) {
		if (!bpf_map_update_elem(&verb_errors, key, &first, BPF_NOEXIST)) {
			count_entries(owner, ERRORS_OF_OWNER, 1);
			return;
		}
		stat = bpf_map_lookup_elem(&verb_errors, key);
	}
	if (stat)
		__sync_fetch_and_add(&stat->count, 1);
	else
		lose(lost_by_share(owner, ERRORS_OF_OWNER) ? LOSS_ERRORS_SHARE : LOSS_ERRORS_FULL);
}

/* noinline: all programs share one copy, and the verifier walks it once per program. */
static __noinline int end(struct call *call, long ret)
{
	__u64 ns = bpf_ktime_get_ns() - call->start_ns;
	struct verb_key key = {.rdev = call->rdev, .verb = call_verb(call)};
	struct verb_stat *stat;
	struct owner owner;
	__u32 slot;

	current_owner(&owner);
	key.cgroup = owner.cgroup;
	stat = verb_stat(&key, owner.share);
	if (!stat) {
		lose(lost_by_share(owner.share, VERBS_OF_OWNER) ? LOSS_VERBS_SHARE : LOSS_VERBS_FULL);
		key.cgroup = 0;
		stat = verb_stat(&key, 0);
		if (!stat)
			return 0;
	}
	__sync_fetch_and_add(&stat->sum_ns, ns);
	/* Last: the verifier walks everything between this and its use for each bucket. */
	slot = bucket(ns);
	if (slot < BUCKETS)
		__sync_fetch_and_add(&stat->buckets[slot], 1);

	if (ret < 0) {
		struct error_key err = {.cgroup = key.cgroup, .rdev = key.rdev, .verb = key.verb, .err = -ret};

		count_error(&err, key.cgroup ? owner.share : 0);
	}
	return 0;
}

/* fentry, fexit, and what the tracepoints share with them */

static __always_inline int enter_task(__u32 rdev, __u64 arg, __u32 write)
{
	struct call *call =
		bpf_task_storage_get(&task_calls, bpf_get_current_task_btf(), 0, BPF_LOCAL_STORAGE_GET_F_CREATE);

	if (!call) {
		lose(LOSS_CALLS_FULL);
		return 0;
	}
	call->arg = arg;
	call->write = write;
	call->rdev = rdev;
	call->start_ns = bpf_ktime_get_ns();
	return 0;
}

static __always_inline int exit_task(long ret)
{
	struct call *call = bpf_task_storage_get(&task_calls, bpf_get_current_task_btf(), 0, 0);

	/* The call began before the programs were attached. */
	if (!call || !call->start_ns)
		return 0;
	end(call, ret);
	call->start_ns = 0;
	return 0;
}

SEC("fentry/ib_uverbs_ioctl")
int BPF_PROG(fentry_ioctl, struct file *file, unsigned int cmd, unsigned long arg)
{
	return enter_task(file->f_inode->i_rdev, arg, 0);
}

SEC("fexit/ib_uverbs_ioctl")
int BPF_PROG(fexit_ioctl, struct file *file, unsigned int cmd, unsigned long arg, long ret)
{
	return exit_task(ret);
}

SEC("fentry/ib_uverbs_write")
int BPF_PROG(fentry_write, struct file *file, const char *buf)
{
	return enter_task(file->f_inode->i_rdev, (__u64)buf, 1);
}

SEC("fexit/ib_uverbs_write")
int BPF_PROG(fexit_write, struct file *file, const char *buf, __u64 count, void *pos, long ret)
{
	return exit_task(ret);
}

/* kprobe, kretprobe */

static __always_inline int enter_thread(__u32 rdev, __u64 arg, __u32 write)
{
	struct call call = {.start_ns = bpf_ktime_get_ns(), .arg = arg, .rdev = rdev, .write = write};
	__u32 tid = bpf_get_current_pid_tgid();

	if (bpf_map_lookup_elem(&calls, &tid))
		lose(LOSS_RETURN_MISSED);
	if (bpf_map_update_elem(&calls, &tid, &call, BPF_ANY))
		lose(LOSS_CALLS_FULL);
	return 0;
}

static __always_inline int exit_thread(long ret)
{
	__u32 tid = bpf_get_current_pid_tgid();
	struct call *found = bpf_map_lookup_elem(&calls, &tid);
	struct call call;

	/* The oldest entry was dropped because there were too many. */
	if (!found) {
		lose(LOSS_RETURN_MISSED);
		return 0;
	}
	call = *found;
	bpf_map_delete_elem(&calls, &tid);
	return end(&call, ret);
}

SEC("kprobe/ib_uverbs_ioctl")
int BPF_KPROBE(kprobe_ioctl, struct file *file, unsigned int cmd, unsigned long arg)
{
	return enter_thread(BPF_CORE_READ(file, f_inode, i_rdev), arg, 0);
}

SEC("kretprobe/ib_uverbs_ioctl")
int BPF_KRETPROBE(kretprobe_ioctl, long ret)
{
	return exit_thread(ret);
}

SEC("kprobe/ib_uverbs_write")
int BPF_KPROBE(kprobe_write, struct file *file, const char *buf)
{
	return enter_thread(BPF_CORE_READ(file, f_inode, i_rdev), (__u64)buf, 1);
}

SEC("kretprobe/ib_uverbs_write")
int BPF_KRETPROBE(kretprobe_write, long ret)
{
	return exit_thread(ret);
}

/* The context is the context of perf events, not of the raw tracepoint. */

struct syscall_enter {
	__u64 common;
	__u64 nr;
	__u64 args[6];
};

struct syscall_exit {
	__u64 common;
	__u64 nr;
	long ret;
};

/* The device number of the current task's file descriptor if it is a uverbs device, else 0. */
static __always_inline __u32 uverbs_rdev(__u64 fd)
{
	/* Typed pointers are followed without a call: every write() of the node passes here. */
	struct task_struct *task = bpf_get_current_task_btf();
	struct files_struct *files = task->files;
	struct fdtable *fdt;
	struct file *file;
	__u32 rdev;

	if (!files)
		return 0;
	fdt = files->fdt;
	if (fd >= fdt->max_fds)
		return 0;
	if (bpf_probe_read_kernel(&file, sizeof(file), &fdt->fd[fd]) || !file)
		return 0;
	rdev = BPF_CORE_READ(file, f_inode, i_rdev);
	return rdev && bpf_map_lookup_elem(&rdevs, &rdev) ? rdev : 0;
}

SEC("tracepoint/syscalls/sys_enter_ioctl")
int enter_ioctl(struct syscall_enter *ctx)
{
	__u32 rdev;

	if ((__u32)ctx->args[1] != RDMA_VERBS_IOCTL)
		return 0;
	rdev = uverbs_rdev(ctx->args[0]);
	return rdev ? enter_task(rdev, ctx->args[2], 0) : 0;
}

SEC("tracepoint/syscalls/sys_exit_ioctl")
int exit_ioctl(struct syscall_exit *ctx)
{
	return exit_task(ctx->ret);
}

SEC("tracepoint/syscalls/sys_enter_write")
int enter_write(struct syscall_enter *ctx)
{
	__u32 rdev = uverbs_rdev(ctx->args[0]);

	return rdev ? enter_task(rdev, ctx->args[1], 1) : 0;
}

SEC("tracepoint/syscalls/sys_exit_write")
int exit_write(struct syscall_exit *ctx)
{
	return exit_task(ctx->ret);
}
