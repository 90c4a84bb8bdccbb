/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 */
/* What libibverbs has in memory: offsets are its ABI since 2016 (64-bit). */
#ifndef ACCELSCOPE_LIBIBVERBS_H
#define ACCELSCOPE_LIBIBVERBS_H

#include "kernel.h"

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

#endif
