/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/*
 * Structures and constants of libibverbs (rdma-core, libibverbs/verbs.h) in a 64-bit process. They are part of
 * libibverbs' ABI: applications inline the calls through them.
 */
#ifndef ACCELSCOPE_LIBIBVERBS_H
#define ACCELSCOPE_LIBIBVERBS_H

#include "kernel.h"

/* struct ibv_qp: the first 60 bytes */
struct user_qp {
	__u64 context;
	__u64 qp_context;
	__u64 pd;
	__u64 send_cq;
	__u64 recv_cq;
	__u8 skipped[12];
	__u32 qp_num;
	__u32 state;
	__u32 qp_type;
};

/* struct ibv_send_wr: the first 40 bytes */
struct user_wr {
	__u64 wr_id;
	__u64 next;
	__u64 sg_list;
	__s32 num_sge;
	__u32 opcode;
	__u32 send_flags;
	__u32 pad;
};

/* offsetof(struct ibv_send_wr, tso.hdr_sz) */
#define WR_TSO_HDR_SZ 88

/* offsetof(struct ibv_recv_wr, next) */
#define RECV_WR_NEXT 8

/* enum ibv_send_flags */
#define IBV_SEND_SIGNALED (1 << 1)

/* struct ibv_sge. In struct ibv_data_buf a 64-bit length is at the offset of length and lkey. */
struct user_sge {
	__u64 addr;
	union {
		__u32 length;
		__u64 wide;
	};
};

/* struct ibv_wc: all but its last 8 bytes */
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

/* sizeof(struct ibv_wc) */
#define WC_SIZE 48

/*
 * enum ibv_wr_opcode: opcodes that a provider defines, such as memory keys of mlx5. These work requests, and those
 * that mlx5dv_wr_* build, complete as IBV_WC_DRIVER1, 2 or 3.
 */
#define IBV_WR_DRIVER1 11

/*
 * enum ibv_wc_opcode: the bit IBV_WC_RECV marks receives, tag matching and IBV_WC_DRIVER1 to 3. Other opcodes are
 * sends.
 */
#define IBV_WC_RECV (1 << 7)
#define IBV_WC_RECV_RDMA_WITH_IMM 129
#define IBV_WC_TM_RECV 133
#define IBV_WC_TM_NO_TAG 134

/* enum ibv_qp_type; the kernel's IB_QPT_UD has the same value. */
#define IBV_QPT_UD 4

/* sizeof(struct ibv_grh), which precedes the data in the buffer of a datagram */
#define GRH_BYTES 40

/* struct ibv_qp_ex: offsets of wr_id and of the functions wr_atomic_cmp_swp to wr_abort */
#define QP_EX_WR_ID 168
#define QP_EX_FUNCTIONS 184
#define QP_EX_FUNCTIONS_COUNT 20

/*
 * struct ibv_cq_ex: offsets of comp_mask and of the functions start_poll to read_qp_num; below, the functions that
 * return a part of the completion
 */
#define CQ_EX_COMPLETION 128
#define CQ_EX_FUNCTIONS 144
#define CQ_EX_FUNCTIONS_COUNT 8
#define CQ_EX_READ_OPCODE 168
#define CQ_EX_READ_BYTE_LEN 184
#define CQ_EX_READ_QP_NUM 200

/* struct ibv_cq_ex: comp_mask, status and wr_id */
struct user_cq_ex_completion {
	__u32 comp_mask;
	__u32 status;
	__u64 wr_id;
};

/* offsetof(struct ibv_context, ops.poll_cq) */
#define CONTEXT_POLL_CQ 96

/* struct ibv_qp_ex: wr_id and wr_flags */
struct user_qp_ex_wr {
	__u64 wr_id;
	__u32 wr_flags;
	__u32 pad;
};

#endif
