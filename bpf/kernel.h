/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The kernel types that the programs read, and of them only the members that
 * they read: every access is relocated against the BTF of the running kernel,
 * so neither order nor offsets matter here. Types marked "module" are in the
 * BTF of ib_core or ib_uverbs, not in that of vmlinux.
 */
#ifndef ACCELSCOPE_KERNEL_H
#define ACCELSCOPE_KERNEL_H

#include <linux/types.h>
#include <linux/bpf.h>

typedef _Bool bool;
#define false 0
#define true 1

#if defined(__TARGET_ARCH_x86)
struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8;
	unsigned long ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp, ss;
};
#elif defined(__TARGET_ARCH_arm64)
struct user_pt_regs {
	__u64 regs[31];
	__u64 sp, pc, pstate;
};
#endif

/* bpf_tracing.h: take the kernel's register names, not those of the user space headers. */
#define __VMLINUX_H__
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct inode {
	__u32 i_rdev;
};

struct file {
	struct inode *f_inode;
};

struct fdtable {
	unsigned int max_fds;
	struct file **fd;
};

struct files_struct {
	struct fdtable *fdt;
};

struct kernfs_node {
	__u64 id;
};

struct cgroup_root {
	int hierarchy_id;
};

struct cgroup_subsys_state;

struct cgroup {
	struct kernfs_node *kn;
	struct cgroup_root *root;
	struct cgroup_subsys_state *subsys[1];
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
};

struct css_set {
	struct cgroup_subsys_state *subsys[1];
};

struct task_struct {
	struct files_struct *files;
	struct css_set *cgroups;
};

/* include/rdma/restrack.h; the values 0 to 6 are the same from 5.10 on, SRQ came with 5.15. */
enum rdma_restrack_type {
	RDMA_RESTRACK_PD,
	RDMA_RESTRACK_CQ,
	RDMA_RESTRACK_QP,
	RDMA_RESTRACK_CM_ID,
	RDMA_RESTRACK_MR,
	RDMA_RESTRACK_CTX,
	RDMA_RESTRACK_COUNTER,
	RDMA_RESTRACK_SRQ,
};

struct rdma_restrack_entry {
	enum rdma_restrack_type type;
	bool user;
	__u32 id;
};

enum rdma_driver_id {
	RDMA_DRIVER_UNKNOWN,
	RDMA_DRIVER_MLX5,
};

struct ib_device_ops {
	enum rdma_driver_id driver_id;
};

struct ib_device {
	struct ib_device_ops ops;
	char name[64];
	__u32 index;
};

struct ib_ucontext {
	struct ib_device *device;
	struct rdma_restrack_entry res;
};

struct ib_pd {
	struct ib_device *device;
	struct rdma_restrack_entry res;
};

struct ib_cq {
	struct ib_device *device;
	struct rdma_restrack_entry res;
};

struct ib_qp {
	struct ib_device *device;
	struct rdma_restrack_entry res;
};

struct ib_srq {
	struct ib_device *device;
	struct rdma_restrack_entry res;
};

struct ib_mr {
	struct ib_device *device;
	__u64 length;
	struct rdma_restrack_entry res;
};

/* module */
struct uverbs_api_object {
	__u32 id;
};

struct ib_uobject {
	struct ib_ucontext *context;
	const struct uverbs_api_object *uapi_object;
};

struct module {
	char name[8]; /* the first bytes of it */
};

struct dma_buf {
	struct module *owner;
};

struct dma_buf_attachment {
	struct dma_buf *dmabuf;
};

/* module; 5.12 and later */
struct ib_umem_dmabuf {
	struct dma_buf_attachment *attach;
};

#pragma clang attribute pop

#endif
