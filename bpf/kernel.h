/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * The kernel types and members that the programs read. Every access is relocated against the BTF of the running
 * kernel, so order and offsets do not matter. Types marked "module" are in the BTF of ib_core or ib_uverbs, not of
 * vmlinux.
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

/* bpf_tracing.h: take the kernel's register names, not the user space headers. */
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
	void *private_data;
};

struct list_head {
	struct list_head *next;
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
	int level;                   /* 0: the root of its hierarchy */
	struct cgroup *ancestors[1]; /* by level, since 6.1 */
	__u64 ancestor_ids[1];       /* by level, before */
};

struct cgroup_subsys_state {
	struct cgroup *cgroup;
};

struct css_set {
	struct cgroup_subsys_state *subsys[1];
	struct cgroup *dfl_cgrp;
};

struct task_struct {
	__s32 tgid;
	struct files_struct *files;
	struct css_set *cgroups;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
};

struct bpf_map;

struct bpf_iter__bpf_map_elem {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	void *key;
	void *value;
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
	bool valid; /* it has an id */
	struct task_struct *task;
	enum rdma_restrack_type type;
	bool user;
	__u8 no_track : 1; /* since 5.12 */
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

/* include/rdma/ib_verbs.h: enum ib_qp_type, ib_qp_state, ib_qp_attr_mask, ib_ah_flags */
enum ib_qp_type {
	IB_QPT_RC = 2,
};

enum ib_qp_state {
	IB_QPS_RESET,
	IB_QPS_INIT,
	IB_QPS_RTR,
	IB_QPS_RTS,
	IB_QPS_SQD,
	IB_QPS_SQE,
	IB_QPS_ERR,
};

enum ib_qp_attr_mask {
	IB_QP_STATE = 1 << 0,
	IB_QP_AV = 1 << 7,
	IB_QP_DEST_QPN = 1 << 20,
};

enum ib_ah_flags {
	IB_AH_GRH = 1,
};

struct ib_qp {
	struct ib_device *device;
	struct ib_qp *real_qp;
	struct ib_srq *srq;
	struct ib_uqp_object *uobject; /* begins with a struct ib_uobject */
	__u32 qp_num;
	enum ib_qp_type qp_type;
	__u32 port; /* one byte before 5.13 */
	struct rdma_restrack_entry res;
};

union ib_gid {
	__u8 raw[16];
};

struct ib_global_route {
	union ib_gid dgid;
};

enum rdma_ah_attr_type {
	RDMA_AH_ATTR_TYPE_UNDEFINED,
	RDMA_AH_ATTR_TYPE_IB,
	RDMA_AH_ATTR_TYPE_ROCE,
	RDMA_AH_ATTR_TYPE_OPA,
};

struct ib_ah_attr {
	__u16 dlid;
};

struct opa_ah_attr {
	__u32 dlid;
};

struct rdma_ah_attr {
	struct ib_global_route grh;
	__u8 ah_flags;
	enum rdma_ah_attr_type type;
	union {
		struct ib_ah_attr ib;
		struct opa_ah_attr opa;
	};
};

struct ib_qp_attr {
	enum ib_qp_state qp_state;
	__u32 dest_qp_num;
	struct rdma_ah_attr ah_attr;
};

enum ib_sig_type {
	IB_SIGNAL_ALL_WR,
	IB_SIGNAL_REQ_WR,
};

struct ib_qp_init_attr {
	enum ib_sig_type sq_sig_type;
};

struct ib_srq {
	struct ib_device *device;
	struct rdma_restrack_entry res;
};

struct rdma_cm_id {
	struct ib_device *device; /* NULL until the id is bound to a device */
};

/* module */
struct rdma_id_private {
	struct rdma_cm_id id;
	struct rdma_restrack_entry res;
};

/* include/rdma/ib_verbs.h; the same from 5.10 to 7 */
enum ib_mr_type {
	IB_MR_TYPE_DM = 2,
};

struct ib_mr {
	struct ib_device *device;
	__u64 length;
	enum ib_mr_type type;
	struct rdma_restrack_entry res;
};

/* module */
struct uverbs_api_object {
	__u32 id;
};

struct ib_uobject {
	__u64 user_handle;
	struct ib_ucontext *context;
	void *object;
	struct list_head list;
	const struct uverbs_api_object *uapi_object;
};

/* module */
struct ib_uverbs_file {
	struct list_head uobjects;
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
